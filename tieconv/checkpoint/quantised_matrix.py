"""A quantised embedding or head as one logical matrix, and what is proved about the two."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from tieconv.checkpoint.json_values import plain
from tieconv.checkpoint.value_type import record

EMBEDDING, HEAD = "embedding", "head"
"""The roles of a matrix."""


class Verdict(StrEnum):
    """What the config says about a module."""

    QUANTISED = "quantised"
    LEFT_OUT = "left_out"
    UNDECIDED = "undecided"


@record
class ConfigChoice:
    """What the config says about one module, and the ``entry`` that says it; ``None`` for a number that it lacks.

    ``layout`` is its word for how codes are stored: a format of compressed-tensors, ``gptq_v2``, a mode of MLX.
    ``block`` are the rows and columns that share a scale.
    """

    verdict: Verdict
    entry: str = ""
    bits: int | None = None
    group: int | None = None
    symmetric: bool | None = None
    layout: str = ""
    block: tuple[int, int] | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``config``."""
        return {
            "verdict": str(self.verdict),
            "entry": self.entry,
            "bits": self.bits,
            "group_size": self.group,
            "symmetric": self.symmetric,
            "layout": self.layout,
        }


@record
class DeclaredQuantisation:
    """The quantisation that the config describes: its method, its path, and what it says about the output head."""

    method: str
    path: str
    head: ConfigChoice

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``quantisation``."""
        return {"method": self.method, "config": self.path, "head": self.head.to_dict()}


@record
class QuantisedPart:
    """One stored tensor of a matrix and its purpose: ``codes``, ``scales``, ``zero_points`` and others."""

    role: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``parts``."""
        return {
            "part": self.role,
            "name": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "bytes": self.nbytes,
        }


class FaultKind(StrEnum):
    """How a matrix is broken."""

    NO_SCALES = "no_scales"
    NO_CODES = "no_codes"
    NO_ZERO_POINTS = "no_zero_points"
    SHAPE = "shape"


@record
class MatrixFault:
    """Why a matrix cannot be read, as a clause, and the tensors that it is about."""

    kind: FaultKind
    reason: str
    tensors: tuple[str, ...]


@record
class QuantisedMatrix:
    """The quantised input embedding or output head.

    ``name`` is the name that the unquantised matrix would have. ``shape`` is [V, H]. One scale covers ``block`` (rows,
    columns) elements. A number that neither the config nor the parts tell is ``None``. ``uncomputed`` says why tieconv
    does not compute the values; it is empty if tieconv does.
    """

    role: str
    name: str
    scheme: str
    bits: int | None
    block: tuple[int, int] | None
    symmetric: bool | None
    shape: tuple[int, int] | None
    parts: tuple[QuantisedPart, ...]
    config: ConfigChoice
    faults: tuple[MatrixFault, ...] = ()
    uncomputed: str = ""

    @property
    def nbytes(self) -> int:
        """The bytes of all parts."""
        return sum(part.nbytes for part in self.parts)

    @property
    def reads(self) -> bool:
        """Whether tieconv knows the values of the matrix."""
        return not self.faults and not self.uncomputed and self.shape is not None

    def part(self, role: str) -> QuantisedPart | None:
        """Return the part with this purpose."""
        return next((part for part in self.parts if part.role == role), None)

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``matrices``."""
        return {
            "role": self.role,
            "name": self.name,
            "scheme": self.scheme,
            "bits": self.bits,
            "group_size": self.block[1] if self.block else None,
            "block": list(self.block) if self.block else None,
            "symmetric": self.symmetric,
            "shape": list(self.shape) if self.shape else None,
            "bytes": self.nbytes,
            "parts": [part.to_dict() for part in self.parts],
            "config": self.config.to_dict(),
            "faults": [
                {"kind": str(fault.kind), "reason": fault.reason, "tensors": list(fault.tensors)}
                for fault in self.faults
            ],
            "uncomputed": self.uncomputed,
        }


class PairState(StrEnum):
    """How the head relates to the embedding if one of them is quantised, or both are."""

    EQUAL = "equal"  # the same scheme, and every part is bitwise equal
    EQUAL_VALUES = "equal_after_dequantising"  # other parts, every value equal
    COPY = "quantised_copy"  # each value of the float matrix rounds to its code
    CALIBRATED_COPY = "calibrated_copy"  # the error is small, but larger than rounding to nearest leaves
    DIFFERENT = "different"
    UNREAD = "unread"  # nothing is proved


@record
class ErrorFigures:
    """By how much the values of two matrices differ.

    ``largest`` is the largest difference. ``of_bound`` is the largest difference as a share of what rounding to nearest
    allows at that element. ``rms_steps`` is the rms of the difference in steps of the code. ``relative_rms`` =
    rms(difference) / rms(values). ``None`` if a figure is undefined or not finite.
    """

    largest: float | None
    of_bound: float | None
    rms_steps: float | None
    relative_rms: float | None
    rows_differing: int
    rows: int

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``figures``."""
        return {
            "max_abs": plain(self.largest),
            "of_bound": plain(self.of_bound),
            "rms_steps": plain(self.rms_steps),
            "relative_rms": plain(self.relative_rms),
            "rows_differing": self.rows_differing,
            "rows": self.rows,
        }


@record
class PairRelation:
    """The proved relation, or the ``reason`` why nothing is proved. ``differing`` are the parts that differ."""

    state: PairState
    reason: str = ""
    differing: tuple[str, ...] = ()
    figures: ErrorFigures | None = None
    bytes_wasted: int = 0

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``relation``."""
        return {
            "state": str(self.state),
            "reason": self.reason,
            "parts_differing": list(self.differing),
            "figures": self.figures.to_dict() if self.figures else None,
            "bytes_wasted": self.bytes_wasted,
        }


@record
class QuantisedTables:
    """The quantised embedding and head of a model, and the config that describes them.

    ``method`` is the quantisation method that the config names, ``path`` the place in the config; both may be empty.
    ``relation`` is ``None`` if only one of the two matrices is stored.
    """

    method: str
    path: str
    matrices: tuple[QuantisedMatrix, ...]
    relation: PairRelation | None

    def of(self, role: str) -> QuantisedMatrix | None:
        """Return the quantised matrix in this role."""
        return next((matrix for matrix in self.matrices if matrix.role == role), None)

    def faults(self, kind: FaultKind) -> Iterator[tuple[QuantisedMatrix, MatrixFault]]:
        """Yield the faults of this kind, with their matrices."""
        for matrix in self.matrices:
            yield from ((matrix, fault) for fault in matrix.faults if fault.kind is kind)

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``quantised``."""
        return {
            "method": self.method,
            "config": self.path,
            "matrices": [matrix.to_dict() for matrix in self.matrices],
            "relation": self.relation.to_dict() if self.relation else None,
        }
