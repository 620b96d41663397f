"""What a scheme sees of a module, and how it describes the matrix of the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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
    """Collect the faults of a module."""

    module: StoredModule
    entries: list[MatrixFault]

    def missing(self, kind: FaultKind, reason: str, leaves: Iterable[str]) -> None:
        """Add a fault about a part that is absent; the finding names the stored tensors of ``leaves``."""
        self.entries.append(MatrixFault(kind, reason, self._names(leaves)))

    def misfit(self, leaf: str, reason: str) -> None:
        """Add a fault about the shape of a part."""
        shape = "×".join(map(str, self.module.shape(leaf))) or "no dimension"
        name = shown(self.module.tensors[leaf].name)
        self.entries.append(MatrixFault(FaultKind.SHAPE, f"{name} is {shape}, but {reason}", self._names([leaf])))

    def _names(self, leaves: Iterable[str]) -> tuple[str, ...]:
        return tuple(self.module.tensors[leaf].name for leaf in leaves if leaf in self.module.tensors)


def faults_of(module: StoredModule) -> Faults:
    """Return an empty collection."""
    return Faults(module, [])


def require_scales(module: StoredModule, faults: Faults, codes: str, scales: str) -> bool:
    """Return whether the scales are stored; add a fault if they are not."""
    if scales in module.tensors:
        return True
    reason = f"{shown(module.tensors[codes].name)} has no {shown(scales)}"
    faults.missing(FaultKind.NO_SCALES, reason, [codes])
    return False


def described(
    module: StoredModule,
    scheme: str,
    roles: Mapping[str, str],
    faults: Faults,
    *,
    bits: int | None,
    block: tuple[int, int] | None,
    shape: tuple[int, int] | None,
    symmetric: bool | None = None,
    uncomputed: str = "",
) -> QuantisedMatrix:
    """Return the matrix; ``roles`` maps the ends of names to purposes."""
    parts = tuple(
        QuantisedPart(role, record.name, record.dtype, record.shape, record.nbytes)
        for leaf, role in roles.items()
        if (record := module.tensors.get(leaf)) is not None
    )
    return QuantisedMatrix(
        module.role,
        f"{module.name}.weight",
        scheme,
        bits,
        block,
        symmetric,
        shape,
        parts,
        module.choice,
        tuple(faults.entries),
        uncomputed,
    )


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


def words_with_gaps(count: int, bits: int) -> int:
    """Return how many 32-bit words hold ``count`` codes if no code crosses a word."""
    return -(-count // (32 // bits))
