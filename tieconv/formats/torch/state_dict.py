"""Choose the state dict in a torch file, which may be a whole training checkpoint."""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tieconv.checkpoint.model_files import SEVERAL, TRAINING, Caution
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.torch.archive import CENTRAL, END, END64, LOCAL, LOCATOR64
from tieconv.formats.torch.pickle_stack import (
    STORAGE_CLASSES,
    TORCH_NAMES,
    WIDTHS,
    Pairs,
    StoredTensor,
    describe,
    refuse,
)
from tieconv.text import count, shown

METADATA = "_metadata"
"""The attribute in which torch stores the versions of a model's modules."""
PREFIXES = ("module.", "_orig_mod.", "model._orig_mod.", "_forward_module.")
"""Prefixes that wrappers (DataParallel, torch.compile, Lightning) add to every name."""
_NAMED = ("state_dict", "model", "module", "model_state_dict", "model_state", "net", "network")
"""Keys under which trainers store the model's tensors."""
_WITH = "generator"
"""The key beside the model under which OpenNMT-py stores the output layer of the model."""
_OF_TRAINING = re.compile(r"optim|sched|scaler|rng|random|amp|callback|loop|metric|param_groups|loss|hist|extra_state")
"""Matches keys of a training checkpoint that hold no model."""
_DEEPEST = 5
_MOST_DICTIONARIES = 10_000
_LARGEST_METADATA = 10_000_000


@record
class StateDict:
    """Tensors by name, in the order of the file. ``metadata`` is torch's `_metadata` as JSON."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str] | None
    cautions: tuple[Caution, ...]


@record
class _Candidate:
    """A dictionary of the file: its keys from the top, its content and its number of named tensors."""

    path: tuple[str, ...]
    pairs: Pairs
    number: int


def _candidate(path: tuple[str, ...], pairs: Pairs) -> _Candidate:
    return _Candidate(
        path, pairs, sum([type(key) is str and type(value) is StoredTensor for key, value in pairs.items])
    )


def find_state(value: object) -> StateDict:
    """Return the state dict that ``value`` is or holds. Raises `PickleProblem` if there is none."""
    if not isinstance(value, Pairs):
        refuse(f"holds {describe(value)}, not a dictionary of tensors", "torch.no-state", "save model.state_dict()")
    every = list(_candidates(value))
    places = [candidate for candidate in every if candidate.number] + [*_nested(every)]
    if not places:
        if value.items:
            refuse("holds no named tensor", "torch.no-state", "save model.state_dict()")
        return StateDict({}, None, ())
    # With equal numbers of tensors the top level comes first. Below it, dictionaries with a usual key come first. The
    # number decides first, because a random state or a step count can be a tensor at the top level.
    own = [candidate for candidate in places if not candidate.path]
    named = [entry for entry in places if entry.path and entry.path[-1] in _NAMED and "optim" not in entry.path[0]]
    chosen = max([*own, *(named or places)], key=lambda candidate: candidate.number)
    tensors, extra = _split(chosen.pairs)
    metadata = _metadata(chosen.pairs)
    if chosen.path != ("model",):
        joined = {}
    else:
        beside = next((candidate for candidate in places if candidate.path == (_WITH,)), None)
        layer = _split(beside.pairs)[0] if beside is not None else {}
        joined = {f"{_WITH}.{name}": tensor for name, tensor in layer.items() if f"{_WITH}.{name}" not in tensors}
    tensors |= joined
    # The keys of further named tensors that are not training state.
    depth = len(chosen.path)
    others = [candidate.path for candidate in places if candidate.path and candidate.path[:depth] != chosen.path]
    if joined:
        others = [path for path in others if path != (_WITH,)]
    left = tuple(".".join(path) for path in others if not any(_OF_TRAINING.search(key.lower()) for key in path))
    where = (*([".".join(chosen.path)] if chosen.path else []), *([_WITH] if joined else []))
    dotted = not any(candidate is chosen for candidate in every)
    cautions = [
        *_training(where, chosen, value, left, dotted),
        *_extra(extra, chosen.pairs, metadata),
        *_prefixed(tensors),
    ]
    return StateDict(tensors, metadata, tuple(cautions))


def _candidates(top: Pairs) -> Iterator[_Candidate]:
    """Yield the dictionaries under text keys once each, outermost first."""
    seen = {id(top)}
    level = [_candidate((), top)]
    for _ in range(_DEEPEST):
        yield from level
        inner: list[_Candidate] = []
        for candidate in level:
            for key, value in candidate.pairs.items:
                if type(key) is str and isinstance(value, Pairs) and id(value) not in seen:
                    seen.add(id(value))
                    inner.append(_candidate((*candidate.path, key), value))
        if len(seen) > _MOST_DICTIONARIES:
            refuse(f"holds more than {_MOST_DICTIONARIES:,} dictionaries", "torch.too-deep")
        level = inner


def _nested(places: list[_Candidate]) -> Iterator[_Candidate]:
    """Yield models stored as one dictionary for each module (Megatron-LM), with dotted tensor names."""
    for outer in places:
        if outer.number or not outer.path or outer.path[-1] not in _NAMED:
            continue
        depth = len(outer.path)
        inner = [candidate for candidate in places if candidate.path[:depth] == outer.path and candidate.number]
        if inner:
            items = (((*part.path[depth:], key), value) for part in inner for key, value in _tensors(part))
            yield _candidate(outer.path, Pairs([(".".join(path), value) for path, value in items]))


def _tensors(candidate: _Candidate) -> Iterator[tuple[str, StoredTensor]]:
    for key, value in candidate.pairs.items:
        if type(key) is str and type(value) is StoredTensor:
            yield key, value


def _split(pairs: Pairs) -> tuple[dict[str, StoredTensor], list[object]]:
    tensors: dict[str, StoredTensor] = {}
    extra: list[object] = []
    for key, value in pairs.items:
        if type(key) is not str or not isinstance(value, StoredTensor):
            extra.append(key)
        elif key in tensors:
            refuse(f"holds tensor {shown(key)} twice", "torch.repeated-name")
        else:
            tensors[key] = value
    return tensors, extra


def _metadata(pairs: Pairs) -> dict[str, str] | None:
    """Return torch's `_metadata` as JSON text, or ``None`` if JSON cannot hold it."""
    versions = pairs.state.get(METADATA) if pairs.state else None
    if not isinstance(versions, Pairs):
        return None
    plain: dict[str, dict[str, object]] = {}
    for module, entry in versions.items:
        if type(module) is not str or not isinstance(entry, Pairs) or not all(map(_plain, entry.items)):
            return None
        plain[module] = {str(key): value for key, value in entry.items}
    text = json.dumps(plain, separators=(",", ":"))
    return {METADATA: text} if len(text) < _LARGEST_METADATA else None


def _plain(pair: tuple[object, object]) -> bool:
    key, value = pair
    return type(key) is str and (value is None or type(value) in (int, bool, str))


def _training(
    keys: tuple[str, ...], chosen: _Candidate, top: Pairs, others: tuple[str, ...], dotted: bool
) -> Iterator[Caution]:
    """Yield the caution that the file is a training checkpoint. Its code says whether the model is certain."""
    if not chosen.path:
        return
    under = " and ".join(shown(key, 80) for key in keys)
    where = f"the file is a training checkpoint; tieconv reads the tensors under {under}"
    if dotted:
        where += ", nested dictionaries whose keys are joined with dots"
    if others or chosen.path[-1] not in _NAMED:
        more = f"; other tensors are under {', '.join(shown(path, 40) for path in others[:4])}" if others else ""
        ema = [path for path in others if "ema" in path.replace("_", ".").split(".")]
        two = f". The file holds two models: {shown(ema[0], 40)} is an average of weights (EMA)" if ema else ""
        yield Caution(SEVERAL, f"{where}{more}{two}")
        return
    besides = [key for key, _ in top.items[:6] if type(key) is str and key not in (chosen.path[0], _WITH)]
    more = f"; the file also holds {', '.join(shown(key, 40) for key in besides)}" if besides else ""
    yield Caution(TRAINING, f"{where}{more}")


def _extra(extra: list[object], pairs: Pairs, metadata: dict[str, str] | None) -> Iterator[Caution]:
    attributes = [key for key, _ in pairs.state.items if key != METADATA or metadata is None] if pairs.state else []
    left = [*extra, *attributes]
    if left:
        kind = "is not a tensor" if len(left) == 1 else "are not tensors"
        ignored = f"tieconv ignores {count(len(left), 'value')} that {kind}"
        listed = ", ".join(shown(key, 40) if type(key) in (str, int) else describe(key) for key in left[:6])
        yield Caution("torch.extra", f"{ignored}: {listed}")


def _prefixed(tensors: dict[str, StoredTensor]) -> Iterator[Caution]:
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            yield Caution("torch.prefix", f"every name starts with {prefix}, which a wrapper added before saving")
            return


# Lay out a torch file: the pickle that names the tensors, and the zip records of their bytes.
#
# The layout is that of `torch.save`: `archive/data.pkl`, `archive/byteorder`, one `archive/data/N` for each storage
# at a multiple of 64 bytes, and `archive/version`. The local headers hold sizes and checksums. Zip64 fields are
# written only if 32 bits are not enough.

ALIGNMENT = 64
PAGE = 4096
"""Bytes of a block. File systems share whole blocks, so shared data needs equal offsets modulo this."""
_SHARED = 1 << 20
"""Records of this many bytes or more are padded by up to a page, to share their blocks."""
_TOP = "archive/"
_UTF8 = 0x0800
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_LOCAL_SIZE, _FIELD, _WIDE = 30, 4, 20


@dataclass(frozen=True, slots=True)
class Placed:
    """A record of the archive to write: the offsets of its header and data, and its CRC-32 if already computed.

    The offset of the data should equal ``congruent`` modulo the page size. ``data`` holds a record that is not a
    storage.
    """

    name: str
    size: int
    header: int = 0
    start: int = 0
    crc: int | None = None
    congruent: int | None = None
    data: bytes | None = None


@record
class Archive:
    """A file to write: its records with their offsets, and its size in bytes."""

    records: tuple[Placed, ...]
    directory: int
    size: int

    @property
    def storages(self) -> tuple[Placed, ...]:
        """The records whose bytes are copied from the source."""
        return tuple(entry for entry in self.records if entry.data is None)

    def literals(self, checksum: Callable[[Placed], int]) -> Iterator[tuple[int, bytes]]:
        """Yield every other part of the file with its offset. ``checksum`` returns the CRC-32 of a written storage."""
        listed = []
        for entry in self.records:
            crc = entry.crc if entry.crc is not None else checksum(entry)
            yield entry.header, _local_header(entry, crc)
            if entry.data is not None:
                yield entry.start, entry.data
            listed.append(_directory_entry(entry, crc))
        directory = b"".join(listed)
        yield self.directory, directory + _end(len(self.records), len(directory), self.directory)


def lay_out(pickled: bytes, storages: Sequence[Placed]) -> Archive:
    """Return the archive of a pickle and its storages, with the offsets of all records."""
    before = [_literal("data.pkl", pickled), _literal("byteorder", b"little")]
    named = [replace(storage, name=f"data/{key}") for key, storage in enumerate(storages)]
    position = 0
    placed = []
    for entry in (*before, *named, _literal("version", b"3\n")):
        fixed = position + _LOCAL_SIZE + len(_name(entry)) + _wide_size(entry)
        start = _aligned(fixed + _FIELD, entry)
        placed.append(replace(entry, header=position, start=start))
        position = start + entry.size
    listed = sum(len(_directory_entry(entry, 0)) for entry in placed)
    return Archive(tuple(placed), position, position + listed + len(_end(len(placed), listed, position)))


def _literal(name: str, data: bytes) -> Placed:
    return Placed(name, len(data), crc=zlib.crc32(data), data=data)


def _aligned(start: int, entry: Placed) -> int:
    if entry.congruent is not None and entry.size >= _SHARED and entry.congruent % ALIGNMENT == 0:
        return start + (entry.congruent - start) % PAGE
    return start + -start % ALIGNMENT


def _name(entry: Placed) -> bytes:
    return (_TOP + entry.name).encode()


def _wide_size(entry: Placed) -> int:
    return _WIDE if entry.size >= _MAX32 else 0


def _local_header(entry: Placed, crc: int) -> bytes:
    name, wide = _name(entry), b""
    size = entry.size
    if _wide_size(entry):
        wide, size = struct.pack("<HHQQ", 1, 16, entry.size, entry.size), _MAX32
    padding = entry.start - entry.header - _LOCAL_SIZE - len(name) - len(wide) - _FIELD
    extra = wide + b"FB" + struct.pack("<H", padding) + b"Z" * padding
    version = 45 if wide else 0
    return (
        struct.pack("<4sHHHHHIIIHH", LOCAL, version, _UTF8, 0, 0, 0, crc, size, size, len(name), len(extra))
        + name
        + extra
    )


def _directory_entry(entry: Placed, crc: int) -> bytes:
    name = _name(entry)
    wide = []
    size, offset = entry.size, entry.header
    if size >= _MAX32:
        wide, size = [entry.size, entry.size], _MAX32
    if offset >= _MAX32:
        wide, offset = [*wide, entry.header], _MAX32
    extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    version = 45 if wide else 0
    fields = (version, version, _UTF8, 0, 0, 0, crc, size, size, len(name), len(extra), 0, 0, 0, 0, offset)
    return struct.pack("<4sHHHHHHIIIHHHHHII", CENTRAL, *fields) + name + extra


def _end(count: int, length: int, start: int) -> bytes:
    wide = b""
    if count >= _MAX16 or length >= _MAX32 or start >= _MAX32:
        wide = struct.pack("<4sQHHIIQQQQ", END64, 44, 45, 45, 0, 0, count, count, length, start)
        wide += struct.pack("<4sIQI", LOCATOR64, 0, start + length, 1)
    few = min(count, _MAX16)
    return wide + struct.pack("<4sHHHHIIH", END, 0, 0, few, few, min(length, _MAX32), min(start, _MAX32), 0)


def check_writable(name: str, dtype: str) -> None:
    """Raise `UnreadableError` for a dtype that torch does not have."""
    if dtype not in TORCH_NAMES:
        problem = f"tensor {shown(name)} has dtype {shown(dtype)}, which torch files cannot store"
        raise UnreadableError(problem, "keep the model in safetensors", "torch.dtype")


# Write the pickle of a state dict: an `OrderedDict` of tensors, in protocol 2.
@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor to pickle: storage ``key`` of ``nbytes`` bytes, ``offset`` and ``stride`` in elements."""

    name: str
    dtype: str
    key: int
    nbytes: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def pickle_state(tensors: Iterable[SavedTensor], metadata: Mapping[str, str] | None) -> bytes:
    """Return the pickle of an `OrderedDict` of tensors, in protocol 2. `torch.load(weights_only=True)` reads it."""
    pickler = _Pickler()
    pickler.ordered()
    pickler.out.append(b"(")
    for number, tensor in enumerate(tensors):
        if number and number % 1000 == 0:  # a batch, as in Python's pickler: readers bound the values on the stack
            pickler.out.append(b"u(")
        pickler.text(tensor.name)
        pickler.tensor(tensor)
    pickler.out.append(b"u")
    if metadata and METADATA in metadata:
        pickler.attributes(json.loads(metadata[METADATA]))
    return b"\x80\x02" + b"".join(pickler.out) + b"."


@dataclass
class _Pickler:
    """Collects opcodes. Writes each global once and recalls it from the memo afterwards."""

    out: list[bytes] = field(default_factory=list)
    places: dict[str, int] = field(default_factory=dict)

    def name(self, module: str, name: str) -> None:
        known = self.places.get(f"{module} {name}")
        if known is not None:
            self.out.append(b"h" + bytes([known]))
            return
        number = self.places[f"{module} {name}"] = len(self.places)
        self.out.append(f"c{module}\n{name}\n".encode() + b"q" + bytes([number]))

    def ordered(self) -> None:
        self.name("collections", "OrderedDict")
        self.out.append(b")R")

    def text(self, value: str) -> None:
        raw = value.encode("utf-8", "surrogatepass")
        self.out.append(b"X" + struct.pack("<I", len(raw)) + raw)

    def number(self, value: int) -> None:
        if 0 <= value < 256:
            self.out.append(b"K" + bytes([value]))
        elif -(1 << 31) <= value < 1 << 31:
            self.out.append(b"J" + struct.pack("<i", value))
        else:
            raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out.append(b"\x8a" + bytes([len(raw)]) + raw)

    def numbers(self, values: Iterable[int]) -> None:
        self.out.append(b"(")
        for value in values:
            self.number(value)
        self.out.append(b"t")

    def tensor(self, tensor: SavedTensor) -> None:
        """Write a call of `_rebuild_tensor_v2`, or of `_v3` for a dtype without a storage class."""
        typed = STORAGE_CLASSES.get(tensor.dtype)
        self.name("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
        self.out.append(b"((")
        self.text("storage")
        self.name("torch" if typed else "torch.storage", typed or "UntypedStorage")
        self.text(str(tensor.key))
        self.text("cpu")
        self.number(tensor.nbytes // WIDTHS[tensor.dtype] if typed else tensor.nbytes)
        self.out.append(b"tQ")
        self.number(tensor.offset)
        self.numbers(tensor.shape)
        self.numbers(tensor.stride)
        self.out.append(b"\x89")
        self.ordered()
        if not typed:
            self.name("torch", TORCH_NAMES[tensor.dtype])
        self.out.append(b"tR")

    def attributes(self, modules: Mapping[str, Mapping[str, object]]) -> None:
        """Write the `_metadata` of a state dict with BUILD, as torch does."""
        self.out.append(b"}")
        self.text(METADATA)
        self.ordered()
        self.out.append(b"(")
        for module, entry in modules.items():
            self.text(module)
            self.out.append(b"}(")
            for key, value in entry.items():
                self.text(key)
                self.plain(value)
            self.out.append(b"u")
        self.out.append(b"usb")

    def plain(self, value: object) -> None:
        if isinstance(value, bool) or value is None:
            self.out.append({True: b"\x88", False: b"\x89", None: b"N"}[value])
        elif isinstance(value, int):
            self.number(value)
        else:
            self.text(str(value))
