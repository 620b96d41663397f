"""Read GGUF files strictly, from their header alone. No tensor byte is read.

Source: the GGUF specification (ggml, docs/gguf.md) and the types of gguf 0.19. Versions 2 and 3 share one layout.
Tensor shapes are reversed: GGUF lists the innermost dimension first, other formats list it last.
"""

from __future__ import annotations

from math import prod

from tieconv.checkpoint.files.git_files import LARGEST, check_git_file
from tieconv.checkpoint.files.weight_file import ByteRange, GgufHeader, TensorRecord, WeightFile
from tieconv.formats.gguf.ggml_types import TYPES
from tieconv.formats.gguf.header_cursor import INCOMPLETE, MAX_NAME, HeaderCursor, Pread
from tieconv.formats.gguf.metadata import alignment_of, read_metadata
from tieconv.formats.limits import MAX_TENSORS, NameCount
from tieconv.text import shown

SUFFIX = ".gguf"
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
    version = _version(cursor)
    tensors = cursor.counted(MAX_TENSORS, "tensors", least=24)
    keys = cursor.counted(MAX_KEYS, "metadata keys", least=13)
    start = cursor.position
    metadata = read_metadata(cursor, keys)
    entries = ByteRange(name, start, cursor.position)
    names = NameCount()
    infos = [_counted(_info(cursor), names, cursor) for _ in range(tensors)]
    alignment = alignment_of(metadata, cursor)
    data_start = -(-cursor.position // alignment) * alignment
    # Popping each info frees memory for its record.
    infos.reverse()
    records = [_record(infos.pop(), data_start, alignment, cursor) for _ in range(tensors)]
    records.sort(key=lambda record: (record.range.start, record.range.end))
    _check_places(records, cursor)
    header = GgufHeader(version, keys, entries, alignment)
    return WeightFile(name, size, min(data_start, size), tuple(records), metadata, gguf=header)


def _version(cursor: HeaderCursor) -> int:
    if cursor.size < 24:
        cursor.refuse(f"has {cursor.size} bytes, too few for a header", "too-small")
    magic = cursor.take(4)
    if magic != MAGIC:
        kind = _OTHERS.get(magic) or _OTHERS.get(magic[::-1], "a file without the GGUF magic number")
        cursor.refuse(f"is {kind}, not a GGUF file", "magic", "convert the model again with llama.cpp")
    version = cursor.natural("<I")
    if version & 0xFFFF == 0 and version >> 16:
        cursor.refuse("is a big-endian GGUF file", "big-endian", "convert it first: gguf-convert-endian FILE little")
    if version not in VERSIONS:
        known = " and ".join(map(str, VERSIONS))
        why = f"has GGUF version {version}, but tieconv reads versions {known}"
        cursor.refuse(why, "version", "convert the model with a current llama.cpp")
    return version


_Info = tuple[str, tuple[int, ...], int, int]


def _info(cursor: HeaderCursor) -> _Info:
    """Return the name, shape (outermost first), type number and offset of one tensor."""
    name = cursor.text(MAX_NAME, "tensor name")
    rank = cursor.natural("<I")
    if rank > MAX_RANK:
        cursor.refuse(f"gives tensor {shown(name)} {rank} dimensions, more than {MAX_RANK}", "rank")
    shape = tuple(cursor.natural("<Q") for _ in range(rank))[::-1]
    return name, shape, cursor.natural("<I"), cursor.natural("<Q")


def _counted(info: _Info, names: NameCount, cursor: HeaderCursor) -> _Info:
    if excess := names.excess((info[0],), 1):
        cursor.refuse(f"holds {excess}", "tensors")
    return info


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
    for record in records:
        if record.name in names:
            cursor.refuse(f"holds tensor {shown(record.name)} twice", "repeated-tensor")
        names.add(record.name)
        if record.range.start < position:
            cursor.refuse(f"places tensor {shown(record.name)} so that it overlaps the previous tensor", "overlap")
        position = record.range.end
        if position > cursor.size:
            cursor.refuse(
                f"ends at byte {cursor.size:,} but tensor {shown(record.name)} reaches to {position:,}",
                "truncated",
                INCOMPLETE,
            )
