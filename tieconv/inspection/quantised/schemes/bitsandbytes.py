"""Recognise bitsandbytes 0.50, 4 and 8 bit. Source: its `functional.py` (`QuantState`)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tieconv.checkpoint.quantised import BNB_STATES
from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.inspection.quantised.schemes.interface import (
    CODE_MAP,
    CODES,
    NESTED_MAP,
    NESTED_SCALES,
    SCALES,
    STATE,
    Faults,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
)
from tieconv.text import shown

FOUR_BIT, EIGHT_BIT = "bitsandbytes 4 bit", "bitsandbytes 8 bit"
_ROLES = {
    "weight": CODES,
    "weight.absmax": SCALES,
    "weight.quant_map": CODE_MAP,
    "weight.nested_absmax": NESTED_SCALES,
    "weight.nested_quant_map": NESTED_MAP,
    **dict.fromkeys(BNB_STATES, STATE),
    "SCB": SCALES,
    "weight_format": STATE,
}
_LONGEST = 4096


@record
class QuantState:
    """The JSON beside 4-bit codes: elements of a block, the matrix, and the numbers of nested scales."""

    block: int
    shape: tuple[int, int]
    nested_block: int
    nested_offset: float


def quant_state(content: bytes | None) -> QuantState | None:
    """Return the parsed state, or ``None`` if it is not that of a matrix."""
    if content is None or len(content) > _LONGEST:
        return None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, Mapping) or not isinstance(values.get("shape"), list):
        return None
    shape, block, nested = values["shape"], values.get("blocksize"), values.get("nested_blocksize", 0)
    if len(shape) != 2 or not all(map(_is_size, (*shape, block))):
        return None
    offset = values.get("nested_offset", 0.0)
    usable = type(nested) is int and nested >= 0 and isinstance(offset, (int, float))
    return QuantState(int(block or 0), (shape[0], shape[1]), nested, float(offset)) if usable else None


def _is_size(number: object) -> bool:
    return type(number) is int and 0 < number < 1 << 40


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with a `quant_state`, an `absmax` or an `SCB`."""
    codes = module.dtype("weight")
    if any(leaf in module.tensors for leaf in (*BNB_STATES, "weight.absmax", "weight.quant_map")) and codes:
        return _four_bit(module)
    if codes == "I8" and ("SCB" in module.tensors or (module.choice.bits == 8 and module.method == "bitsandbytes")):
        return _eight_bit(module)
    return None


def _four_bit(module: StoredModule) -> QuantisedMatrix:
    faults = faults_of(module)
    record = next((module.tensors[leaf] for leaf in BNB_STATES if leaf in module.tensors), None)
    state = quant_state(module.content(record)) if record is not None and record.nbytes <= _LONGEST else None
    scaled = require_scales(module, faults, "weight", "weight.absmax")
    if scaled and record is None:
        reason = f"{shown(module.tensors['weight'].name)} has no quant_state"
        faults.missing(FaultKind.NO_SCALES, reason, ["weight"])
    if scaled and "weight.quant_map" not in module.tensors:
        reason = f"{shown(module.tensors['weight'].name)} has no weight.quant_map"
        faults.missing(FaultKind.NO_SCALES, reason, ["weight"])
    uncomputed = "" if state else "its quant_state was not read"
    if state is not None:
        _check_state(module, faults, state)
        if module.dtype("weight.absmax") == "U8" and not {"weight.nested_absmax", "weight.nested_quant_map"} <= set(
            module.tensors
        ):
            faults.missing(
                FaultKind.NO_SCALES, "the absmax has no nested_absmax or nested_quant_map", ["weight.absmax"]
            )
    shape, block = (state.shape, (1, state.block)) if state else (None, None)
    return described(
        module, FOUR_BIT, _ROLES, faults, bits=4, block=block, shape=shape, symmetric=True, uncomputed=uncomputed
    )


def _check_state(module: StoredModule, faults: Faults, state: QuantState) -> None:
    elements = state.shape[0] * state.shape[1]
    if module.tensors["weight"].nbytes != -(-elements // 2):
        faults.misfit("weight", f"quant_state says {state.shape[0]}×{state.shape[1]} codes of 4 bits")
    blocks = -(-elements // state.block)
    if "weight.absmax" in module.tensors and module.shape("weight.absmax") != (blocks,):
        faults.misfit("weight.absmax", f"the codes have {blocks:,} blocks")
    if "weight.quant_map" in module.tensors and module.shape("weight.quant_map") != (16,):
        faults.misfit("weight.quant_map", "4 bits have 16 codes")
    if "weight.nested_quant_map" in module.tensors and module.shape("weight.nested_quant_map") != (256,):
        faults.misfit("weight.nested_quant_map", "8 bits have 256 codes")
    if "weight.nested_absmax" in module.tensors:
        nested = -(-blocks // state.nested_block) if state.nested_block else 0
        if module.shape("weight.nested_absmax") != (nested,):
            faults.misfit("weight.nested_absmax", f"the scales have {nested:,} blocks")


def _eight_bit(module: StoredModule) -> QuantisedMatrix:
    faults = faults_of(module)
    shape = matrix_sides(module.shape("weight"))
    scaled = require_scales(module, faults, "weight", "SCB")
    if scaled and shape and module.shape("SCB") not in ((shape[0],), (shape[0], 1)):
        faults.misfit("SCB", f"the matrix has {shape[0]:,} rows")
    block = (1, shape[1]) if shape else None
    uncomputed = "" if shape else "the codes are not a matrix"
    layout = module.content(module.tensors["weight_format"]) if "weight_format" in module.tensors else b"\0"
    if not uncomputed and layout != b"\0":  # old releases also wrote the layouts of GPU kernels
        uncomputed = "its weight_format is not that of rows"
    return described(
        module, EIGHT_BIT, _ROLES, faults, bits=8, block=block, shape=shape, symmetric=True, uncomputed=uncomputed
    )
