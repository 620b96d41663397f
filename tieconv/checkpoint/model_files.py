"""A checkpoint as data: which tensors lie where, and the documents beside them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import field, replace
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Protocol

from tieconv.checkpoint.dtypes import nbytes
from tieconv.checkpoint.json_values import quoted
from tieconv.checkpoint.value_type import record
from tieconv.text import command, count

if TYPE_CHECKING:
    from tieconv.checkpoint.graph_structure import GraphRecord


class Layout(StrEnum):
    """How MODEL is laid out on disk."""

    SINGLE = "single"  # a directory with one weight file
    SHARDED = "sharded"  # a directory with an index and its shards
    FILE = "file"  # a lone weight file


_set = object.__setattr__


@record
class ByteRange:
    """Bytes ``start`` to ``end`` (exclusive) of a weight file, counted from the file's first byte."""

    file: str
    start: int
    end: int

    def __init__(self, file: str, start: int, end: int) -> None:
        _set(self, "file", file)
        _set(self, "start", start)
        _set(self, "end", end)

    def __eq__(self, other: object) -> bool:  # compared for each tensor: the method of every record takes 3 µs
        if type(other) is not type(self):
            return NotImplemented
        return self.start == other.start and self.end == other.end and self.file == other.file

    def __hash__(self) -> int:
        return hash((self.file, self.start, self.end))

    @property
    def size(self) -> int:
        return self.end - self.start


@record
class TensorRecord:
    """One stored tensor, little-endian, its bytes within ``range``.

    ``stride`` (in elements) is ``None`` for a dense row-major tensor, which fills ``range`` exactly; else the
    tensor is a view, and ``range`` runs from its first to its last element. ``storage`` is the key of the
    storage that it is a view of, for formats where several tensors can share one.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    range: ByteRange
    stride: tuple[int, ...] | None = None
    storage: str | None = None

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        range: ByteRange,
        stride: tuple[int, ...] | None = None,
        storage: str | None = None,
    ) -> None:
        _set(self, "name", name)
        _set(self, "dtype", dtype)
        _set(self, "shape", shape)
        _set(self, "range", range)
        _set(self, "stride", stride)
        _set(self, "storage", storage)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor written out densely."""
        if self.stride is None:
            return self.range.size
        return nbytes(self.dtype, self.shape) or self.range.size

    @property
    def elements(self) -> int:
        return prod(self.shape)


@record
class Storage:
    """Bytes that several tensors of one file may be views of; ``key`` is unique within the file.

    ``crc`` is their CRC-32 where the file holds one.
    """

    key: str
    range: ByteRange
    crc: int | None = None

    def __init__(self, key: str, range: ByteRange, crc: int | None = None) -> None:
        _set(self, "key", key)
        _set(self, "range", range)
        _set(self, "crc", crc)


FORMATS = ("pt", "tf", "flax", "mlx")
"""What safetensors metadata may name for transformers 4 (`load_state_dict` of 4.57.6)."""


@record
class WeightFile:
    """One weight file: its tensors in the order of their bytes.

    ``data_start`` is the offset of the first tensor byte, ``metadata`` the file's own key-value map
    (``None`` where it has none, which is not the same as an empty one). ``storages`` are given where the format
    lets tensors share bytes.
    """

    name: str
    size: int
    data_start: int
    tensors: tuple[TensorRecord, ...]
    metadata: Mapping[str, str] | None
    storages: tuple[Storage, ...] = ()

    @property
    def refused_format(self) -> str | None:
        """The format that safetensors metadata names where transformers 4 refuses it, empty where it names none.

        ``None`` where that reads the file: it names one of `FORMATS`, or there is no metadata at all.
        """
        named = None if self.metadata is None else self.metadata.get("format", "")
        return None if named in FORMATS else named


@record
class Document:
    """A JSON file beside the weights: the parsed value and the exact text it came from."""

    name: str
    text: str
    value: Mapping[str, object]


@record
class Caution:
    """Something read that has two readings, or is out of place; a rule turns it into a finding."""

    code: str
    message: str
    tensors: tuple[str, ...] = ()


OPENED = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
"""What transformers looks for in a model's directory, in its order."""

WEIGHTS_KEY = "transformers_weights"
"""The key of the config under which transformers newer than 4.48 takes another name."""

TWO_FORMATS = "layout.two-formats"
"""The code of the caution that weights of two formats stand side by side."""

REFUSED_BY_READER = "format.refused"
"""The code of the caution that the reader of the format itself refuses a file; its message is the finding's."""

NOT_ALONE = "layout.not-alone"
"""The code of the caution that the directory of a lone weight file holds the model in other files too."""

TRAINING = "torch.training"
"""The code of the caution that a torch file holds a model and the state of its training; `convert` takes the model."""

SEVERAL = "torch.several"
"""The code of the caution that a torch file holds tensors under several keys, and none of them is surely the model."""

BLOCKING = {
    "layout.ambiguous": "remove the one that is not meant, then try again",
    "layout.one-shard": "give the model's directory",
    TWO_FORMATS: "add --drop-other-formats, which leaves the other out: it would stay behind as it was",
    "index.absent": "write the index first: tieconv reindex MODEL",
    "index.absent-tensor": "rebuild the index from the shards, then try again: tieconv reindex MODEL",
    "index.extra-tensor": "rebuild the index from the shards, then try again: tieconv reindex MODEL",
    "index.repeated": "remove the copy that is not meant, then try again",
    TRAINING: "take the model out of it first: tieconv convert MODEL --to safetensors -o OUT",
    SEVERAL: 'save the model\'s part first: torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)',
    "torch.extra": "save the tensors alone first: what else the file holds would be lost",
}
"""Cautions under which nobody can say what the model is, so that nothing is written; and the way out."""


def way_out(code: str, source: str) -> str:
    """What to do about a blocking caution of the model ``source``."""
    hint = BLOCKING[code].replace("tieconv reindex MODEL", command("reindex", source))
    return hint.replace("tieconv convert MODEL", command("convert", source))


@record
class FileState:
    """What identifies a file's content at reading time, so that a stale plan can fail.

    ``ctime_ns`` changes with every write, also where ``mtime_ns`` was put back; 0 where nothing tells it.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int = 0

    def is_still(self, now: FileState | None, relinked: Collection[tuple[int, int]] = ()) -> bool:
        """Whether ``now`` is the same file, unchanged; a hard link that was made of it changes ``ctime_ns`` too.

        ``relinked`` are (device, inode) of such files.
        """
        if now is not None and (self.device, self.inode) in relinked:
            now = replace(now, ctime_ns=self.ctime_ns)
        return now == self


@record
class Listing:
    """What MODEL names on disk.

    ``named`` is the file that the user named, ``None`` for a directory. ``entries`` are the regular files
    under ``root`` (relative, sorted) and their bytes, ``special`` the FIFOs, devices, sockets and links that
    lead outside.
    """

    source: str
    root: str
    named: str | None
    entries: Mapping[str, int]
    special: tuple[str, ...]

    @property
    def top(self) -> tuple[str, ...]:
        """The regular files directly under the root."""
        return tuple(entry for entry in self.entries if "/" not in entry)


@record
class Adapter:
    """What the config of a PEFT adapter says: its base, and which modules it changes or replaces.

    ``targets`` are the entries of ``target_modules`` (one pattern, or the ends of module names), ``saved`` those of
    ``modules_to_save``, ``tied`` whether PEFT was told to keep tied modules tied (``ensure_weight_tying``).
    """

    kind: str
    base: str
    base_class: str
    targets: tuple[str, ...]
    saved: tuple[str, ...]
    tied: bool


class _Tensors:
    """A place for what is made once of a record's values, and is none of them."""

    __slots__ = ("_tensors",)
    _tensors: Mapping[str, TensorRecord]


_NATIVE = r"(.*/)?consolidated[^/]*\.safetensors"
"""What Mistral's own tools write beside a `params.json`; vLLM looks for it by this name, in every folder."""


@record
class Checkpoint(_Tensors):
    """Everything that is known without reading tensor bytes.

    ``source`` is the path as the user gave it, ``root`` the absolute directory that file names are
    relative to. ``companions`` are the other regular files of the directory (relative paths) and their
    bytes, ``special`` what is there and is no regular file. ``orphans`` are weight files of the directory that
    the model does not use, ``others`` the companions that hold a model in another format, ``twins`` the weight files
    among those whose headers were read. ``read_only`` says what
    to do instead where no command writes the format (empty: it is written), ``headers_only`` that tensor bytes are
    out of reach. ``graphs`` are those of an ONNX model. ``revision`` is the commit of a model on the Hub, ``unread``
    the shards that were left out because nothing in them ties.
    """

    source: str
    root: str
    layout: Layout
    format: str
    files: tuple[WeightFile, ...]
    config: Document | None = None
    index: Document | None = None
    companions: Mapping[str, int] = field(default_factory=dict)
    special: tuple[str, ...] = ()
    cautions: tuple[Caution, ...] = ()
    states: Mapping[str, FileState] = field(default_factory=dict)
    orphans: tuple[WeightFile, ...] = ()
    others: Mapping[str, FileState] = field(default_factory=dict)
    twins: tuple[WeightFile, ...] = ()
    adapter: Adapter | None = None
    read_only: str = ""
    headers_only: bool = False
    graphs: tuple[GraphRecord, ...] = ()
    revision: str = ""
    unread: tuple[str, ...] = ()

    def __repr__(self) -> str:
        counts = count(len(self.files), "file"), count(len(self.tensors), "tensor")
        return f"Checkpoint({', '.join((quoted(self.source), self.format, *counts))})"

    @property
    def tensors(self) -> Mapping[str, TensorRecord]:
        """Every tensor by name, in file order."""
        try:
            return self._tensors
        except AttributeError:
            by_name = {tensor.name: tensor for file in self.files for tensor in file.tensors}
            _set(self, "_tensors", by_name)
            return by_name

    @property
    def entry(self) -> str | None:
        """The file that leads to the tensors: the index or the only weight file; ``None`` without an index."""
        if self.index is not None:
            return self.index.name
        return None if self.layout is Layout.SHARDED or not self.files else self.files[0].name

    @property
    def complete(self) -> bool:
        """Whether shards without an index are the whole set that their names count."""
        totals = {file.name.rpartition("-of-")[2].partition(".")[0] for file in self.files}
        return totals == {f"{len(self.files):05d}"}

    @property
    def config_values(self) -> Mapping[str, object]:
        """The config's content; empty where there is no config."""
        return self.config.value if self.config else {}

    @property
    def native(self) -> str:
        """The first weight file in Mistral's own format, at any depth; empty where there is none."""
        names = (name for name in (*self.states, *self.companions) if re.fullmatch(_NATIVE, name))
        return min(names, key=lambda name: (name.count("/"), name), default="")

    def file(self, name: str) -> WeightFile:
        """The weight file with this name; ``KeyError`` where there is none."""
        for candidate in self.files:
            if candidate.name == name:
                return candidate
        raise KeyError(name)


class Files(Protocol):
    """Reads from files by name, relative to one root."""

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, fewer only at the end of the file."""
        ...

    def state(self, name: str) -> FileState:
        """What identifies the file's content now."""
        ...


class ByteReader(Protocol):
    """Positioned reads from the files of one checkpoint."""

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the bytes at ``offset`` of ``span``; ``UnreadableError`` if the file ends early."""
        ...
