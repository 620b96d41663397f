"""A weight file as data: which tensors lie where in it."""

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
