"""Recognise the formats of compressed-tensors 0.20. Source: its `compressors/` and `config/base.py`."""

from __future__ import annotations

import struct

from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.inspection.quantised.schemes.interface import (
    CODES,
    GLOBAL_SCALE,
    GROUP_INDEX,
    SCALES,
    SHAPE,
    ZERO_POINTS,
    Faults,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
    scale_block,
    words,
    words_with_gaps,
)
from tieconv.text import shown

PACKED, PLAIN, NVFP4, MXFP4 = (
    "compressed-tensors pack-quantized",
    "compressed-tensors",
    "compressed-tensors nvfp4-pack",
    "compressed-tensors mxfp4-pack",
)
_ROLES = {
    "weight_packed": CODES,
    "weight": CODES,
    "weight_scale": SCALES,
    "weight_zero_point": ZERO_POINTS,
    "weight_global_scale": GLOBAL_SCALE,
    "weight_g_idx": GROUP_INDEX,
    "weight_shape": SHAPE,
}
_FLOAT_CODES = ("F8_E4M3", "F8_E5M2")
_MOST_BITS = 8


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with `weight_packed`, or with 8-bit codes beside `weight_scale`."""
    packed = module.dtype("weight_packed")
    if packed == "U8":
        return _four_bit_floats(module)
    if packed:
        return _packed(module)
    codes = module.dtype("weight") in ("I8", *_FLOAT_CODES)
    if codes and ("weight_scale" in module.tensors or module.method == "compressed-tensors"):
        return _plain(module)
    return None


def _packed(module: StoredModule) -> QuantisedMatrix:
    faults = faults_of(module)
    sides = matrix_sides(module.shape("weight_packed"))
    scaled = require_scales(module, faults, "weight_packed", "weight_scale")
    if sides is None:
        faults.misfit("weight_packed", "codes are a matrix")
        return described(module, PACKED, _ROLES, faults, bits=module.choice.bits, block=None, shape=None)
    rows, packed = sides
    columns = _columns(module, packed)
    bits = module.choice.bits or _bits(columns, packed)
    shape = (rows, columns) if columns else None
    if shape is not None and bits is not None:
        _check_words(faults, packed, shape[1], bits)
    block = _check_scales(module, faults, shape) if scaled and shape else None
    _check_shape(module, faults, shape)
    symmetric = _check_zero_points(module, faults, shape, block, bits)
    uncomputed = _uncomputed(module, bits, shape, packed)
    return described(
        module, PACKED, _ROLES, faults, bits=bits, block=block, shape=shape, symmetric=symmetric, uncomputed=uncomputed
    )


def _columns(module: StoredModule, packed: int) -> int | None:
    """Return the width of the matrix: `weight_shape` says it, else groups, the config or the packed width."""
    stated = stated_shape(module)
    if stated is not None:
        return stated[1]
    scales, group, bits = module.shape("weight_scale"), module.choice.group, module.choice.bits
    if len(scales) == 2 and scales[1] > 1 and group:
        return min(scales[1] * group, packed * 32 // bits) if bits else scales[1] * group
    if bits and (module.width is None or packed not in _packed_widths(module.width, bits)):
        return packed * 32 // bits
    return module.width


def stated_shape(module: StoredModule) -> tuple[int, int] | None:
    """Return the two numbers of `weight_shape`, if its bytes may be read and are two lengths."""
    record = module.tensors.get("weight_shape")
    layout = {"I64": "<2q", "I32": "<2i"}.get(record.dtype, "") if record else ""
    if record is None or record.shape != (2,) or not layout:
        return None
    content = module.content(record)
    if content is None or len(content) != struct.calcsize(layout):
        return None
    rows, columns = struct.unpack(layout, content)
    return (rows, columns) if 0 < rows < 1 << 40 and 0 < columns < 1 << 40 else None


def _bits(columns: int | None, packed: int) -> int | None:
    """Return the width of codes that fill the words without a gap, if only one width does."""
    widths = range(1, _MOST_BITS + 1) if columns else ()
    fitting = [bits for bits in widths if packed in _packed_widths(columns or 0, bits)]
    return fitting[0] if len(fitting) == 1 else None


def _packed_widths(columns: int, bits: int) -> tuple[int, int]:
    return words(columns, bits), words_with_gaps(columns, bits)


def _check_words(faults: Faults, packed: int, columns: int, bits: int) -> None:
    if packed not in _packed_widths(columns, bits):
        reason = f"{columns:,} codes of {bits} bits take {words(columns, bits):,} words a row"
        faults.misfit("weight_packed", reason)


def _check_scales(module: StoredModule, faults: Faults, shape: tuple[int, int]) -> tuple[int, int] | None:
    group = module.choice.group
    declared = module.choice.block or ((1, group) if group and len(module.shape("weight_scale")) == 2 else None)
    if declared is not None and module.shape("weight_scale")[1:] == (1,) and not module.choice.block:
        declared = None
    block = scale_block(module.shape("weight_scale"), shape, declared)
    if block is None:
        faults.misfit("weight_scale", f"the matrix is {shape[0]}×{shape[1]}")
    return block


def _check_shape(module: StoredModule, faults: Faults, shape: tuple[int, int] | None) -> None:
    stated = stated_shape(module)
    if "weight_shape" in module.tensors and module.shape("weight_shape") != (2,):
        faults.misfit("weight_shape", "the shape of a matrix has two numbers")
    elif stated is not None and shape is not None and stated != shape:
        faults.misfit("weight_packed", f"weight_shape says {stated[0]} rows")


def _check_zero_points(
    module: StoredModule,
    faults: Faults,
    shape: tuple[int, int] | None,
    block: tuple[int, int] | None,
    bits: int | None,
) -> bool | None:
    """Return whether the codes have no zero points. Add a fault if the config needs some, or for a wrong shape."""
    if "weight_zero_point" not in module.tensors:
        if module.choice.symmetric is False:
            reason = f"{shown_weight(module)} has no weight_zero_point, but the config says asymmetric"
            faults.missing(FaultKind.NO_ZERO_POINTS, reason, ["weight_packed", "weight"])
            return False
        return True
    if shape is None or block is None or bits is None:
        return False
    grid = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    packed = {(size, grid[1]) for size in _packed_widths(grid[0], bits)}
    stored = module.shape("weight_zero_point")
    fits = stored in packed if module.dtype("weight_zero_point") == "I32" else stored in (grid, grid[:1], (1,))
    if not fits:
        faults.misfit("weight_zero_point", f"the matrix has {grid[0]}×{grid[1]} groups")
    return False


def shown_weight(module: StoredModule) -> str:
    """Return the escaped name of the tensor with the codes."""
    return shown(module.tensors["weight_packed" if "weight_packed" in module.tensors else "weight"].name)


def _uncomputed(module: StoredModule, bits: int | None, shape: tuple[int, int] | None, packed: int) -> str:
    if bits is None or shape is None:
        return "neither the config nor the parts tell the width of a code"
    if bits > _MOST_BITS:
        return f"tieconv does not read codes of {bits} bits"
    dense, with_gaps = _packed_widths(shape[1], bits)
    if 32 % bits and dense == with_gaps == packed:
        return f"{shape[1]} codes of {bits} bits fit two packings, and the config does not say which"
    zero_points = module.tensors.get("weight_zero_point")
    if zero_points is not None and 32 % bits and packed != dense:
        return f"tieconv does not read packed zero points of {bits} bits with gaps"
    return ""


def _plain(module: StoredModule) -> QuantisedMatrix:
    """Return a matrix whose codes are whole bytes: int-quantized, float-quantized, naive-quantized."""
    faults = faults_of(module)
    shape = matrix_sides(module.shape("weight"))
    scaled = require_scales(module, faults, "weight", "weight_scale")
    block = _check_scales(module, faults, shape) if scaled and shape else None
    kind = "float-quantized" if module.dtype("weight") in _FLOAT_CODES else "int-quantized"
    symmetric = _check_zero_points(module, faults, shape, block, 8)
    uncomputed = "" if shape else "the codes are not a matrix"
    if module.dtype("weight_zero_point") == "I32":
        uncomputed = "its zero points are packed"
    bits = module.choice.bits or 8
    return described(
        module,
        f"{PLAIN} {kind}",
        _ROLES,
        faults,
        bits=bits,
        block=block,
        shape=shape,
        symmetric=symmetric,
        uncomputed=uncomputed,
    )


def _four_bit_floats(module: StoredModule) -> QuantisedMatrix:
    faults = faults_of(module)
    microscaling = module.dtype("weight_scale") in ("U8", "F8_E8M0") or "mxfp4" in module.choice.layout
    scheme, group = (MXFP4, 32) if microscaling else (NVFP4, 16)
    sides = matrix_sides(module.shape("weight_packed"))
    shape = (sides[0], sides[1] * 2) if sides else None
    block = None
    if require_scales(module, faults, "weight_packed", "weight_scale") and shape:
        block = scale_block(module.shape("weight_scale"), shape, (1, group))
        if block is None:
            faults.misfit("weight_scale", f"{shape[0]}×{shape[1]} codes in groups of {group} need another shape")
    if scheme == NVFP4 and "weight_global_scale" not in module.tensors:
        reason = f"{shown_weight(module)} has no weight_global_scale"
        faults.missing(FaultKind.NO_SCALES, reason, ["weight_packed"])
    return described(module, scheme, _ROLES, faults, bits=4, block=block, shape=shape, symmetric=True)
