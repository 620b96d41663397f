"""Read a model stored as GGUF strictly, from the headers of one file or of the numbered parts.

No tensor byte is read.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod
from typing import NoReturn

from tieconv.checkpoint.model_files import LARGEST, Caution, Checkpoint, Files, Layout, Listing, check_git_file
from tieconv.checkpoint.weight_file import ByteRange, GgufHeader, TensorRecord, WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats import GGUF_SUFFIX
from tieconv.formats.directory import Format, checkpoint_of
from tieconv.formats.limits import MAX_TENSORS, NameCount
from tieconv.text import Hint, call, count, listed, path_word, shown

# Read a model stored as GGUF: one file, or the numbered parts that `llama-gguf-split` writes. Read only.

NEXT_STEP = "change the original model, then convert it to GGUF again"

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf$")


def _claims(listing: Listing) -> bool:
    names = (listing.named,) if listing.named else listing.top
    return any(name.endswith(GGUF_SUFFIX) for name in names)


def _read(listing: Listing, files: Files) -> Checkpoint:
    names = _parts(listing, listing.named or _the_one(listing))
    weights = tuple(_read_one(files, name) for name in names)
    whole = listing.named is None
    layout = Layout.SHARDED if len(names) > 1 else Layout.SINGLE if whole else Layout.FILE
    read = replace(
        checkpoint_of(listing, files, layout, "gguf", weights, names), cautions=_repeated(weights), read_only=NEXT_STEP
    )
    return read if whole else replace(read, companions={}, special=())


def _the_one(listing: Listing) -> str:
    """Return the model file of a directory, or the first of its parts."""
    models = models_among(listing.top)
    if len(models) == 1:
        return models[0]
    paths = [os.path.join(listing.source, name) for name in models]
    problem = f"{shown(listing.source)} holds {count(len(models), 'GGUF model')}: {listed(models)}"
    hint = Hint(f"give the path of one of them: {path_word(paths[0])}; or check each: ", call("check", *paths))
    raise UnreadableError(problem, hint, "layout.ambiguous")


def models_among(names: Iterable[str]) -> tuple[str, ...]:
    """Return the GGUF models among the file ``names`` of a directory. A split model is named by its first part.

    The projectors of vision models (`mmproj-*`) do not count beside a model.
    """
    stored = sorted(name for name in names if name.endswith(GGUF_SUFFIX))
    models = [name for name in stored if "mmproj" not in name.lower()] or stored
    return tuple({_stem(name): name for name in reversed(models)}.values())[::-1]


def _stem(name: str) -> str:
    match = _PART.match(name)
    return f"{match['stem']}-of-{match['total']}" if match else name


def _parts(listing: Listing, name: str) -> tuple[str, ...]:
    match = _PART.match(name)
    if match is None:
        return (name,)
    total = int(match["total"])
    names = tuple(sorted(entry for entry in listing.top if _stem(entry) == _stem(name)))
    if len(names) != total:
        problem = f"{shown(name)} is one of {total:,} parts, but the directory holds {len(names):,}"
        hint = "fetch the missing parts, or join them with llama-gguf-split --merge"
        raise UnreadableError(problem, hint, "gguf.absent-part")
    return names


def _read_one(files: Files, name: str) -> WeightFile:
    sparse = bool(getattr(files, "costly", False))
    size = files.state(name).size
    return read_weight_file(lambda count, offset: files.pread(name, count, offset), size, name, sparse=sparse)


def _repeated(weights: tuple[WeightFile, ...]) -> tuple[Caution, ...]:
    homes: dict[str, int] = {}
    for file in weights:
        for tensor in file.tensors:
            homes[tensor.name] = homes.get(tensor.name, 0) + 1
    repeated = tuple(name for name, number in homes.items() if number > 1)
    if not repeated:
        return ()
    message = f"{listed(repeated, 3)} {'is' if len(repeated) == 1 else 'are'} stored in more than one part"
    return (Caution("index.repeated", message, repeated),)


GGUF = Format("gguf", _claims, _read)


# Read GGUF files strictly, from their header alone. No tensor byte is read.
#
# Source: the GGUF specification (ggml, docs/gguf.md) and the types of gguf 0.19. Versions 2 and 3 share one layout.
# Tensor shapes are reversed: GGUF lists the innermost dimension first, other formats list it last.

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 100_000
MAX_RANK = 4
_OTHERS = {b"ggml": "a GGML file", b"ggjt": "a GGJT file", b"ggla": "a GGLA adapter"}


def read_weight_file(pread: Pread, size: int, name: str, *, sparse: bool = False) -> WeightFile:
    """Return the tensors of one file and its scalar metadata as text. Raises `UnreadableError` with a stable code.

    If ``sparse`` is true, reads little more than the header.
    """
    check_git_file(name, pread(min(size, LARGEST), 0), size)
    cursor = HeaderCursor(pread, size, name, sparse=sparse)
    if cursor.size < 24:
        cursor.refuse(f"has {count(cursor.size, 'byte')}, too few for a header", "too-small")
    magic = cursor.take(4)
    if magic != MAGIC:
        kind = _OTHERS.get(magic) or _OTHERS.get(magic[::-1], "a file without the GGUF magic number")
        cursor.refuse(f"is {kind}, not a GGUF file", "magic", "convert the model again with llama.cpp")
    version = cursor.natural("<I")
    if version & 0xFFFF == 0 and version >> 16:
        hint = (
            "convert the model again as little-endian; gguf-convert-endian spoils BF16 and codes that gguf 0.19 wrote"
        )
        cursor.refuse("is a big-endian GGUF file", "big-endian", hint)
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        why = f"has GGUF version {version}, but tieconv reads versions {known}"
        cursor.refuse(why, "version", "convert the model with a current llama.cpp")
    tensors = cursor.counted(MAX_TENSORS, "tensors", least=24)
    keys = cursor.counted(MAX_KEYS, "metadata keys", least=13)
    start = cursor.position
    metadata, types, lengths = read_metadata(cursor, keys)
    entries = ByteRange(name, start, cursor.position)
    names = NameCount()
    infos = []
    for _ in range(tensors):
        infos.append(_info(cursor))
        if excess := names.excess(infos[-1][:1], 1):
            cursor.refuse(f"holds {excess}", "tensors")
    # The alignment of tensors in bytes. Refuses a number that is not a power of two.
    text = metadata.get("general.alignment", "32")
    alignment = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not alignment or alignment & (alignment - 1):
        cursor.refuse(f"declares the alignment {shown(text)}, which is not a power of two", "alignment")
    data_start = -(-cursor.position // alignment) * alignment
    # Popping each info frees memory for its record.
    infos.reverse()
    records = [_record(infos.pop(), data_start, alignment, cursor) for _ in range(tensors)]
    records.sort(key=lambda record: (record.range.start, record.range.end))
    _check_places(records, cursor)
    header = GgufHeader(version, keys, entries, alignment, types, lengths)
    return WeightFile(name, size, min(data_start, size), tuple(records), metadata, gguf=header)


_Info = tuple[str, tuple[int, ...], int, int]


def _info(cursor: HeaderCursor) -> _Info:
    """Return the name, shape (outermost first), type number and offset of one tensor."""
    name = cursor.text(MAX_NAME, "tensor name")
    rank = cursor.natural("<I")
    if rank > MAX_RANK:
        cursor.refuse(f"gives tensor {shown(name)} {rank} dimensions, more than {MAX_RANK}", "rank")
    shape = tuple(cursor.natural("<Q") for _ in range(rank))[::-1]
    return name, shape, cursor.natural("<I"), cursor.natural("<Q")


def _record(info: _Info, data_start: int, alignment: int, cursor: HeaderCursor) -> TensorRecord:
    name, shape, kind, offset = info
    if kind not in TYPES:
        why = f"gives tensor {shown(name)} the unknown ggml type {kind}"
        cursor.refuse(why, "type", "upgrade tieconv: a newer version may know the type")
    dtype, block, width = TYPES[kind]
    if (shape[-1] if shape else 1) % block:
        why = f"gives tensor {shown(name)} the shape {list(shape)}, but {dtype} stores rows in blocks of {block}"
        cursor.refuse(why, "block")
    nbytes = prod(shape) // block * width
    # A dimension of 0 does not excuse an overflow of the others.
    if prod(side or 1 for side in shape) * width >= 1 << 63 or offset >= 1 << 63:
        cursor.refuse(f"gives tensor {shown(name)} a size that overflows 64 bits", "overflow")
    if offset % alignment:
        why = f"places tensor {shown(name)} at offset {offset}, which is not a multiple of {alignment}"
        cursor.refuse(why, "offset")
    start = data_start + offset
    return TensorRecord(name, dtype, shape, ByteRange(cursor.name, start, start + nbytes))


def _check_places(records: list[TensorRecord], cursor: HeaderCursor) -> None:
    """Refuse repeated names, overlapping tensors, and tensors that reach past the end of the file."""
    position, names = 0, set[str]()
    for tensor in records:
        if tensor.name in names:
            cursor.refuse(f"holds tensor {shown(tensor.name)} twice", "repeated-tensor")
        names.add(tensor.name)
        if tensor.range.start < position:
            cursor.refuse(f"places tensor {shown(tensor.name)} so that it overlaps the previous tensor", "overlap")
        position = tensor.range.end
        if position > cursor.size:
            cursor.refuse(
                f"ends at byte {cursor.size:,} but tensor {shown(tensor.name)} reaches to {position:,}",
                "truncated",
                INCOMPLETE,
            )


HEADER_LIMIT = 512_000_000
"""The largest header in bytes. A vocabulary of a million tokens with its merges has 40 MB."""
MAX_NAME = 65_535
INCOMPLETE = "the download may be incomplete; fetch it again"
_LEAST, _WINDOW = 64 << 10, 1 << 20

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""


class HeaderCursor:
    """Reads a header from start to end through one window."""

    def __init__(self, pread: Pread, size: int, name: str, *, sparse: bool = False) -> None:
        self._pread, self.size, self.name, self._sparse = pread, size, name, sparse
        self.position = self.kept_bytes = self.entries = 0
        self._start, self._window = 0, b""

    def take(self, count: int) -> bytes:
        """Return the next ``count`` bytes. Raises `UnreadableError` if the file has fewer."""
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
        """Return the bytes of the next window. In sparse mode they grow, so that at least two thirds are header."""
        return min(max(_LEAST, self.position // 2), _WINDOW) if self._sparse else _WINDOW

    def skip(self, count: int) -> None:
        """Skip ``count`` bytes without reading them."""
        self._reserve(count)
        self.position += count

    def _reserve(self, count: int) -> None:
        end = self.position + count
        if end > self.size:
            self.refuse("ends inside its header", "truncated-header", INCOMPLETE)
        if end > HEADER_LIMIT:
            self.refuse(f"has a header of more than {HEADER_LIMIT:,} bytes", "header-too-large")

    def unpack(self, layout: str) -> int | float | bool:
        """Read one number."""
        value: int | float | bool = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def natural(self, layout: str) -> int:
        """Read one unsigned integer."""
        return int(self.unpack(layout))

    def counted(self, limit: int, noun: str, least: int) -> int:
        """Read a number of entries. Refuse it if entries of ``least`` bytes each would not fit the file."""
        number = self.natural("<Q")
        if number > limit or number * least > self.size:
            self.refuse(f"declares {number:,} {noun}, more than fit the file", "count")
        return number

    def text(self, limit: int, noun: str) -> str:
        """Read a string of at most ``limit`` bytes."""
        length = self.natural("<Q")
        if length > limit:
            self.refuse(f"has a {noun} of {length:,} bytes", "name-length")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            self.refuse(f"has a {noun} that is not UTF-8", "not-utf8")

    def refuse(self, why: str, code: str, hint: str = "") -> NoReturn:
        """Raise `UnreadableError` with a stable code."""
        problem = f"{shown(self.name)} {why}"
        raise UnreadableError(problem, hint or "convert the model again with llama.cpp", f"gguf.{code}")


# Read the metadata of a GGUF file: scalars as text. Long strings and arrays are skipped.

MAX_DEPTH = 4
_LONGEST_TEXT = 4096
"""The most bytes of a metadata string that is kept. Chat templates and licences are skipped."""
_TEXT_IN_ALL = 16_000_000
"""The most bytes of all metadata keys and all kept strings together."""
_MOST_ENTRIES = 4_000_000
"""The most strings and lists in all arrays. The largest vocabularies with merges have a quarter of this."""
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_NAMES = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64")
"""The types of metadata by their numbers, as llama.cpp prints them."""


def read_metadata(cursor: HeaderCursor, keys: int) -> tuple[dict[str, str], dict[str, str], dict[str, int]]:
    """Return the scalar entries as text, the type of every key, and the lengths of arrays. Raises `UnreadableError`."""
    metadata: dict[str, str] = {}
    types: dict[str, str] = {}
    lengths: dict[str, int] = {}
    for _ in range(keys):
        key = cursor.text(MAX_NAME, "metadata key")
        _count_kept(cursor, len(key))
        if key in types:
            cursor.refuse(f"holds the metadata key {shown(key)} twice", "repeated-key")
        kind = cursor.natural("<I")
        if kind == _ARRAY:
            lengths[key] = _skip_array(cursor, 0)
        elif (value := _value(cursor, kind)) is not None:
            metadata[key] = value
        types[key] = _NAMES[kind]
    return metadata, types, lengths


def _value(cursor: HeaderCursor, kind: int) -> str | None:
    if kind == _STRING:
        length = cursor.natural("<Q")
        if length > _LONGEST_TEXT:
            cursor.skip(length)
            return None
        _count_kept(cursor, length)
        return cursor.take(length).decode("utf-8", errors="replace")
    if kind not in _SCALARS:
        cursor.refuse(f"has a metadata value of unknown type {kind}", "value-type")
    value = cursor.take(struct.calcsize(_SCALARS[kind]))
    return str(struct.unpack(_SCALARS[kind], value)[0])


def _count_kept(cursor: HeaderCursor, length: int) -> None:
    cursor.kept_bytes += length
    if cursor.kept_bytes > _TEXT_IN_ALL:
        cursor.refuse(f"has metadata keys and strings of more than {_TEXT_IN_ALL:,} bytes", "metadata-size")


def _skip_array(cursor: HeaderCursor, depth: int) -> int:
    kind, length = cursor.natural("<I"), cursor.natural("<Q")
    if kind in _SCALARS:
        cursor.skip(length * struct.calcsize(_SCALARS[kind]))
        return length
    if kind not in (_STRING, _ARRAY) or depth >= MAX_DEPTH:
        cursor.refuse(f"has a metadata array of unknown type {kind}", "value-type")
    cursor.entries += length
    if length * 8 > cursor.size or cursor.entries > _MOST_ENTRIES:
        cursor.refuse(f"declares an array of {length:,} entries, more than fit the file", "count")
    for _ in range(length):
        if kind == _STRING:
            cursor.skip(cursor.natural("<Q"))
        else:
            _skip_array(cursor, depth + 1)
    return length


# The element types of ggml by their numbers. Source: gguf 0.19.

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
"""Maps each ggml type number to its name, elements per block and bytes per block."""


# Write the parts of a GGUF header that change with its tensors. Source: ggml, docs/gguf.md.

START = 24
"""Bytes before the metadata entries: magic number, version, and the numbers of tensors and entries."""
_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}


def encode_infos(tensors: Iterable[tuple[str, tuple[int, ...], str, int]]) -> bytes:
    """Return the list of tensors: name, shape (outermost first), type and offset of each."""
    return b"".join(_tensor_info(*tensor) for tensor in tensors)


def _tensor_info(name: str, shape: tuple[int, ...], dtype: str, offset: int) -> bytes:
    text = name.encode()
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return struct.pack("<Q", len(text)) + text + dimensions + struct.pack("<IQ", _NUMBERS[dtype], offset)
