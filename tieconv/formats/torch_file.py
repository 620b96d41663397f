"""One torch file (`torch.save`), zip or legacy: its tensors and storages as byte ranges, nothing run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from tieconv.checkpoint.records import ByteRange, Caution, Storage, TensorRecord, WeightFile
from tieconv.formats import pickle_machine, torch_legacy, torch_zip
from tieconv.formats.pickle_values import PickleProblem, StorageRef, StoredTensor, refuse
from tieconv.formats.torch_disguise import check_disguise
from tieconv.formats.torch_globals import ALLOWED, storage_reference
from tieconv.formats.torch_state import find_state
from tieconv.formats.torch_zip import Entry, Pread
from tieconv.text import count, shown, size

PICKLE_LIMIT = 128_000_000
"""The largest pickle in bytes: that of half a million tensors takes 90 MB."""
AMPLIFIED = 1 << 30
"""Bytes from which a view may not be more than 16 times as large as the storage that it repeats."""
_DATA = "data/"
_KNOWN = frozenset(
    {"data.pkl", "version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"}
)
_VERSIONS = (b"1", b"2", b"3")
_UNUSED = 1_000_000


@dataclass(frozen=True, slots=True)
class _Content:
    """What either container holds: the pickled value, and where each storage's bytes lie."""

    value: object
    storages: Mapping[str, Storage]


def read_torch_file(pread: Pread, length: int, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    """The file's tensors, and what is odd about it. Raises `UnreadableError` with a stable code."""
    try:
        return _read(pread, length, name)
    except PickleProblem as problem:
        raise problem.named(name) from None


def _read(pread: Pread, length: int, name: str) -> tuple[WeightFile, tuple[Caution, ...]]:
    first = pread(min(length, 1024), 0)
    check_disguise(first, length)
    zipped = first.startswith(b"PK")
    content = _from_zip(pread, length, name) if zipped else _from_legacy(pread, length, name)
    state = find_state(content.value)
    used = _Used(name, content.storages)
    records = tuple(used.record(tensor, stored) for tensor, stored in state.tensors.items())
    storages = tuple(content.storages[key] for key in used.references)
    start = min((storage.range.start for storage in storages), default=0)
    file = WeightFile(name, length, start, records, state.metadata, storages)
    return file, (*state.cautions, *_cautions(file, content))


def _from_zip(pread: Pread, length: int, name: str) -> _Content:
    entries = torch_zip.read_archive(pread, length)
    _check_entries(pread, entries)
    pickled = torch_zip.content(pread, entries["data.pkl"], PICKLE_LIMIT)
    records = {short.removeprefix(_DATA): entry for short, entry in entries.items() if short.startswith(_DATA)}
    storages = {key: Storage(key, ByteRange(name, entry.start, entry.end), entry.crc) for key, entry in records.items()}
    try:
        value, end = pickle_machine.run(pickled, 0, ALLOWED, storage_reference)
    except pickle_machine.Truncated:
        refuse("holds a pickle that is cut short", "pickle.truncated")
    if end != len(pickled):
        refuse("has bytes behind its pickle", "pickle.trailing")
    return _Content(value, storages)


def _check_entries(pread: Pread, entries: Mapping[str, Entry]) -> None:
    """A state dict's archive and nothing else, of a known version and byte order."""
    if "data.pkl" not in entries:
        refuse("is a zip archive without a data.pkl, no torch file", "torch.no-pickle", "unpack it first")
    for name in entries:
        if name not in _KNOWN and not name.startswith(_DATA):
            refuse(f"holds the record {shown(name)}, which a saved state dict has not", "torch.entry")
    version = torch_zip.content(pread, entries["version"], 64).strip() if "version" in entries else b"3"
    if version not in _VERSIONS:
        refuse(
            f"is of version {shown(version.decode('latin-1'))}, which is not known",
            "torch.version",
            "save it again with a released torch",
        )
    order = torch_zip.content(pread, entries["byteorder"], 64).strip() if "byteorder" in entries else b"little"
    if order != b"little":
        refuse("is written in another byte order than little-endian", "torch.byte-order")


def _from_legacy(pread: Pread, length: int, name: str) -> _Content:
    value, places = torch_legacy.read(pread, length, PICKLE_LIMIT)
    return _Content(value, {key: Storage(key, ByteRange(name, *span)) for key, span in places.items()})


@dataclass
class _Used:
    """Tensors as byte ranges of ``file``, and the storages that they refer to in the order of their first use."""

    file: str
    storages: Mapping[str, Storage]
    references: dict[str, StorageRef] = field(default_factory=dict)

    def record(self, name: str, tensor: StoredTensor) -> TensorRecord:
        """The tensor, once it is known to lie within a storage that is as long as it claims."""
        width, storage = tensor.dtype.width, self._storage(tensor.storage)
        elements = prod(tensor.shape)
        span = _span(tensor) if elements else 0
        start, end = tensor.offset * width, (tensor.offset + span) * width
        if not elements:  # torch lets a tensor without elements start anywhere
            start = end = min(start, storage.range.size)
        if end > storage.range.size:
            refuse(
                f"has tensor {shown(name)}, which reaches to byte {end:,} of a storage of {storage.range.size:,}",
                "torch.bounds",
            )
        if elements * width > max(AMPLIFIED, 16 * storage.range.size):
            refuse(
                f"has tensor {shown(name)}, which repeats {size(span * width)} until they are {size(elements * width)}",
                "torch.amplified",
            )
        where = ByteRange(self.file, storage.range.start + start, storage.range.start + end)
        return TensorRecord(name, tensor.dtype.name, tensor.shape, where, _stride(tensor), tensor.storage.key)

    def _storage(self, reference: StorageRef) -> Storage:
        storage = self.storages.get(reference.key)
        if storage is None:
            refuse(f"refers to storage {reference.key}, which it does not hold", "torch.absent-storage")
        if storage.range.size // reference.dtype.width != reference.numel:
            refuse(
                f"says that storage {reference.key} has {reference.nbytes:,} bytes, and it has {storage.range.size:,}",
                "torch.storage-size",
            )
        if self.references.setdefault(reference.key, reference) != reference:
            refuse(f"describes storage {reference.key} in two ways", "torch.storage-size")
        return storage


def _span(tensor: StoredTensor) -> int:
    """Elements from the first to the last one."""
    return 1 + sum((side - 1) * step for side, step in zip(tensor.shape, tensor.stride, strict=True))


def _stride(tensor: StoredTensor) -> tuple[int, ...] | None:
    """``None`` for a dense row-major tensor; the stride of a side of length 1 says nothing."""
    expected = 1
    for side, step in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if side != 1 and step != expected:
            return tensor.stride if prod(tensor.shape) else None
        expected *= side
    return None


def _cautions(file: WeightFile, content: _Content) -> Iterator[Caution]:
    repeated = tuple(record.name for record in file.tensors if record.stride is not None and _repeats(record))
    if repeated:
        verb = "repeats" if len(repeated) == 1 else "repeat"
        yield Caution("torch.expanded", f"{count(len(repeated), 'tensor')} {verb} stored values (stride 0)", repeated)
    used = {storage.key for storage in file.storages}
    unused = sum(storage.range.size for key, storage in content.storages.items() if key not in used)
    if unused >= _UNUSED:
        yield Caution("torch.unused", f"{size(unused)} of the file belong to no tensor of the model")


def _repeats(record: TensorRecord) -> bool:
    return record.nbytes > record.range.size
