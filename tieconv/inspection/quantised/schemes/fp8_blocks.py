"""Recognise FP8 with `weight_scale_inv`, as DeepSeek-V3 stores it. Source: transformers 5.23, finegrained_fp8."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    SCALES,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
    scale_block,
)

SCHEME = "FP8 with weight_scale_inv"
_ROLES = {"weight": CODES, "weight_scale_inv": SCALES}
_CODES = ("F8_E4M3", "F8_E5M2")


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with 8-bit floats and `weight_scale_inv`; the scale multiplies."""
    declared = module.method == "fp8" and "weight_scale" not in module.tensors
    if module.dtype("weight") not in _CODES or not ("weight_scale_inv" in module.tensors or declared):
        return None
    faults, shape = faults_of(module), matrix_sides(module.shape("weight"))
    block = None
    if require_scales(module, faults, "weight", "weight_scale_inv") and shape:
        scales = module.shape("weight_scale_inv")
        block = scale_block(scales, shape, module.choice.block if len(scales) == 2 else None)
        if block is None:
            faults.misfit("weight_scale_inv", f"the matrix is {shape[0]}×{shape[1]}{_declared(module.choice.block)}")
    uncomputed = "" if shape else "the codes are not a matrix"
    return described(
        module, SCHEME, _ROLES, faults, bits=8, block=block, shape=shape, symmetric=True, uncomputed=uncomputed
    )


def _declared(block: tuple[int, int] | None) -> str:
    return f" and the config's block is {block[0]}×{block[1]}" if block else ""
