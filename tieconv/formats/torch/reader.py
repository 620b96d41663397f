"""Read the tensors and storages of one `torch.save` file, zip or legacy, as byte ranges. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NoReturn

from tieconv.checkpoint.model_files import REFUSED_BY_READER, Caution, check_git_file
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, Storage, TensorRecord, WeightFile
from tieconv.formats.other_tools import by_content
from tieconv.formats.strict_json import collector_paused
from tieconv.formats.torch import archive
from tieconv.formats.torch.globals_ import ALLOWED, storage_reference
from tieconv.formats.torch.pickle_machine import run
from tieconv.formats.torch.pickle_stack import (
    Pairs,
    PickleProblem,
    StorageRef,
    StoredTensor,
    Truncated,
    allowance,
    describe,
    refuse,
)
from tieconv.formats.torch.state_dict import find_state
from tieconv.text import count, shown, size

PICKLE_LIMIT = 128_000_000
"""The largest pickle in bytes. The pickle of half a million tensors has 90 MB."""
AMPLIFIED = 1 << 30
"""A view of more bytes than this may be at most 16 times as large as its storage."""
_DATA = "data/"
_KNOWN = frozenset(
    {"data.pkl", "version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"}
)
_VERSIONS = (b"1", b"2", b"3")
_UNUSED = 1_000_000


@record
class _Content:
    """The storages of a container by their keys.

    ``unsupported`` lists what ``torch.load(weights_only=True)`` refuses.
    """

    storages: Mapping[str, Storage]
    unsupported: Mapping[str, None]


def read_torch_file(
    pread: archive.Pread, length: int, name: str, *, sparse: bool = False
) -> tuple[WeightFile, tuple[Caution, ...]]:
    """Return the file with its tensors, and its cautions. ``sparse`` is as in `archive.read_archive`.

    Raises `UnreadableError` with a stable code.
    """
    try:
        with collector_paused():
            first = pread(min(length, 1024), 0)
            check_git_file(name, first, length)
            check_disguise(first, length)
            zipped = first.startswith(b"PK")
            value, content = _from_zip(pread, length, name, sparse) if zipped else _from_legacy(pread, length, name)
            state = find_state(value)
            del value  # popping each tensor frees memory for its record
            used = _Used(name, content.storages)
            records = tuple(used.record(tensor, state.tensors.pop(tensor)) for tensor in list(state.tensors))
            storages = tuple(content.storages[key] for key in used.references)
            start = min((storage.range.start for storage in storages), default=0)
            file = WeightFile(name, length, start, records, state.metadata, storages)
            return file, (*state.cautions, *_cautions(file, content))
    except PickleProblem as problem:
        raise problem.named(name) from None


def read_one_tensor(pread: archive.Pread, length: int, name: str) -> tuple[TensorRecord, Storage]:
    """Return the tensor that an archive holds, and its storage. Raises `PickleProblem` if it holds anything else."""
    if not pread(2, 0).startswith(b"PK"):
        refuse("is not an archive of torch.save", "torch.no-archive")
    value, content = _from_zip(pread, length, name, False)
    if not isinstance(value, StoredTensor):
        refuse(f"holds {describe(value)}, not a tensor", "torch.no-tensor")
    used = _Used(name, content.storages)
    return used.record(name, value), content.storages[value.storage.key]


def _from_zip(pread: archive.Pread, length: int, name: str, sparse: bool) -> tuple[object, _Content]:
    entries = archive.read_archive(pread, length, sparse=sparse)
    _check_entries(pread, entries)
    pickled = archive.content(pread, entries["data.pkl"], PICKLE_LIMIT)
    unsupported: dict[str, None] = {} if "version" in entries else {"an archive without the record version": None}
    storages = dict(_storages(entries, name))
    most = allowance(length, len(storages))

    def persistent(pid: object) -> StorageRef:
        reference = storage_reference(pid)
        storage = storages.get(reference.key)
        if storage is None:
            refuse(f"refers to storage {reference.key}, which it does not hold", "torch.absent-storage")
        if storage.range.size != reference.nbytes:
            problem = f"declares {count(reference.nbytes, 'byte')} for storage {reference.key}"
            refuse(f"{problem}, which has {storage.range.size:,}", "torch.storage-size")
        if isinstance(pid, tuple) and len(pid) == 6:
            unsupported["a storage with the field of its view"] = None
        return reference

    try:
        value, end = run(pickled, 0, ALLOWED, persistent, lambda: most, unsupported)
    except Truncated:
        refuse("holds a truncated pickle", "pickle.truncated")
    if end != len(pickled):
        refuse("has bytes after its pickle", "pickle.trailing")
    return value, _Content(storages, unsupported)


def _storages(entries: dict[str, archive.Entry], file: str) -> Iterator[tuple[str, Storage]]:
    """Yield each storage with its key. Removes its entry to free memory."""
    for name in list(entries):
        if name.startswith(_DATA):
            entry, key = entries.pop(name), name.removeprefix(_DATA)
            yield key, Storage(key, ByteRange(file, entry.start, entry.end), entry.crc)


def _check_entries(pread: archive.Pread, entries: Mapping[str, archive.Entry]) -> None:
    """Refuse an archive with other records than those of a state dict, or an unknown version or byte order."""
    if "data.pkl" not in entries:
        refuse("is a zip archive without data.pkl, so it is not a torch file", "torch.no-pickle", "unpack it first")
    for name in entries:
        if name not in _KNOWN and not name.startswith(_DATA):
            refuse(f"holds the record {shown(name)}, which torch.save does not write", "torch.entry")
    version = archive.content(pread, entries["version"], 64).strip() if "version" in entries else b"3"
    if version not in _VERSIONS:
        problem = f"has the unknown version {shown(version.decode('latin-1'))}"
        refuse(problem, "torch.version", "save it again with a released torch")
    for name in ("byteorder", ".storage_alignment", ".data/serialization_id"):
        if name in entries:
            # Refuse a record that `torch.load` cannot parse. It strips no white space from a byte order.
            data = archive.content(pread, entries[name], 64)
            words = shown(data.decode("latin-1")) or "empty"
            if name == "byteorder" and data != b"little":
                refuse(f"is not little-endian: its record byteorder is {words}", "torch.byte-order")
            try:
                if name == ".storage_alignment":
                    int(data)
                data.decode("utf-8")
            except ValueError:
                refuse(f"has the record {name}, which torch.load cannot parse: {words}", "torch.record")


def _from_legacy(pread: archive.Pread, length: int, name: str) -> tuple[object, _Content]:
    unsupported: dict[str, None] = {}
    value, places = read(pread, length, PICKLE_LIMIT, unsupported)
    storages = {key: Storage(key, ByteRange(name, *span)) for key, span in places.items()}
    return value, _Content(storages, unsupported)


class _Used:
    """Converts tensors to byte ranges of ``file``, and keeps their storages in the order of first use."""

    def __init__(self, file: str, storages: Mapping[str, Storage]) -> None:
        self.file = file
        self.storages = storages
        self.references: dict[str, StorageRef] = {}

    def record(self, name: str, tensor: StoredTensor) -> TensorRecord:
        """Return the record of a tensor. Refuses a tensor that reaches past the end of its storage."""
        reference, (dtype, width), offset, shape, stride = tensor
        where = self._storage(reference).range
        first, size = where.start, where.end - where.start
        elements = prod(shape)
        dense = _is_dense(shape, stride)
        span = elements if dense else 1 + sum([(side - 1) * step for side, step in zip(shape, stride, strict=True)])
        start, end = offset * width, (offset + span) * width
        if not elements:  # in torch a tensor without elements may start anywhere
            start = end = min(start, size)
        if end > size:
            refuse(f"has tensor {shown(name)}, which reaches to byte {end:,} of a storage of {size:,}", "torch.bounds")
        if elements > span:
            _check_amplified(name, span * width, elements * width, size)
        whole = not start and end == size
        stored = where if whole else ByteRange(self.file, first + start, first + end)
        return TensorRecord(name, dtype, shape, stored, None if dense or not elements else stride, reference.key)

    def _storage(self, reference: StorageRef) -> Storage:
        """Return the storage of ``reference``. Refuses two different references to one storage."""
        key = reference.key
        storage = self.storages.get(key)
        if storage is None:
            refuse(f"refers to storage {key}, which it does not hold", "torch.absent-storage")
        if self.references.setdefault(key, reference) != reference:
            refuse(f"describes storage {key} in two different ways", "torch.storage-size")
        return storage


def _check_amplified(name: str, stored: int, repeated: int, storage: int) -> None:
    if repeated > max(AMPLIFIED, 16 * storage):
        refuse(f"has tensor {shown(name)}, which expands {size(stored)} to {size(repeated)}", "torch.amplified")


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Return whether the elements are stored in row-major order. The stride of a dimension of size 1 is ignored."""
    expected = 1
    for side, step in zip(reversed(shape), reversed(stride), strict=True):
        if side != 1 and step != expected:
            return False
        expected *= side
    return True


def _cautions(file: WeightFile, content: _Content) -> Iterator[Caution]:
    if content.unsupported:
        reasons = ", ".join(list(content.unsupported)[:4])
        yield Caution(
            REFUSED_BY_READER, f"torch.load with weights_only=True refuses {shown(file.name)}: it uses {reasons}"
        )
    repeated = tuple(
        record.name for record in file.tensors if record.stride is not None and record.nbytes > record.range.size
    )
    if repeated:
        verb = "repeats" if len(repeated) == 1 else "repeat"
        yield Caution("torch.expanded", f"{count(len(repeated), 'tensor')} {verb} stored values (stride 0)", repeated)
    used = {storage.key for storage in file.storages}
    unused = sum(storage.range.size for key, storage in content.storages.items() if key not in used)
    if unused >= _UNUSED:
        yield Caution("torch.unused", f"no tensor of the model uses {size(unused)} of the file")


# Read the container that `torch.save` wrote before 1.6: five pickles, then each storage after its length.
#
# Source: `torch.serialization._legacy_save` of torch 2.13.

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
_FIRST_WINDOW = 1 << 16
_LENGTH = 8


def read(
    pread: archive.Pread, length: int, limit: int, unsupported: dict[str, None]
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
    system = stream.load()
    if not isinstance(system, Pairs) or system.get("little_endian") is not True:
        refuse("is not little-endian", "torch.byte-order")
    value = stream.load()
    keys = stream.load()
    if not isinstance(keys, list) or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
        refuse("has no valid list of its storages", "torch.storage-key")
    # Storages follow one another to the end of the file.
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
    return value, places


@dataclass
class _Stream:
    """Reads pickles that follow one another. Their lengths are not stored, so a window grows until one fits."""

    pread: archive.Pread
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
                value, end = run(
                    data,
                    0,
                    ALLOWED,
                    self._storage,
                    lambda: allowance(self.length, len(self.storages)),
                    self.unsupported,
                )
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

    def _stated(self, problem: PickleProblem, data: bytes) -> PickleProblem:
        """Return the problem, or a clearer one for a file that does not start like a pickle."""
        if not self.position and data[:1] != b"\x80" and problem.code in ("pickle.opcode", "pickle.malformed"):
            return PickleProblem("is not a torch file", "torch.unknown", "give a file that torch.save wrote")
        return problem


def _no_pickle(position: int) -> PickleProblem:
    if position:
        return PickleProblem("ends inside its pickles", "torch.truncated", "fetch the file again")
    return PickleProblem("is not a torch file, or is truncated", "torch.unknown", "give a file that torch.save wrote")


def check_disguise(first: bytes, length: int) -> None:
    """Raise `PickleProblem` for a file whose first bytes show another format."""
    if not length:
        _stop("is empty", "empty", "fetch the file again")
    if first[8:10] == b'{"' and int.from_bytes(first[:8], "little") <= length:
        _stop("is a safetensors file", "safetensors", "rename it to .safetensors")
    if first.startswith((b"PK", b"\x80")):
        return
    kind = by_content(first)
    if kind is not None:
        _stop(kind.sentence_end, kind.code, kind.hint)


def _stop(sentence: str, code: str, hint: str) -> NoReturn:
    refuse(sentence, f"torch.{code}", hint)
