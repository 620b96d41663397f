"""Recognise the block types of ggml, MLX and ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.graph_structure import QuantisedRead
from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix, QuantisedPart
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.quantised.scheme_interface import (
    BIASES,
    CODES,
    GLOBAL_SCALE,
    SCALES,
    UNDECIDED,
    ZERO_POINTS,
    StoredModule,
    described,
    faults_of,
    matrix_sides,
    require_scales,
)
from tieconv.text import shown

# Recognise the block types of ggml. A tensor holds codes and scales together. Source: gguf 0.19.


TYPES = {
    "Q4_0": (4, 32), "Q4_1": (4, 32), "Q5_0": (5, 32), "Q5_1": (5, 32), "Q8_0": (8, 32), "Q8_1": (8, 32),
    "Q2_K": (2, 16), "Q3_K": (3, 16), "Q4_K": (4, 32), "Q5_K": (5, 32), "Q6_K": (6, 16), "Q8_K": (8, 256),
    "IQ1_S": (1, 32), "IQ1_M": (1, 16), "IQ2_XXS": (2, 32), "IQ2_XS": (2, 16), "IQ2_S": (2, 16),
    "IQ3_XXS": (3, 32), "IQ3_S": (3, 32), "IQ4_NL": (4, 32), "IQ4_XS": (4, 32),
    "TQ1_0": (1, 256), "TQ2_0": (2, 256), "MXFP4": (4, 32), "NVFP4": (4, 16), "Q1_0": (1, 128),
}  # fmt: skip
"""The bits of a code and the weights of the smallest group, by ggml type."""

COMPUTED = frozenset({
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
})  # fmt: skip
"""The types whose values tieconv computes."""

_GGML_BLOCKS_ROLES = {"weight": CODES, "scale": GLOBAL_SCALE}


def recognise_ggml_blocks(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a tensor of a quantised ggml type."""
    kind = module.dtype("weight")
    if kind not in TYPES:
        return None
    bits, group = TYPES[kind]
    shape = matrix_sides(module.shape("weight"))
    uncomputed = "" if kind in COMPUTED else f"tieconv does not compute the values of {kind}"
    uncomputed = "" if not uncomputed and shape else uncomputed or "the tensor is not a matrix"
    symmetric = kind not in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
    return described(
        module,
        f"ggml {kind}",
        _GGML_BLOCKS_ROLES,
        faults_of(module),
        bits=bits,
        block=(1, group),
        shape=shape,
        symmetric=symmetric,
        uncomputed=uncomputed,
    )


# Recognise the four modes of MLX 0.32: affine, nvfp4, mxfp4 and mxfp8. Source: its `mlx.core.quantize`.


_MLX_MODES_ROLES = {"weight": CODES, "scales": SCALES, "biases": BIASES}
FLOAT_MODES = {"nvfp4": (4, 16), "mxfp4": (4, 32), "mxfp8": (8, 32)}
"""The bits and the group of each mode without biases."""
_GROUPS = (16, 32, 64, 128)
_WIDTHS = (2, 3, 4, 5, 6, 8)


def recognise_mlx_modes(module: StoredModule) -> QuantisedMatrix | None:
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
        _MLX_MODES_ROLES,
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


# Describe the matrices of MatMulNBits and GatherBlockQuantized. Source: the operators of ONNX Runtime 1.32.


SCHEME = "ONNX blocks"
_PURPOSES = (CODES, SCALES, ZERO_POINTS)
_BLOCK_WIDTHS = (2, 4, 8)


def describe(read: QuantisedRead, tensors: Mapping[str, TensorRecord], width: int | None) -> QuantisedMatrix:
    """Return the matrix that an operator reads; ``width`` is the config's hidden size."""
    names = read.parts or (read.name,)
    records = [tensors[name] for name in names]
    parts = tuple(
        QuantisedPart(role, record.name, record.dtype, record.shape, record.nbytes)
        for role, record in zip(_PURPOSES, records, strict=False)
    )
    shape = _shape(read, records[0], width) if read.parts else None
    uncomputed = "" if shape else f"tieconv does not read the codes of {read.operator}"
    return QuantisedMatrix(
        read.role,
        read.name,
        SCHEME if read.parts else f"ONNX {read.operator}",
        (read.bits or None) if read.parts else None,
        (1, read.block) if read.parts and read.block else None,
        ZERO_POINTS not in {part.role for part in parts} if read.parts else None,
        shape,
        parts,
        UNDECIDED,
        (),
        uncomputed,
    )


def _shape(read: QuantisedRead, codes: TensorRecord, width: int | None) -> tuple[int, int] | None:
    """Return [V, H]. The last block of a row may be padded, and the hidden size says by how much."""
    if read.bits not in _BLOCK_WIDTHS or not codes.elements or read.block < 1:
        return None
    rows = codes.shape[0]
    columns = codes.elements // rows
    if codes.dtype == "U8":
        columns = columns * 8 // read.bits
    elif codes.dtype not in ("U4", "I4") or read.bits != 4 or columns % 2:  # two codes in each byte of a row
        return None
    padded = width is not None and columns - read.block < width <= columns
    return rows, width if padded and width is not None else columns
