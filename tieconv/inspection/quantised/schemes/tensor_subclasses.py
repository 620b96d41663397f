"""Recognise torchao 0.18, optimum-quanto 0.2 and HQQ 0.2, which save the inner tensors of a tensor subclass."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    SCALES,
    ZERO_POINTS,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
    scale_block,
)
from tieconv.text import shown

TORCHAO, QUANTO, HQQ = "torchao", "quanto", "HQQ"
_TORCHAO = {"_weight_qdata": CODES, "_weight_scale": SCALES, "_weight_zero_point": ZERO_POINTS}
_QUANTO = {"weight._data": CODES, "weight._data._data": CODES, "weight._scale": SCALES, "weight._shift": ZERO_POINTS}
_HQQ = {"W_q": CODES, "scale": SCALES, "zero": ZERO_POINTS}
_BYTES = ("I8", "U8")


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module that one of the three saved."""
    if "_weight_qdata" in module.tensors:
        return _torchao(module)
    if "weight._data" in module.tensors or "weight._data._data" in module.tensors:
        return _quanto(module)
    if "W_q" in module.tensors:
        return _hqq(module)
    return None


def _torchao(module: StoredModule) -> QuantisedMatrix:
    faults, kind = faults_of(module), module.dtype("_weight_qdata")
    computed = kind == "I8"
    shape = matrix_sides(module.shape("_weight_qdata")) if computed else None
    block = None
    if require_scales(module, faults, "_weight_qdata", "_weight_scale") and shape:
        block = scale_block(module.shape("_weight_scale"), shape)
        if block is None:
            faults.misfit("_weight_scale", f"the matrix is {shape[0]}×{shape[1]}")
        zero_points = module.shape("_weight_zero_point")
        if "_weight_zero_point" in module.tensors and zero_points != module.shape("_weight_scale"):
            faults.misfit("_weight_zero_point", "the scales have another shape")
    return described(
        module,
        TORCHAO,
        _TORCHAO,
        faults,
        bits=8 if computed else None,
        block=block,
        shape=shape,
        symmetric="_weight_zero_point" not in module.tensors,
        uncomputed="" if computed else f"tieconv does not read torchao codes of type {shown(kind)}",
    )


def _quanto(module: StoredModule) -> QuantisedMatrix:
    faults = faults_of(module)
    packed = "weight._data._data" in module.tensors
    codes = "weight._data._data" if packed else "weight._data"
    whole = module.dtype(codes) in ("I8", "F8_E4M3", "F8_E5M2") and not packed
    shape = matrix_sides(module.shape(codes)) if whole else None
    block = None
    if require_scales(module, faults, codes, "weight._scale") and shape:
        block = scale_block(module.shape("weight._scale"), shape)
        if block is None:
            faults.misfit("weight._scale", f"the matrix is {shape[0]}×{shape[1]}")
    if packed and "weight._shift" not in module.tensors:
        reason = f"{shown(module.tensors[codes].name)} has no weight._shift, which packed codes need"
        faults.missing(FaultKind.NO_ZERO_POINTS, reason, [codes])
    return described(
        module,
        QUANTO,
        _QUANTO,
        faults,
        bits=8 if whole else None,
        block=block,
        shape=shape,
        symmetric=not packed,
        uncomputed="" if whole else "tieconv does not read packed codes of quanto",
    )


def _hqq(module: StoredModule) -> QuantisedMatrix:
    faults = faults_of(module)
    require_scales(module, faults, "W_q", "scale")
    return described(
        module,
        HQQ,
        _HQQ,
        faults,
        bits=module.choice.bits,
        block=None,
        shape=None,
        uncomputed="tieconv does not read the codes of HQQ",
    )
