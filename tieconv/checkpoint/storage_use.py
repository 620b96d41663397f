"""How tensors use storages that several of them can share, as in torch files."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


@record
class Overlap:
    """Tensors of one storage that share bytes.

    ``kind`` is the last of these kinds that a pair has: `aliased` (the same elements), `transposed`, `view`, `slice`,
    `overlap`. A `view` has the same bytes in another shape. In a `slice` one tensor is within the other; in an
    `overlap` neither is.
    """

    kind: str
    tensors: tuple[str, ...]


@record
class Slack:
    """A storage with bytes that no tensor uses: at least ``unused`` of its ``stored`` bytes."""

    file: str
    tensors: tuple[str, ...]
    stored: int
    unused: int

    def to_dict(self) -> dict[str, object]:
        """Return one entry of ``slack``."""
        names = list(self.tensors)
        return {"file": self.file, "tensors": names, "bytes": self.stored, "bytes_unused": self.unused}


@record
class StorageUse:
    """How the tensors use their storages, for a format in which they can share one."""

    storages: int
    stored: int
    overlaps: tuple[Overlap, ...]
    slack: tuple[Slack, ...]

    @property
    def unused(self) -> int:
        """Bytes that no tensor uses."""
        return sum(entry.unused for entry in self.slack)

    def to_dict(self) -> dict[str, object]:
        """Return the object under ``storage``."""
        return {
            "storages": self.storages,
            "bytes": self.stored,
            "bytes_unused": self.unused,
            "overlaps": [{"kind": entry.kind, "tensors": list(entry.tensors)} for entry in self.overlaps],
            "slack": [entry.to_dict() for entry in self.slack],
        }
