"""A weight file as data: its tensors and their byte ranges."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from math import prod
from typing import ClassVar

from tieconv.checkpoint.value_type import Listed, record, values_of

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

    def __eq__(self, other: object) -> bool:  # called for each tensor: the method that all records share takes 3 µs
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

    ``stride`` (in elements) is ``None`` for a dense row-major tensor, which fills ``range`` exactly. Otherwise the
    tensor is a view, and ``range`` runs from its first to its last element. ``storage`` is the key of the view's
    storage, for formats in which several tensors can share one.
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
        """Bytes of the tensor if written densely."""
        if self.stride is None:
            return self.range.size
        return nbytes(self.dtype, self.shape) or self.range.size

    @property
    def elements(self) -> int:
        return prod(self.shape)


@record
class Storage:
    """Bytes that several tensors of one file can be views of; ``key`` is unique within the file.

    ``crc`` is their CRC-32 if the file has one.
    """

    key: str
    range: ByteRange
    crc: int | None = None

    def __init__(self, key: str, range: ByteRange, crc: int | None = None) -> None:
        _set(self, "key", key)
        _set(self, "range", range)
        _set(self, "crc", crc)


@record
class GgufHeader:
    """What the header of a GGUF file has besides its tensors.

    ``version`` is the file's format version. ``keys`` counts the metadata entries in the bytes ``entries``. Each tensor
    starts at a multiple of ``alignment`` bytes after the header. ``types`` maps keys to their types, such as ``u32``
    or ``array``, and ``lengths`` the keys of arrays to their lengths.
    """

    version: int
    keys: int
    entries: ByteRange
    alignment: int
    types: Mapping[str, str]
    lengths: Mapping[str, int]


FORMATS = ("pt", "tf", "flax", "mlx")
"""The ``format`` values in safetensors metadata that transformers 4 accepts (`load_state_dict` of 4.57.6)."""


@record
class WeightFile:
    """One weight file: its tensors in the order of their bytes.

    ``data_start`` is the offset of the first tensor byte. ``metadata`` is the file's own key-value
    map. ``None`` means that the file has none, which differs from an empty map. ``storages`` are set if the format lets
    tensors share bytes. ``gguf`` is set for that format alone.
    """

    name: str
    size: int
    data_start: int
    tensors: tuple[TensorRecord, ...]
    metadata: Mapping[str, str] | None
    storages: tuple[Storage, ...] = ()
    gguf: GgufHeader | None = None

    @property
    def refused_format(self) -> str | None:
        """The ``format`` of safetensors metadata if transformers 4 refuses it; empty if the metadata has none.

        ``None`` if transformers 4 reads the file: its format is one of `FORMATS`, or it has no metadata.
        """
        named = None if self.metadata is None else self.metadata.get("format", "")
        return None if named in FORMATS else named


BITS: dict[str, int] = {
    "BOOL": 8, "U8": 8, "I8": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E4M3FNUZ": 8, "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
"""Bits per element. tieconv copies a type that is absent here as bytes and never interprets it."""

FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
"""Floating types that tieconv computes with."""

QUANTISED = frozenset({"U8", "I8", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"})
"""Types of the codes of a quantised matrix, meaningful only with their scales."""


def nbytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return the bytes of a dense tensor; ``None`` for an unknown dtype or a fraction of a byte."""
    bits = BITS.get(dtype)
    if bits is None:
        return None
    whole, rest = divmod(prod(shape) * bits, 8)
    return None if rest else whole


# A tensor that several files store in chunks, as distributed checkpoints do.
@record
class Chunk:
    """A rectangle of a tensor: its first index and its sides, and the bytes that store it.

    With ``archive``, the bytes at ``range`` are a file of `torch.save` that holds the chunk. Otherwise they are the
    chunk itself, in row-major order.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    range: ByteRange
    archive: bool


@record
class ChunkTable:
    """The chunks of every tensor by its name, and the tensors that are not the model's.

    ``overlapping`` are the tensors with chunks that share elements: every reader must check that they agree.
    ``training`` are tensors of the optimizer and of other training state. ``starts`` maps a tensor to the prefix of its
    state dict, such as ``model.``. ``stored_names`` maps a name to the name in the file, once prefixes are removed.
    ``outside`` are then the tensors that are not below the prefix.
    """

    chunks: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)
    overlapping: frozenset[str] = frozenset()
    training: Mapping[str, TensorRecord] = field(default_factory=dict)
    starts: Mapping[str, str] = field(default_factory=dict)
    stored_names: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, TensorRecord] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.chunks)


def fits(tensor: TensorRecord, reference: TensorRecord) -> bool:
    """Return whether two stored tensors can be one parameter: their shapes are equal as they are stored.

    A vector of shape `[n]` does not fit `[n, 1]`. A transposed matrix fits only where it is square: no shape shows
    there that it is transposed, and `State.TRANSPOSED` does. A tensor without elements, such as the placeholder of a
    sharded save, fits no tensor with elements. Two tensors without elements fit where their shapes are equal.
    """
    return tensor.shape == reference.shape


# How tensors use storages that several of them can share, as in torch files.
@record
class Overlap(Listed):
    """Tensors of one storage that share bytes.

    ``kind`` is the last of these kinds that a pair has: `aliased` (the same elements), `transposed`, `view`, `slice`,
    `overlap`. A `view` has the same bytes in another shape. In a `slice` one tensor is within the other; in an
    `overlap` neither is.
    """

    kind: str
    tensors: tuple[str, ...]


@record
class Slack(Listed):
    """A storage with bytes that no tensor uses: at least ``unused`` of its ``stored`` bytes."""

    KEYS: ClassVar = {"stored": "bytes", "unused": "bytes_unused"}

    file: str
    tensors: tuple[str, ...]
    stored: int
    unused: int


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
        return values_of(self, "storages bytes=stored bytes_unused=unused overlaps slack")


# The safetensors metadata entry that marks a copy of a tied tensor as intended.

KEY = "tieconv.keep"
"""The metadata key. Its value is a JSON list of the tensor names that are stored twice on purpose."""


def entry(names: Iterable[str]) -> str:
    """Return the value of the metadata entry for ``names``."""
    return json.dumps(sorted(names), ensure_ascii=False)


def names_in(metadata: Mapping[str, str] | None) -> frozenset[str]:
    """Return the tensor names that one file's metadata marks; empty if the entry is malformed."""
    text = (metadata or {}).get(KEY, "[]")
    try:
        value = json.loads(text) if text.count("[") + text.count("{") < 200 else None  # depth ends Python in a browser
    except ValueError:
        return frozenset()
    return frozenset(name for name in value if isinstance(name, str)) if isinstance(value, list) else frozenset()


def marked(files: Iterable[WeightFile]) -> frozenset[str]:
    """Return the tensor names that the metadata of any of the ``files`` marks."""
    return frozenset[str]().union(*(names_in(file.metadata) for file in files))
