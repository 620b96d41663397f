"""Recognise ModelOpt's NVFP4 and FP8. Source: its `modelopt/torch/export/unified_export_hf.py`."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    GLOBAL_SCALE,
    SCALES,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
    scale_block,
)
from tieconv.text import shown

NVFP4, FP8 = "ModelOpt NVFP4", "ModelOpt FP8"
INPUT_SCALE = "input_scale"
_ROLES = {"weight": CODES, "weight_scale": SCALES, "weight_scale_2": GLOBAL_SCALE, INPUT_SCALE: INPUT_SCALE}
_GROUP = 16


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with codes of 4 bits and `weight_scale_2`, or with FP8 codes of ModelOpt."""
    if module.dtype("weight") == "U8" and ("weight_scale_2" in module.tensors or module.method == "modelopt"):
        # Its AWQ stores integers of 4 bits in bytes too, with float scales.
        absent = "weight_scale" not in module.tensors and module.choice.layout in ("", "NVFP4")
        return _nvfp4(module) if absent or module.dtype("weight_scale") == "F8_E4M3" else None
    return _fp8(module) if module.dtype("weight") == "F8_E4M3" and module.method == "modelopt" else None


def _nvfp4(module: StoredModule) -> QuantisedMatrix:
    faults, sides = faults_of(module), matrix_sides(module.shape("weight"))
    shape = (sides[0], sides[1] * 2) if sides else None
    block = None
    if require_scales(module, faults, "weight", "weight_scale") and shape:
        block = scale_block(module.shape("weight_scale"), shape, (1, _GROUP))
        if block is None:
            faults.misfit("weight_scale", f"{shape[0]}×{shape[1]} codes in groups of {_GROUP} need another shape")
    if "weight_scale_2" not in module.tensors:
        reason = f"{shown(module.tensors['weight'].name)} has no weight_scale_2"
        faults.missing(FaultKind.NO_SCALES, reason, ["weight"])
    uncomputed = "" if shape else "the codes are not a matrix"
    return described(
        module, NVFP4, _ROLES, faults, bits=4, block=block, shape=shape, symmetric=True, uncomputed=uncomputed
    )


def _fp8(module: StoredModule) -> QuantisedMatrix:
    faults, shape = faults_of(module), matrix_sides(module.shape("weight"))
    block = None
    if require_scales(module, faults, "weight", "weight_scale") and shape:
        block = scale_block(module.shape("weight_scale"), shape)
        if block is None:
            faults.misfit("weight_scale", f"the matrix is {shape[0]}×{shape[1]}")
    uncomputed = "" if shape else "the codes are not a matrix"
    return described(
        module, FP8, _ROLES, faults, bits=8, block=block, shape=shape, symmetric=True, uncomputed=uncomputed
    )
