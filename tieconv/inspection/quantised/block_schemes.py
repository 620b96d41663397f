"""What a scheme sees of a module, and how it describes the matrix of the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

from tieconv.checkpoint.graph_structure import QuantisedRead
from tieconv.checkpoint.quantised_matrix import (
    ConfigChoice,
    FaultKind,
    MatrixFault,
    QuantisedMatrix,
    QuantisedPart,
    Verdict,
)
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.text import shown

CODES, SCALES, ZERO_POINTS, BIASES = "codes", "scales", "zero_points", "biases"
GLOBAL_SCALE, GROUP_INDEX, SHAPE, CODE_MAP = "global_scale", "group_index", "shape", "code_map"
STATE, NESTED_SCALES, NESTED_MAP = "state", "nested_scales", "nested_code_map"
"""The purposes of parts."""

UNDECIDED = ConfigChoice(Verdict.UNDECIDED)
Sides = tuple[int, int]
"""Rows and columns."""


@record
class StoredModule:
    """The stored tensors of one module, by the ends of their names after the module's name.

    ``method`` is the quantisation method of the config. ``width`` is the model's hidden size, ``None`` if unknown.
    ``content`` returns the bytes of a small tensor, or ``None`` if no bytes may be read.
    """

    name: str
    role: str
    tensors: Mapping[str, TensorRecord]
    content: Callable[[TensorRecord], bytes | None]
    choice: ConfigChoice = UNDECIDED
    method: str = ""
    width: int | None = None

    def dtype(self, leaf: str) -> str:
        """Return the type of a tensor; empty if it is not stored."""
        return self.tensors[leaf].dtype if leaf in self.tensors else ""

    def shape(self, leaf: str) -> tuple[int, ...]:
        """Return the shape of a tensor; empty if it is not stored."""
        return self.tensors[leaf].shape if leaf in self.tensors else ()


@record
class Faults:
    """Collect the faults of a module, and describe its matrix with them."""

    module: StoredModule
    entries: list[MatrixFault] = field(default_factory=list)

    def missing(self, kind: FaultKind, reason: str, leaves: Iterable[str]) -> None:
        """Add a fault about a part that is absent; the finding names the stored tensors of ``leaves``."""
        self.entries.append(MatrixFault(kind, reason, self._names(leaves)))

    def lacks(self, codes: str, part: str, kind: FaultKind = FaultKind.NO_SCALES) -> None:
        """Add a fault about the ``part`` that the ``codes`` need."""
        self.missing(kind, f"{shown(self.module.tensors[codes].name)} has no {part}", [codes])

    def misfit(self, leaf: str, reason: str) -> None:
        """Add a fault about the shape of a part."""
        shape = "×".join(map(str, self.module.shape(leaf))) or "no dimension"
        name = shown(self.module.tensors[leaf].name)
        self.entries.append(MatrixFault(FaultKind.SHAPE, f"{name} is {shape}, but {reason}", self._names([leaf])))

    def check(self, leaf: str, shape: tuple[int, ...], reason: str) -> None:
        """Add a fault if a part is stored with another shape."""
        if leaf in self.module.tensors and self.module.shape(leaf) != shape:
            self.misfit(leaf, reason)

    def _names(self, leaves: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.module.tensors[leaf].name for leaf in leaves if leaf in self.module.tensors)

    def scaled(self, codes: str, scales: str) -> bool:
        """Return whether the scales are stored; add a fault if they are not."""
        if scales not in self.module.tensors:
            self.lacks(codes, shown(scales))
        return scales in self.module.tensors

    def block(
        self, codes: str, scales: str, shape: Sides | None, declared: Sides | None = None, reason: str = ""
    ) -> Sides | None:
        """Return the block of one scale as `scale_block`; add a fault if scales are missing or do not fit."""
        if not self.scaled(codes, scales) or shape is None:
            return None
        block = scale_block(self.module.shape(scales), shape, declared)
        if block is None:
            self.misfit(scales, reason or f"the matrix is {shape[0]}×{shape[1]}")
        return block

    def matrix(
        self,
        scheme: str,
        roles: Mapping[str, str],
        bits: int | None,
        shape: Sides | None,
        block: Sides | None,
        *,
        symmetric: bool | None = None,
        uncomputed: str | None = None,
    ) -> QuantisedMatrix:
        """Return the matrix; ``roles`` maps the ends of names to purposes.

        ``uncomputed`` says why its values are not read. Without it, they are read if the codes have a ``shape``.
        """
        module = self.module
        if uncomputed is None:
            uncomputed = "" if shape else "the codes are not a matrix"
        parts = (_part(role, module.tensors[leaf]) for leaf, role in roles.items() if leaf in module.tensors)
        name, faults = f"{module.name}.weight", tuple(self.entries)
        return QuantisedMatrix(
            module.role, name, scheme, bits, block, symmetric, shape, tuple(parts), module.choice, faults, uncomputed
        )


def _part(role: str, tensor: TensorRecord) -> QuantisedPart:
    return QuantisedPart(role, tensor.name, tensor.dtype, tensor.shape, tensor.nbytes)


def matrix_sides(shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Return the two sides of a matrix, ``None`` for any other shape or an empty one."""
    return (shape[0], shape[1]) if len(shape) == 2 and all(shape) else None


def scale_block(
    scales: tuple[int, ...], shape: tuple[int, int], declared: tuple[int, int] | None = None
) -> tuple[int, int] | None:
    """Return the rows and columns that one scale covers, or ``None`` if the scales do not fit the matrix.

    ``scales`` is the shape of the scales: one number, one for each row, or a grid. ``declared`` is the config's block.
    """
    rows, columns = shape
    if scales in ((), (1,), (1, 1)):
        return shape
    if scales == (rows,):
        return 1, columns
    sides = matrix_sides(scales)
    if sides is None or sides[0] > rows or sides[1] > columns:
        return None
    if declared is not None:
        return declared if sides == (-(-rows // declared[0]), -(-columns // declared[1])) else None
    block = -(-rows // sides[0]), -(-columns // sides[1])
    return block if sides == (-(-rows // block[0]), -(-columns // block[1])) else None


def words(count: int, bits: int) -> int:
    """Return how many 32-bit words hold ``count`` codes without a gap."""
    return -(-count * bits // 32)


# Recognise the block types of ggml, MLX and ONNX Runtime.

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


def recognise_ggml_blocks(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix of a tensor of a quantised ggml type."""
    kind = module.dtype("weight")
    if kind not in TYPES:
        return None
    bits, group = TYPES[kind]
    shape = matrix_sides(module.shape("weight"))
    uncomputed = "" if shape else "the tensor is not a matrix"
    if kind not in COMPUTED:
        uncomputed = f"tieconv does not compute the values of {kind}"
    symmetric = kind not in ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")
    scheme, block = f"ggml {kind}", (1, group)
    return Faults(module).matrix(
        scheme, {"weight": CODES, "scale": GLOBAL_SCALE}, bits, shape, block, symmetric=symmetric, uncomputed=uncomputed
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
    faults, sides = Faults(module), matrix_sides(module.shape("weight"))
    mode = module.choice.layout or ("affine" if "biases" in module.tensors else "")
    bits, group = FLOAT_MODES.get(mode) or _numbers(module, sides)
    scaled = faults.scaled("weight", "scales")
    shape = (sides[0], sides[1] * 32 // bits) if sides and bits else None
    if scaled and shape and group:
        needed = shape[0], -(-shape[1] // group)
        codes = f"{shape[0]}×{shape[1]} codes in groups of {group}"
        faults.check("scales", needed, f"{codes} need {needed[0]}×{needed[1]}")
        faults.check("biases", module.shape("scales"), "the scales have another shape")
    if scaled and mode == "affine" and "biases" not in module.tensors:
        faults.lacks("weight", "biases, but its mode is affine", FaultKind.NO_ZERO_POINTS)
    scheme, block = f"MLX {mode}" if mode else "MLX", (1, group) if group else None
    if sides is None:
        why = "the codes are not a matrix"
    elif mode not in ("affine", *FLOAT_MODES):
        why = f"tieconv does not read the mode {shown(mode)}" if mode else "the config does not say which mode of MLX"
    elif bits is None or group is None:
        why = "neither the config nor the parts tell the width of a code"
    else:
        why = "" if bits in _WIDTHS else f"tieconv does not read MLX codes of {bits} bits"
    return faults.matrix(scheme, _MLX_MODES_ROLES, bits, shape, block, symmetric=mode != "affine", uncomputed=why)


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
    parts = tuple(_part(role, tensor) for role, tensor in zip(_PURPOSES, records, strict=False))
    unread = f"tieconv does not read the codes of {read.operator}"
    if not read.parts:
        scheme = f"ONNX {read.operator}"
        return QuantisedMatrix(read.role, read.name, scheme, None, None, None, None, parts, UNDECIDED, (), unread)
    shape, block = _shape(read, records[0], width), (1, read.block) if read.block else None
    bits, symmetric = read.bits or None, ZERO_POINTS not in {part.role for part in parts}
    reason = "" if shape else unread
    return QuantisedMatrix(read.role, read.name, SCHEME, bits, block, symmetric, shape, parts, UNDECIDED, (), reason)


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
