"""Recognise GPTQ, versions 1 and 2. Source: GPTQModel 7.7, `nn_modules/qlinear/` and `utils/model.py`."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    GROUP_INDEX,
    SCALES,
    ZERO_POINTS,
    Faults,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
)
from tieconv.text import shown

V1, V2, AWQ = "GPTQ v1", "GPTQ v2", "AWQ"
_ROLES = {"qweight": CODES, "scales": SCALES, "qzeros": ZERO_POINTS, "g_idx": GROUP_INDEX}
_WIDTHS = (2, 3, 4, 8)
_AWQ_BITS = 4


def recognise_awq(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with `qweight` that packs along the tokens."""
    if "qweight" not in module.tensors or not _is_awq(module):
        return None
    faults, sides = faults_of(module), matrix_sides(module.shape("qweight"))
    per_word = 32 // _AWQ_BITS
    shape = (sides[1] * per_word, sides[0]) if sides else None
    if sides is None:
        faults.misfit("qweight", "codes are a matrix")
    block = _group(module, faults, shape)
    symmetric = _zero_points(module, faults, shape, block, _AWQ_BITS)
    bits = module.choice.bits or _AWQ_BITS
    uncomputed = "" if bits == _AWQ_BITS else f"tieconv does not read AWQ codes of {bits} bits"
    uncomputed = uncomputed or ("tieconv reads AWQ codes only with zero points" if symmetric else "")
    return described(
        module, AWQ, _ROLES, faults, bits=bits, block=block, shape=shape, symmetric=symmetric, uncomputed=uncomputed
    )


def _is_awq(module: StoredModule) -> bool:
    if module.method in ("awq", "gptq"):
        return module.method == "awq"
    codes, scales = matrix_sides(module.shape("qweight")), matrix_sides(module.shape("scales"))
    return codes is not None and scales is not None and codes[1] * 8 == scales[1] != codes[1]


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with `qweight` that packs along the hidden size."""
    if "qweight" not in module.tensors:
        return None
    faults, sides = faults_of(module), matrix_sides(module.shape("qweight"))
    if sides is None:
        faults.misfit("qweight", "codes are a matrix")
    bits = module.choice.bits or _bits(module, sides)
    shape = (sides[1], sides[0] * 32 // bits) if sides and bits and sides[0] * 32 % bits == 0 else None
    block = _group(module, faults, shape)
    symmetric = _zero_points(module, faults, shape, block, bits)
    if shape is not None and "g_idx" in module.tensors and module.shape("g_idx") != (shape[1],):
        faults.misfit("g_idx", f"the matrix has {shape[1]:,} columns")
    scheme = V2 if module.choice.layout == "gptq_v2" else V1
    return described(
        module,
        scheme,
        _ROLES,
        faults,
        bits=bits,
        block=block,
        shape=shape,
        symmetric=symmetric,
        uncomputed=_uncomputed(module, bits, shape),
    )


def _uncomputed(module: StoredModule, bits: int | None, shape: tuple[int, int] | None) -> str:
    if bits is None or shape is None:
        return "neither the config nor the parts tell the width of a code"
    if bits not in _WIDTHS:
        return f"tieconv does not read GPTQ codes of {bits} bits"
    if "qzeros" not in module.tensors:
        return "tieconv reads GPTQ codes only with qzeros"
    layout = module.choice.layout
    return "" if layout in ("", "gptq", "gptq_v2") else f"tieconv does not read the GPTQ format {shown(layout)}"


def _bits(module: StoredModule, sides: tuple[int, int] | None) -> int | None:
    """Return the width of a code that the number of columns tells."""
    index = module.shape("g_idx")
    columns = index[0] if len(index) == 1 else module.width
    fitting = [bits for bits in _WIDTHS if sides and columns and sides[0] * 32 == columns * bits]
    return fitting[0] if fitting else None


def _group(module: StoredModule, faults: Faults, shape: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the block of one scale. Scales are [groups, V]."""
    if not require_scales(module, faults, "qweight", "scales") or shape is None:
        return None
    sides, (rows, columns) = matrix_sides(module.shape("scales")), shape
    group = module.choice.group or (-(-columns // sides[0]) if sides else columns)
    group = min(group, columns)
    if sides is None or sides[1] != rows or sides[0] != -(-columns // group):
        faults.misfit("scales", f"{rows}×{columns} codes in groups of {group} need {-(-columns // group)}×{rows}")
        return None
    return 1, group


def _zero_points(
    module: StoredModule,
    faults: Faults,
    shape: tuple[int, int] | None,
    block: tuple[int, int] | None,
    bits: int | None,
) -> bool | None:
    """Return whether the config says symmetric; add a fault if zero points are missing or have another shape."""
    if "qzeros" not in module.tensors:
        if module.choice.symmetric is False:
            reason = f"{shown(module.tensors['qweight'].name)} has no qzeros, but the config says asymmetric"
            faults.missing(FaultKind.NO_ZERO_POINTS, reason, ["qweight"])
        return module.choice.symmetric if module.choice.symmetric is not None else True
    if shape is not None and block is not None and bits is not None:
        needed = -(-shape[1] // block[1]), -(-shape[0] * bits // 32)
        if module.shape("qzeros") != needed:
            faults.misfit("qzeros", f"the scales need {needed[0]}×{needed[1]}")
    return module.choice.symmetric
