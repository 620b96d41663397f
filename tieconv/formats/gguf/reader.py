"""GGUF files, read from their header alone: a small strict reader, no tensor byte touched.

Source: the GGUF specification (ggml, docs/gguf.md) and the types of gguf 0.19. Versions 2 and 3 share one layout.
Tensor shapes are turned round: GGUF lists the innermost dimension first, everybody else last.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from typing import NoReturn

from tieconv.checkpoint.git_files import LARGEST, check_git_file
from tieconv.checkpoint.model_files import ByteRange, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats.limits import MAX_TENSORS, NameCount
from tieconv.text import shown

SUFFIX = ".gguf"
MAGIC = b"GGUF"
VERSIONS = (2, 3)
HEADER_LIMIT = 512_000_000
"""The largest header in bytes; a vocabulary of a million tokens with its merges takes 40 MB."""
MAX_KEYS = 100_000
MAX_NAME = 65_535
MAX_RANK = 4
MAX_DEPTH = 4
_INCOMPLETE = "the download may be incomplete; fetch it again"
_OTHERS = {b"ggml": "a GGML file", b"ggjt": "a GGJT file", b"ggla": "a GGLA adapter"}
_LEAST, _WINDOW = 64 << 10, 1 << 20
_LONGEST_TEXT = 4096
"""Bytes of a metadata string that is kept; chat templates and licences are passed over."""
_TEXT_IN_ALL = 16_000_000
"""Bytes of all metadata keys, and of all strings that are kept."""
_MOST_ENTRIES = 4_000_000
"""Strings and lists in all arrays: the largest vocabularies have, with their merges, a quarter of it."""

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""ggml type number → name, elements of a block, bytes of a block."""

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""


def read_weight_file(pread: Pread, size: int, name: str, *, sparse: bool = False) -> WeightFile:
    """The tensors of one file and its scalar metadata as text. Raises `UnreadableError` with a stable code.

    With ``sparse`` little more than the header is read.
    """
    check_git_file(name, pread(min(size, LARGEST), 0), size)
    cursor = _Cursor(pread, size, name, sparse=sparse)
    _check_version(cursor)
    tensors = cursor.counted(MAX_TENSORS, "tensors", least=24)
    keys = cursor.counted(MAX_KEYS, "metadata keys", least=13)
    metadata = _metadata(cursor, keys)
    names = NameCount()
    infos = [_counted(_info(cursor), names, cursor) for _ in range(tensors)]
    alignment = _alignment(metadata, cursor)
    data_start = -(-cursor.position // alignment) * alignment
    # Each info makes room for its record.
    infos.reverse()
    records = [_record(infos.pop(), data_start, alignment, cursor) for _ in range(tensors)]
    records.sort(key=lambda record: (record.range.start, record.range.end))
    _check_places(records, cursor)
    return WeightFile(name, size, min(data_start, size), tuple(records), metadata)


class _Cursor:
    """Reads a header front to back through one window; nothing is allocated by a number that the file states."""

    def __init__(self, pread: Pread, size: int, name: str, *, sparse: bool = False) -> None:
        self._pread, self.size, self.name, self._sparse = pread, size, name, sparse
        self.position = self.kept_bytes = self.entries = 0
        self._start, self._window = 0, b""

    def take(self, count: int) -> bytes:
        """The next ``count`` bytes; a refusal where the file has fewer."""
        self._reserve(count)
        start = self.position - self._start
        if start < 0 or start + count > len(self._window):
            self._start = self.position
            self._window = self._pread(max(count, self._ahead()), self.position)
            start = 0
            if len(self._window) < count:
                self.refuse("ends inside its header", "truncated-header")
        self.position += count
        return self._window[start : start + count]

    def _ahead(self) -> int:
        """Bytes of the next window; sparse, they grow with what was read, so that two thirds of all are header."""
        return min(max(_LEAST, self.position // 2), _WINDOW) if self._sparse else _WINDOW

    def skip(self, count: int) -> None:
        """Pass over ``count`` bytes without reading them."""
        self._reserve(count)
        self.position += count

    def _reserve(self, count: int) -> None:
        end = self.position + count
        if end > self.size:
            self.refuse("ends inside its header", "truncated-header", _INCOMPLETE)
        if end > HEADER_LIMIT:
            self.refuse(f"has a header of more than {HEADER_LIMIT:,} bytes", "header-too-large")

    def unpack(self, layout: str) -> int | float | bool:
        """One number."""
        value: int | float | bool = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def natural(self, layout: str) -> int:
        """One unsigned integer."""
        return int(self.unpack(layout))

    def counted(self, limit: int, noun: str, least: int) -> int:
        """A number of entries of at least ``least`` bytes each, which must fit the file."""
        number = self.natural("<Q")
        if number > limit or number * least > self.size:
            self.refuse(f"declares {number:,} {noun}, more than it can hold", "count")
        return number

    def text(self, limit: int, noun: str) -> str:
        """A string of at most ``limit`` bytes."""
        length = self.natural("<Q")
        if length > limit:
            self.refuse(f"has a {noun} of {length:,} bytes", "name-length")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"has a {noun} that is not UTF-8", "not-utf8")

    def refuse(self, why: str, code: str, hint: str = "") -> NoReturn:
        raise UnreadableError(
            f"{shown(self.name)} {why}",
            hint or "only well-formed GGUF files are read; convert it again",
            f"gguf.{code}",
        )


def _check_version(cursor: _Cursor) -> None:
    if cursor.size < 24:
        cursor.refuse(f"has {cursor.size} bytes, too few for a header", "too-small")
    magic = cursor.take(4)
    if magic != MAGIC:
        kind = _OTHERS.get(magic) or _OTHERS.get(magic[::-1], "something else")
        cursor.refuse(f"does not start with GGUF: it is {kind}", "magic", "convert the model again with llama.cpp")
    version = cursor.natural("<I")
    if version in VERSIONS:
        return
    if version & 0xFFFF == 0 and version >> 16:
        cursor.refuse("is a big-endian GGUF file, which is not read", "big-endian", "turn it with gguf-convert-endian")
    known = " and ".join(map(str, VERSIONS))
    why = f"is GGUF version {version}; versions {known} are read"
    cursor.refuse(why, "version", "convert the model with a current llama.cpp")


# --- metadata --------------------------------------------------------------------------------------------


def _metadata(cursor: _Cursor, keys: int) -> dict[str, str]:
    """The scalar entries as text; long strings and arrays are passed over."""
    metadata: dict[str, str] = {}
    seen: set[str] = set()
    for _ in range(keys):
        key = cursor.text(MAX_NAME, "metadata key")
        _count_kept(cursor, len(key))
        if key in seen:
            cursor.refuse(f"holds the metadata key {shown(key)} twice", "repeated-key")
        seen.add(key)
        value = _value(cursor, cursor.natural("<I"), 0)
        if value is not None:
            metadata[key] = value
    return metadata


def _value(cursor: _Cursor, kind: int, depth: int) -> str | None:
    if kind == _STRING:
        return _string(cursor)
    if kind == _ARRAY:
        _skip_array(cursor, depth)
        return None
    if kind not in _SCALARS:
        cursor.refuse(f"has a metadata value of the unknown type {kind}", "value-type")
    value = cursor.take(struct.calcsize(_SCALARS[kind]))
    return str(struct.unpack(_SCALARS[kind], value)[0])


def _string(cursor: _Cursor) -> str | None:
    length = cursor.natural("<Q")
    if length > _LONGEST_TEXT:
        cursor.skip(length)
        return None
    _count_kept(cursor, length)
    return cursor.take(length).decode("utf-8", errors="replace")


def _count_kept(cursor: _Cursor, length: int) -> None:
    cursor.kept_bytes += length
    if cursor.kept_bytes > _TEXT_IN_ALL:
        cursor.refuse(f"has metadata keys and strings of more than {_TEXT_IN_ALL:,} bytes", "metadata-size")


def _skip_array(cursor: _Cursor, depth: int) -> None:
    kind, length = cursor.natural("<I"), cursor.natural("<Q")
    if kind in _SCALARS:
        cursor.skip(length * struct.calcsize(_SCALARS[kind]))
        return
    if kind not in (_STRING, _ARRAY) or depth >= MAX_DEPTH:
        cursor.refuse(f"has an array of the type {kind} that is not read", "value-type")
    cursor.entries += length
    if length * 8 > cursor.size or cursor.entries > _MOST_ENTRIES:
        cursor.refuse(f"declares an array of {length:,} entries, more than it can hold", "count")
    for _ in range(length):
        if kind == _STRING:
            cursor.skip(cursor.natural("<Q"))
        else:
            _skip_array(cursor, depth + 1)


def _alignment(metadata: dict[str, str], cursor: _Cursor) -> int:
    text = metadata.get("general.alignment", "32")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not number or number & (number - 1):
        cursor.refuse(f"declares the alignment {shown(text)}, no power of two", "alignment")
    return number


# --- tensors ---------------------------------------------------------------------------------------------

_Info = tuple[str, tuple[int, ...], int, int]


def _info(cursor: _Cursor) -> _Info:
    """Name, shape (outermost first), type number and offset of one tensor."""
    name = cursor.text(MAX_NAME, "tensor name")
    rank = cursor.natural("<I")
    if rank > MAX_RANK:
        cursor.refuse(f"gives tensor {shown(name)} {rank} dimensions", "rank")
    shape = tuple(cursor.natural("<Q") for _ in range(rank))[::-1]
    return name, shape, cursor.natural("<I"), cursor.natural("<Q")


def _counted(info: _Info, names: NameCount, cursor: _Cursor) -> _Info:
    if excess := names.excess((info[0],), 1):
        cursor.refuse(f"holds {excess}", "tensors")
    return info


def _record(info: _Info, data_start: int, alignment: int, cursor: _Cursor) -> TensorRecord:
    name, shape, kind, offset = info
    if kind not in TYPES:
        cursor.refuse(f"gives tensor {shown(name)} the unknown ggml type {kind}", "type", "a newer tieconv may read it")
    dtype, block, width = TYPES[kind]
    if (shape[-1] if shape else 1) % block:
        cursor.refuse(f"gives tensor {shown(name)} rows of {shape[-1:]} elements in {dtype} blocks of {block}", "block")
    nbytes = prod(shape) // block * width
    # A side of 0 does not undo an overflow of the others.
    if prod(side or 1 for side in shape) * width >= 1 << 63 or offset >= 1 << 63:
        cursor.refuse(f"gives tensor {shown(name)} a size that overflows 64 bits", "overflow")
    if offset % alignment:
        cursor.refuse(f"places tensor {shown(name)} at {offset}, off its alignment of {alignment}", "offset")
    start = data_start + offset
    return TensorRecord(name, dtype, shape, ByteRange(cursor.name, start, start + nbytes))


def _check_places(records: list[TensorRecord], cursor: _Cursor) -> None:
    """Names are unique, no tensor overlaps another one or reaches past the end."""
    position, names = 0, set[str]()
    for record in records:
        if record.name in names:
            cursor.refuse(f"holds tensor {shown(record.name)} twice", "repeated-tensor")
        names.add(record.name)
        if record.range.start < position:
            cursor.refuse(f"places tensor {shown(record.name)} over the one before it", "overlap")
        position = record.range.end
        if position > cursor.size:
            cursor.refuse(
                f"ends at byte {cursor.size:,} but tensor {shown(record.name)} reaches to {position:,}",
                "truncated",
                _INCOMPLETE,
            )
