"""How tensors lie in storages that they can share, as torch files have them."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


@record
class Overlap:
    """Tensors of one storage that share bytes.

    ``kind`` is that of the pair that shares in the least plain way: `aliased` (the same elements), `transposed`,
    `view` (the same bytes in another shape), `slice` (one within the other), `overlap` (neither within the other).
    """

    kind: str
    tensors: tuple[str, ...]


@record
class Slack:
    """A storage with bytes that no tensor uses: at least ``unused`` of its ``stored``."""

    file: str
    tensors: tuple[str, ...]
    stored: int
    unused: int

    def to_dict(self) -> dict[str, object]:
        """One entry of ``slack``."""
        names = list(self.tensors)
        return {"file": self.file, "tensors": names, "bytes": self.stored, "bytes_unused": self.unused}


@record
class StorageUse:
    """How the tensors lie in their storages, for a format that lets them share."""

    storages: int
    stored: int
    overlaps: tuple[Overlap, ...]
    slack: tuple[Slack, ...]

    @property
    def unused(self) -> int:
        """Bytes that no tensor uses."""
        return sum(entry.unused for entry in self.slack)

    def to_dict(self) -> dict[str, object]:
        """What stands under ``storage``."""
        return {
            "storages": self.storages,
            "bytes": self.stored,
            "bytes_unused": self.unused,
            "overlaps": [{"kind": entry.kind, "tensors": list(entry.tensors)} for entry in self.overlaps],
            "slack": [entry.to_dict() for entry in self.slack],
        }
