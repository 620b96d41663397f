"""Read the container that `torch.save` wrote before 1.6: five pickles, then each storage after its length.

Source: `torch.serialization._legacy_save` of torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tieconv.formats.torch.archive_directory import Pread
from tieconv.formats.torch.globals_ import ALLOWED
from tieconv.formats.torch.pickle.machine import run
from tieconv.formats.torch.pickle.machine_state import Truncated, allowance
from tieconv.formats.torch.pickle.values import Pairs, PickleProblem, StorageRef, refuse
from tieconv.formats.torch.rebuild import storage_reference

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_FIRST_WINDOW = 1 << 16
_LENGTH = 8


def read(
    pread: Pread, length: int, limit: int, unsupported: dict[str, None]
) -> tuple[object, dict[str, tuple[int, int]]]:
    """Return the saved value, and the byte range of each storage. Raises `PickleProblem`.

    Adds to ``unsupported`` what ``torch.load(weights_only=True)`` refuses.
    """
    stream = _Stream(pread, length, limit, unsupported)
    if stream.load() != MAGIC:
        refuse("is a pickle, but not a torch file", "torch.plain-pickle", "save model.state_dict() with torch.save")
    protocol = stream.load()
    if protocol != PROTOCOL:
        refuse("has an unknown legacy version", "torch.version", "save it again with a released torch")
    _check_system(stream.load())
    value = stream.load()
    keys = stream.load()
    if not isinstance(keys, list) or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
        refuse("has no valid list of its storages", "torch.storage-key")
    return value, _places(stream, keys)


def _check_system(value: object) -> None:
    if not isinstance(value, Pairs) or value.get("little_endian") is not True:
        refuse("is not little-endian", "torch.byte-order")


@dataclass
class _Stream:
    """Reads pickles that follow one another. Their lengths are not stored, so a window grows until one fits."""

    pread: Pread
    length: int
    limit: int
    unsupported: dict[str, None]
    position: int = 0
    storages: dict[str, StorageRef] = field(default_factory=dict)

    def load(self) -> object:
        window = _FIRST_WINDOW
        while True:
            data = self.pread(min(window, self.limit), self.position)
            try:
                value, end = run(data, 0, ALLOWED, self._storage, self._most, self.unsupported)
            except Truncated:
                if self.position + len(data) >= self.length:
                    raise _no_pickle(self.position) from None
                if window >= self.limit:
                    refuse(f"holds a pickle of more than {self.limit:,} bytes", "pickle.too-large")
                window *= 4
                continue
            except PickleProblem as problem:
                raise self._stated(problem, data) from None
            self.position += end
            return value

    def _storage(self, pid: object) -> StorageRef:
        reference = storage_reference(pid)
        if isinstance(pid, tuple) and len(pid) == 5:
            self.unsupported["a storage without the field of its view"] = None
        known = self.storages.setdefault(reference.key, reference)
        if known != reference:
            refuse(f"describes storage {reference.key} in two different ways", "torch.storage-size")
        return reference

    def _most(self) -> int:
        return allowance(self.length, len(self.storages))

    def _stated(self, problem: PickleProblem, data: bytes) -> PickleProblem:
        """Return the problem, or a clearer one for a file that does not start like a pickle."""
        if not self.position and data[:1] != b"\x80" and problem.code in ("pickle.opcode", "pickle.malformed"):
            return PickleProblem("is not a torch file", "torch.unknown", "give a file that torch.save wrote")
        return problem


def _no_pickle(position: int) -> PickleProblem:
    if position:
        return PickleProblem("ends inside its pickles", "torch.truncated", "fetch the file again")
    return PickleProblem("is not a torch file, or is truncated", "torch.unknown", "give a file that torch.save wrote")


def _places(stream: _Stream, keys: list[object]) -> dict[str, tuple[int, int]]:
    """Return the byte range of each storage. Storages follow one another to the end of the file."""
    places: dict[str, tuple[int, int]] = {}
    position = stream.position
    for key in keys:
        reference = stream.storages.get(str(key))
        if reference is None:
            refuse("lists a storage that no tensor uses", "torch.storage-key")
        stored_length = int.from_bytes(stream.pread(_LENGTH, position), "little", signed=True)
        start = position + _LENGTH
        end = start + reference.nbytes
        if end > stream.length:
            refuse(f"ends inside storage {reference.key}", "torch.truncated", "fetch the file again")
        if stored_length != reference.numel:
            refuse(f"gives storage {reference.key} two different sizes", "torch.storage-size")
        places[reference.key] = (start, end)
        position = end
    if position != stream.length:
        refuse("has bytes after its last storage", "torch.trailing")
    return places
