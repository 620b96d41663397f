"""Recognise the four modes of MLX 0.32: affine, nvfp4, mxfp4 and mxfp8. Source: its `mlx.core.quantize`."""

from __future__ import annotations

from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    BIASES,
    CODES,
    SCALES,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
)
from tieconv.text import shown

_ROLES = {"weight": CODES, "scales": SCALES, "biases": BIASES}
FLOAT_MODES = {"nvfp4": (4, 16), "mxfp4": (4, 32), "mxfp8": (8, 32)}
"""The bits and the group of each mode without biases."""
_GROUPS = (16, 32, 64, 128)
_WIDTHS = (2, 3, 4, 5, 6, 8)


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with codes in 32-bit words beside `scales`."""
    if module.dtype("weight") != "U32" or ("scales" not in module.tensors and module.method != "mlx"):
        return None
    faults, sides = faults_of(module), matrix_sides(module.shape("weight"))
    mode = module.choice.layout or ("affine" if "biases" in module.tensors else "")
    bits, group = FLOAT_MODES.get(mode) or _numbers(module, sides)
    scaled = require_scales(module, faults, "weight", "scales")
    shape = (sides[0], sides[1] * 32 // bits) if sides and bits else None
    if scaled and shape and group:
        needed = shape[0], -(-shape[1] // group)
        if module.shape("scales") != needed:
            faults.misfit("scales", f"{shape[0]}×{shape[1]} codes in groups of {group} need {needed[0]}×{needed[1]}")
        if "biases" in module.tensors and module.shape("biases") != module.shape("scales"):
            faults.misfit("biases", "the scales have another shape")
    if scaled and mode == "affine" and "biases" not in module.tensors:
        name = shown(module.tensors["weight"].name)
        faults.missing(FaultKind.NO_ZERO_POINTS, f"{name} has no biases, but its mode is affine", ["weight"])
    return described(
        module,
        f"MLX {mode}" if mode else "MLX",
        _ROLES,
        faults,
        bits=bits,
        block=(1, group) if group else None,
        shape=shape,
        symmetric=mode != "affine",
        uncomputed=_uncomputed(mode, bits, group, sides),
    )


def _uncomputed(mode: str, bits: int | None, group: int | None, sides: tuple[int, int] | None) -> str:
    if sides is None:
        return "the codes are not a matrix"
    if mode not in ("affine", *FLOAT_MODES):
        return f"tieconv does not read the mode {shown(mode)}" if mode else "the config does not say which mode of MLX"
    if bits is None or group is None:
        return "neither the config nor the parts tell the width of a code"
    return "" if bits in _WIDTHS else f"tieconv does not read MLX codes of {bits} bits"


def _numbers(module: StoredModule, sides: tuple[int, int] | None) -> tuple[int | None, int | None]:
    """Return the bits and the group: the config says both, else the hidden size tells both."""
    bits, group = module.choice.bits, module.choice.group
    if bits and group:
        return bits, group
    scales = matrix_sides(module.shape("scales"))
    if sides is None or scales is None or not module.width:
        return bits, group
    told_bits, rest = divmod(sides[1] * 32, module.width)
    told_group = module.width // scales[1]
    fits = not rest and told_bits in _WIDTHS and told_group in _GROUPS
    return (told_bits, told_group) if fits else (bits, group)
