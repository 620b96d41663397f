"""A weight file as data: its tensors and their byte ranges."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from tieconv.checkpoint.files.dtypes import nbytes
from tieconv.checkpoint.value_type import record

if TYPE_CHECKING:
    pass


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
    starts at a multiple of ``alignment`` bytes after the header.
    """

    version: int
    keys: int
    entries: ByteRange
    alignment: int


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
