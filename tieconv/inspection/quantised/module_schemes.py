"""Recognise how libraries quantise the modules of a torch model, from names, types and shapes and from the config."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tieconv.checkpoint.quantised_matrix import BNB_STATES, FaultKind, QuantisedMatrix
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.strict_json import loads
from tieconv.inspection.quantised.block_schemes import (
    CODE_MAP,
    CODES,
    GLOBAL_SCALE,
    GROUP_INDEX,
    NESTED_MAP,
    NESTED_SCALES,
    SCALES,
    SHAPE,
    STATE,
    ZERO_POINTS,
    Faults,
    Sides,
    StoredModule,
    matrix_sides,
    scale_block,
    words,
)
from tieconv.text import shown

# Recognise GPTQ, versions 1 and 2. Source: GPTQModel 7.7, `nn_modules/qlinear/` and `utils/model.py`.

V1, V2, AWQ = "GPTQ v1", "GPTQ v2", "AWQ"
_GPTQ_ROLES = {"qweight": CODES, "scales": SCALES, "qzeros": ZERO_POINTS, "g_idx": GROUP_INDEX}
_WIDTHS = (2, 3, 4, 8)
_AWQ_BITS = 4


def recognise_awq(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with `qweight` that packs along the tokens."""
    if "qweight" not in module.tensors or not _is_awq(module):
        return None
    faults, sides = Faults(module), matrix_sides(module.shape("qweight"))
    per_word = 32 // _AWQ_BITS
    shape = (sides[1] * per_word, sides[0]) if sides else None
    if sides is None:
        faults.misfit("qweight", "codes are a matrix")
    block = _group(module, faults, shape)
    symmetric = _zero_points(module, faults, shape, block, _AWQ_BITS)
    bits = module.choice.bits or _AWQ_BITS
    uncomputed = "" if bits == _AWQ_BITS else f"tieconv does not read AWQ codes of {bits} bits"
    uncomputed = uncomputed or ("tieconv reads AWQ codes only with zero points" if symmetric else "")
    return faults.matrix(AWQ, _GPTQ_ROLES, bits, shape, block, symmetric=symmetric, uncomputed=uncomputed)


def _is_awq(module: StoredModule) -> bool:
    if module.method in ("awq", "gptq"):
        return module.method == "awq"
    codes, scales = matrix_sides(module.shape("qweight")), matrix_sides(module.shape("scales"))
    return codes is not None and scales is not None and codes[1] * 8 == scales[1] != codes[1]


def recognise_gptq(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with `qweight` that packs along the hidden size."""
    if "qweight" not in module.tensors:
        return None
    faults, sides = Faults(module), matrix_sides(module.shape("qweight"))
    if sides is None:
        faults.misfit("qweight", "codes are a matrix")
    bits = module.choice.bits or _bits(module, sides)
    shape = (sides[1], sides[0] * 32 // bits) if sides and bits and sides[0] * 32 % bits == 0 else None
    block = _group(module, faults, shape)
    symmetric = _zero_points(module, faults, shape, block, bits)
    if shape is not None:
        faults.check("g_idx", (shape[1],), f"the matrix has {shape[1]:,} columns")
    scheme, why = V2 if module.choice.layout == "gptq_v2" else V1, _uncomputed(module, bits, shape)
    return faults.matrix(scheme, _GPTQ_ROLES, bits, shape, block, symmetric=symmetric, uncomputed=why)


def _uncomputed(module: StoredModule, bits: int | None, shape: Sides | None) -> str:
    if bits is None or shape is None:
        return "neither the config nor the parts tell the width of a code"
    if bits not in _WIDTHS:
        return f"tieconv does not read GPTQ codes of {bits} bits"
    if "qzeros" not in module.tensors:
        return "tieconv reads GPTQ codes only with qzeros"
    layout = module.choice.layout
    return "" if layout in ("", "gptq", "gptq_v2") else f"tieconv does not read the GPTQ format {shown(layout)}"


def _bits(module: StoredModule, sides: Sides | None) -> int | None:
    """Return the width of a code that the number of columns tells."""
    index = module.shape("g_idx")
    columns = index[0] if len(index) == 1 else module.width
    fitting = [bits for bits in _WIDTHS if sides and columns and sides[0] * 32 == columns * bits]
    return fitting[0] if fitting else None


def _group(module: StoredModule, faults: Faults, shape: Sides | None) -> Sides | None:
    """Return the block of one scale. Scales are [groups, V]."""
    if not faults.scaled("qweight", "scales") or shape is None:
        return None
    sides, (rows, columns) = matrix_sides(module.shape("scales")), shape
    group = module.choice.group or (-(-columns // sides[0]) if sides else columns)
    group = min(group, columns)
    if sides is None or sides[1] != rows or sides[0] != -(-columns // group):
        faults.misfit("scales", f"{rows}×{columns} codes in groups of {group} need {-(-columns // group)}×{rows}")
        return None
    return 1, group


def _zero_points(
    module: StoredModule, faults: Faults, shape: Sides | None, block: Sides | None, bits: int | None
) -> bool | None:
    """Return whether the config says symmetric; add a fault if zero points are missing or have another shape."""
    if "qzeros" not in module.tensors:
        if module.choice.symmetric is False:
            faults.lacks("qweight", "qzeros, but the config says asymmetric", FaultKind.NO_ZERO_POINTS)
        return module.choice.symmetric if module.choice.symmetric is not None else True
    if shape is not None and block is not None and bits is not None:
        needed = -(-shape[1] // block[1]), -(-shape[0] * bits // 32)
        faults.check("qzeros", needed, f"the scales need {needed[0]}×{needed[1]}")
    return module.choice.symmetric


# Recognise the formats of compressed-tensors 0.20. Source: its `compressors/` and `config/base.py`.

PLAIN = "compressed-tensors"
PACKED, NVFP4, MXFP4 = f"{PLAIN} pack-quantized", f"{PLAIN} nvfp4-pack", f"{PLAIN} mxfp4-pack"
_COMPRESSED_TENSORS_ROLES = {
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


def recognise_compressed_tensors(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with `weight_packed`, or with 8-bit codes beside `weight_scale`."""
    packed = module.dtype("weight_packed")
    if packed == "U8":
        microscaling = module.dtype("weight_scale") in ("U8", "F8_E8M0") or "mxfp4" in module.choice.layout
        scheme, group, scale = (MXFP4, 32, "") if microscaling else (NVFP4, 16, "weight_global_scale")
        return _pairs_in_bytes(module, scheme, _COMPRESSED_TENSORS_ROLES, "weight_packed", group, scale, uncomputed="")
    if packed:
        return _packed(module)
    codes = module.dtype("weight") in ("I8", *_FLOAT_CODES)
    if codes and ("weight_scale" in module.tensors or module.method == "compressed-tensors"):
        return _plain(module)
    return None


def _packed(module: StoredModule) -> QuantisedMatrix:
    faults = Faults(module)
    sides = matrix_sides(module.shape("weight_packed"))
    scaled = faults.scaled("weight_packed", "weight_scale")
    if sides is None:
        faults.misfit("weight_packed", "codes are a matrix")
        return faults.matrix(PACKED, _COMPRESSED_TENSORS_ROLES, module.choice.bits, None, None, uncomputed="")
    rows, packed = sides
    columns = _columns(module, packed)
    bits = module.choice.bits or _packed_bits(columns, packed)
    shape = (rows, columns) if columns else None
    if shape is not None and bits is not None and packed not in _packed_widths(shape[1], bits):
        needed = f"{shape[1]:,} codes of {bits} bits take {words(shape[1], bits):,} words a row"
        faults.misfit("weight_packed", needed)
    block = _check_scales(module, faults, shape) if scaled and shape else None
    stated = stated_shape(module)
    if "weight_shape" in module.tensors and module.shape("weight_shape") != (2,):
        faults.misfit("weight_shape", "the shape of a matrix has two numbers")
    elif stated is not None and shape is not None and stated != shape:
        faults.misfit("weight_packed", f"weight_shape says {stated[0]} rows")
    symmetric, why = (
        _check_zero_points(module, faults, shape, block, bits),
        _packing_unknown(module, bits, shape, packed),
    )
    return faults.matrix(PACKED, _COMPRESSED_TENSORS_ROLES, bits, shape, block, symmetric=symmetric, uncomputed=why)


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


def stated_shape(module: StoredModule) -> Sides | None:
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


def _packed_bits(columns: int | None, packed: int) -> int | None:
    """Return the width of codes that fill the words without a gap, if only one width does."""
    widths = range(1, _MOST_BITS + 1) if columns else ()
    fitting = [bits for bits in widths if packed in _packed_widths(columns or 0, bits)]
    return fitting[0] if len(fitting) == 1 else None


def _packed_widths(columns: int, bits: int) -> tuple[int, int]:
    # The second number is that of words if no code crosses a word.
    return words(columns, bits), -(-columns // (32 // bits))


def _check_scales(module: StoredModule, faults: Faults, shape: tuple[int, int]) -> Sides | None:
    group = module.choice.group
    declared = module.choice.block or ((1, group) if group and len(module.shape("weight_scale")) == 2 else None)
    if declared is not None and module.shape("weight_scale")[1:] == (1,) and not module.choice.block:
        declared = None
    block = scale_block(module.shape("weight_scale"), shape, declared)
    if block is None:
        faults.misfit("weight_scale", f"the matrix is {shape[0]}×{shape[1]}")
    return block


def _check_zero_points(
    module: StoredModule, faults: Faults, shape: Sides | None, block: Sides | None, bits: int | None
) -> bool | None:
    """Return whether the codes have no zero points. Add a fault if the config needs some, or for a wrong shape."""
    if "weight_zero_point" not in module.tensors:
        if module.choice.symmetric is False:
            codes = "weight_packed" if "weight_packed" in module.tensors else "weight"
            faults.lacks(codes, "weight_zero_point, but the config says asymmetric", FaultKind.NO_ZERO_POINTS)
        return module.choice.symmetric is not False
    if shape is None or block is None or bits is None:
        return False
    grid = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    packed = {(size, grid[1]) for size in _packed_widths(grid[0], bits)}
    stored = module.shape("weight_zero_point")
    fits = stored in packed if module.dtype("weight_zero_point") == "I32" else stored in (grid, grid[:1], (1,))
    if not fits:
        faults.misfit("weight_zero_point", f"the matrix has {grid[0]}×{grid[1]} groups")
    return False


def _packing_unknown(module: StoredModule, bits: int | None, shape: Sides | None, packed: int) -> str:
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
    faults = Faults(module)
    shape = matrix_sides(module.shape("weight"))
    scaled = faults.scaled("weight", "weight_scale")
    block = _check_scales(module, faults, shape) if scaled and shape else None
    kind = "float-quantized" if module.dtype("weight") in _FLOAT_CODES else "int-quantized"
    scheme, bits = f"{PLAIN} {kind}", module.choice.bits or 8
    symmetric = _check_zero_points(module, faults, shape, block, 8)
    why = "its zero points are packed" if module.dtype("weight_zero_point") == "I32" else None
    return faults.matrix(scheme, _COMPRESSED_TENSORS_ROLES, bits, shape, block, symmetric=symmetric, uncomputed=why)


def _pairs_in_bytes(
    module: StoredModule,
    scheme: str,
    roles: Mapping[str, str],
    codes: str,
    group: int,
    global_scale: str,
    *,
    uncomputed: str | None = None,
) -> QuantisedMatrix:
    """Return a matrix whose bytes hold two codes each. One scale covers ``group`` codes of a row."""
    faults, sides = Faults(module), matrix_sides(module.shape(codes))
    shape = (sides[0], sides[1] * 2) if sides else None
    reason = f"{shape[0]}×{shape[1]} codes in groups of {group} need another shape" if shape else ""
    block = faults.block(codes, "weight_scale", shape, (1, group), reason)
    if global_scale and global_scale not in module.tensors:
        faults.lacks(codes, global_scale)
    return faults.matrix(scheme, roles, 4, shape, block, symmetric=True, uncomputed=uncomputed)


# Recognise bitsandbytes 0.50, 4 and 8 bit. Source: its `functional.py` (`QuantState`).

FOUR_BIT, EIGHT_BIT = "bitsandbytes 4 bit", "bitsandbytes 8 bit"
_BITSANDBYTES_ROLES = {
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
    try:
        values: Mapping[str, Any] = loads(content or b"", "quant_state", limit=_LONGEST, lenient=True)
    except UnreadableError:
        return None
    if not isinstance(shape := values.get("shape"), list):
        return None
    block, nested, offset = values.get("blocksize"), values.get("nested_blocksize", 0), values.get("nested_offset", 0.0)
    if len(shape) != 2 or not all(type(number) is int and 0 < number < 1 << 40 for number in (*shape, block)):
        return None
    usable = type(nested) is int and nested >= 0 and isinstance(offset, (int, float))
    return QuantState(int(block or 0), (shape[0], shape[1]), nested, float(offset)) if usable else None


def recognise_bitsandbytes(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with a `quant_state`, an `absmax` or an `SCB`."""
    codes = module.dtype("weight")
    if any(leaf in module.tensors for leaf in (*BNB_STATES, "weight.absmax", "weight.quant_map")) and codes:
        return _four_bit(module)
    if codes == "I8" and ("SCB" in module.tensors or (module.choice.bits == 8 and module.method == "bitsandbytes")):
        faults = Faults(module)
        shape = matrix_sides(module.shape("weight"))
        scaled = faults.scaled("weight", "SCB")
        if scaled and shape and module.shape("SCB") not in ((shape[0],), (shape[0], 1)):
            faults.misfit("SCB", f"the matrix has {shape[0]:,} rows")
        block = (1, shape[1]) if shape else None
        layout = module.content(module.tensors["weight_format"]) if "weight_format" in module.tensors else b"\0"
        # Old releases also wrote the layouts of GPU kernels.
        why = "its weight_format is not that of rows" if shape and layout != b"\0" else None
        return faults.matrix(EIGHT_BIT, _BITSANDBYTES_ROLES, 8, shape, block, symmetric=True, uncomputed=why)
    return None


def _four_bit(module: StoredModule) -> QuantisedMatrix:
    faults = Faults(module)
    record = next((module.tensors[leaf] for leaf in BNB_STATES if leaf in module.tensors), None)
    state = quant_state(module.content(record)) if record is not None and record.nbytes <= _LONGEST else None
    scaled = faults.scaled("weight", "weight.absmax")
    if scaled and record is None:
        faults.lacks("weight", "quant_state")
    if scaled and "weight.quant_map" not in module.tensors:
        faults.lacks("weight", "weight.quant_map")
    if state is not None:
        elements = state.shape[0] * state.shape[1]
        if module.tensors["weight"].nbytes != -(-elements // 2):
            faults.misfit("weight", f"quant_state says {state.shape[0]}×{state.shape[1]} codes of 4 bits")
        blocks = -(-elements // state.block)
        nested_blocks = -(-blocks // state.nested_block) if state.nested_block else 0
        faults.check("weight.absmax", (blocks,), f"the codes have {blocks:,} blocks")
        faults.check("weight.quant_map", (16,), "4 bits have 16 codes")
        faults.check("weight.nested_quant_map", (256,), "8 bits have 256 codes")
        faults.check("weight.nested_absmax", (nested_blocks,), f"the scales have {nested_blocks:,} blocks")
        nested = {"weight.nested_absmax", "weight.nested_quant_map"} <= module.tensors.keys()
        if module.dtype("weight.absmax") == "U8" and not nested:
            reason = "the absmax has no nested_absmax or nested_quant_map"
            faults.missing(FaultKind.NO_SCALES, reason, ["weight.absmax"])
    shape, block = (state.shape, (1, state.block)) if state else (None, None)
    why = "" if state else "its quant_state was not read"
    return faults.matrix(FOUR_BIT, _BITSANDBYTES_ROLES, 4, shape, block, symmetric=True, uncomputed=why)


# Recognise ModelOpt's NVFP4 and FP8. Source: its `modelopt/torch/export/unified_export_hf.py`.

MODELOPT_NVFP4, FP8 = "ModelOpt NVFP4", "ModelOpt FP8"
INPUT_SCALE = "input_scale"
_MODELOPT_ROLES = {"weight": CODES, "weight_scale": SCALES, "weight_scale_2": GLOBAL_SCALE, INPUT_SCALE: INPUT_SCALE}


def recognise_modelopt(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with codes of 4 bits and `weight_scale_2`, or with FP8 codes of ModelOpt."""
    if module.dtype("weight") == "U8" and ("weight_scale_2" in module.tensors or module.method == "modelopt"):
        # Its AWQ stores integers of 4 bits in bytes too, with float scales.
        absent = "weight_scale" not in module.tensors and module.choice.layout in ("", "NVFP4")
        if not absent and module.dtype("weight_scale") != "F8_E4M3":
            return None
        return _pairs_in_bytes(module, MODELOPT_NVFP4, _MODELOPT_ROLES, "weight", 16, "weight_scale_2")
    if module.dtype("weight") != "F8_E4M3" or module.method != "modelopt":
        return None
    faults, shape = Faults(module), matrix_sides(module.shape("weight"))
    block = faults.block("weight", "weight_scale", shape)
    return faults.matrix(FP8, _MODELOPT_ROLES, 8, shape, block, symmetric=True)


# Recognise FP8 with `weight_scale_inv`, as DeepSeek-V3 stores it. Source: transformers 5.23, finegrained_fp8.

SCHEME = "FP8 with weight_scale_inv"


def recognise_fp8_blocks(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module with 8-bit floats and `weight_scale_inv`; the scale multiplies."""
    named = module.method == "fp8" and "weight_scale" not in module.tensors
    if module.dtype("weight") not in _FLOAT_CODES or not ("weight_scale_inv" in module.tensors or named):
        return None
    faults, shape = Faults(module), matrix_sides(module.shape("weight"))
    declared = module.choice.block
    says = f" and the config's block is {declared[0]}×{declared[1]}" if declared else ""
    reason = f"the matrix is {shape[0]}×{shape[1]}{says}" if shape else ""
    grid = declared if len(module.shape("weight_scale_inv")) == 2 else None
    block = faults.block("weight", "weight_scale_inv", shape, grid, reason)
    return faults.matrix(SCHEME, {"weight": CODES, "weight_scale_inv": SCALES}, 8, shape, block, symmetric=True)


TORCHAO, QUANTO, HQQ = "torchao", "quanto", "HQQ"
_TORCHAO = {"_weight_qdata": CODES, "_weight_scale": SCALES, "_weight_zero_point": ZERO_POINTS}
_QUANTO = {"weight._data": CODES, "weight._data._data": CODES, "weight._scale": SCALES, "weight._shift": ZERO_POINTS}
_HQQ = {"W_q": CODES, "scale": SCALES, "zero": ZERO_POINTS}
_BYTES = ("I8", "U8")


def recognise_tensor_subclasses(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a module that one of the three saved."""
    if "_weight_qdata" in module.tensors:
        return _torchao(module)
    if "weight._data" in module.tensors or "weight._data._data" in module.tensors:
        return _quanto(module)
    if "W_q" in module.tensors:
        faults = Faults(module)
        faults.scaled("W_q", "scale")
        why = "tieconv does not read the codes of HQQ"
        return faults.matrix(HQQ, _HQQ, module.choice.bits, None, None, uncomputed=why)
    return None


def _torchao(module: StoredModule) -> QuantisedMatrix:
    faults, kind = Faults(module), module.dtype("_weight_qdata")
    computed = kind == "I8"
    shape = matrix_sides(module.shape("_weight_qdata")) if computed else None
    block = faults.block("_weight_qdata", "_weight_scale", shape)
    if shape and "_weight_scale" in module.tensors:
        faults.check("_weight_zero_point", module.shape("_weight_scale"), "the scales have another shape")
    bits, symmetric = 8 if computed else None, "_weight_zero_point" not in module.tensors
    why = "" if computed else f"tieconv does not read torchao codes of type {shown(kind)}"
    return faults.matrix(TORCHAO, _TORCHAO, bits, shape, block, symmetric=symmetric, uncomputed=why)


def _quanto(module: StoredModule) -> QuantisedMatrix:
    faults = Faults(module)
    packed = "weight._data._data" in module.tensors
    codes = "weight._data._data" if packed else "weight._data"
    whole = module.dtype(codes) in ("I8", "F8_E4M3", "F8_E5M2") and not packed
    shape = matrix_sides(module.shape(codes)) if whole else None
    block = faults.block(codes, "weight._scale", shape)
    if packed and "weight._shift" not in module.tensors:
        faults.lacks(codes, "weight._shift, which packed codes need", FaultKind.NO_ZERO_POINTS)
    bits, why = (8, "") if whole else (None, "tieconv does not read packed codes of quanto")
    return faults.matrix(QUANTO, _QUANTO, bits, shape, block, symmetric=not packed, uncomputed=why)
