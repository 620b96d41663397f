"""Read the central directory of a zip archive strictly: its position and the entries that it lists.

Source: APPNOTE.TXT 6.3.10, and `caffe2/serialize` of torch 2.13, which writes zip64 records at any size.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from tieconv.formats.limits import MAX_TENSORS
from tieconv.formats.other_tools import by_entries
from tieconv.formats.torch.pickle.values import refuse
from tieconv.text import shown

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""

CENTRAL, END, END64, LOCATOR64 = b"PK\x01\x02", b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
DIRECTORY_LIMIT = 128_000_000
"""The largest central directory in bytes."""
_MAX_ENTRIES = MAX_TENSORS // 2 + 1000  # each is a storage, which needs twice the memory of a tensor
"""The most entries of the directory: a storage for each tensor, and a few records."""
MAX_NAME = 1024
MAX32 = 0xFFFFFFFF
"""The value of a 32-bit field whose number is in the zip64 extra field."""
DESCRIBED = 0x0008
"""The flag of an entry that has a data descriptor."""
_UTF8 = 0x0800
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHHH2xII")
_DIRECTORY = 0x10
"""The attribute bit of a directory. torch does not read the bytes of such an entry."""
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_central = _CENTRAL.unpack_from
_lengths = struct.Struct("<HHH").unpack_from
_MAX16 = 0xFFFF
_NAMES = 16 << 20
"""The most bytes of names that tieconv reads to recognise the kind of an archive."""
_LOCAL_NAME = 30
"""Offset of the name in the local header of an entry."""
_OF_TORCH = rb"/(data\.pkl|version|byteorder|\.format_version|\.storage_alignment|\.?data/.*)\Z"
_ORDINARY = "is an ordinary zip archive, not a torch file: it has no data.pkl"
_SEARCHED = 1 << 20


class Listed(NamedTuple):
    """An entry of the directory. Sorts by ``offset``, the offset of its local header."""

    offset: int
    name: bytes
    flags: int
    method: int
    crc: int
    size: int


def malformed(why: str, code: str) -> NoReturn:
    """Raise `PickleProblem` for a damaged or hostile archive."""
    refuse(why, code, "the file is damaged or hostile; fetch it again from its publisher")


def shown_name(name: bytes) -> str:
    """Return an entry's name, safe to print."""
    return shown(name.decode("utf-8", "replace"))


def directory_place(pread: Pread, size: int) -> tuple[int, int, int, int]:
    """Return the directory's offset, bytes and number of entries, and the offset of the first end record."""
    tail = pread(_END.size, max(size - _END.size, 0))
    if len(tail) < _END.size or not tail.startswith(END):
        ending = pread(min(size, _SEARCHED), max(size - _SEARCHED, 0))
        if 0 <= ending.rfind(END) <= len(ending) - _END.size:
            _refuse_ordinary(pread)
            malformed("has bytes after the end of its zip archive", "zip.suffix")
        malformed("is a truncated zip archive: it has no end record", "zip.truncated")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack(tail)
    end = size - _END.size
    if disk or first_disk or here != count or comment:
        _refuse_ordinary(pread)
        malformed("is a zip archive of several parts or with a comment", "zip.end")
    locator = pread(_LOCATOR64.size, end - _LOCATOR64.size) if end >= _LOCATOR64.size else b""
    if locator.startswith(LOCATOR64):
        return _place64(pread, locator, end - _LOCATOR64.size, (count, length, start))
    if count == _MAX16 or MAX32 in (length, start):
        malformed("is a zip archive without a zip64 record", "zip.end")
    return _bounded(start, length, count, end)


def _refuse_ordinary(pread: Pread) -> None:
    """Refuse an archive whose first entry shows that it is not a torch file."""
    first = pread(_LOCAL_NAME + MAX_NAME, 0)
    length = int.from_bytes(first[26:28], "little")
    if not re.search(_OF_TORCH, first[_LOCAL_NAME : _LOCAL_NAME + length]):
        refuse(_ORDINARY, "torch.no-pickle", "unpack it first")


def _place64(pread: Pread, locator: bytes, end: int, small: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """Return the same from the zip64 record. The ordinary end record must agree or be empty."""
    _, disk, offset, disks = _LOCATOR64.unpack(locator)
    raw = pread(_END64.size, offset) if offset == end - _END64.size else b""
    if disk or disks != 1 or len(raw) != _END64.size or not raw.startswith(END64):
        malformed("has a zip64 locator with a wrong offset", "zip.end")
    _, rest, _, _, disk, first_disk, here, count, length, start = _END64.unpack(raw)
    if disk or first_disk or here != count or rest != _END64.size - 12:
        malformed("is a zip archive of several parts", "zip.end")
    open_ends = (_MAX16, MAX32, MAX32)
    for value, plain, unset in zip((count, length, start), small, open_ends, strict=True):
        if plain not in (value, unset):
            malformed("has two end records that disagree", "zip.end")
    return _bounded(start, length, count, offset)


def _bounded(start: int, length: int, count: int, end: int) -> tuple[int, int, int, int]:
    if count > _MAX_ENTRIES:
        refuse(f"has a directory of {count:,} entries, more than the limit of {_MAX_ENTRIES:,}", "zip.too-large")
    if length > DIRECTORY_LIMIT:
        refuse(f"has a directory of {length:,} bytes, more than the limit of {DIRECTORY_LIMIT:,}", "zip.too-large")
    if start + length > end or count * _CENTRAL.size > length:
        malformed("has a directory that does not fit the file", "zip.directory")
    return start, length, count, end


def listed_entries(data: bytes, count: int) -> list[Listed]:
    """Return the ``count`` entries of the directory ``data``. Refuses compressed entries."""
    _check_kind(data)
    listed: list[Listed] = []
    position, last_start = 0, len(data) - _CENTRAL.size
    for _ in range(count):
        if position > last_start:
            malformed("ends inside its directory", "zip.directory")
        entry, position = _listed(data, position)
        listed.append(entry)
    if position != len(data):
        malformed("has bytes after the last entry of its directory", "zip.junk")
    if any(entry.method for entry in listed):
        refuse("has a compressed entry, which torch.save does not write", "zip.compressed", "unpack it first")
    return listed


def _check_kind(data: bytes) -> None:
    """Refuse an archive of another tool, recognised by the names of its entries."""
    names = _names(data)
    kind = by_entries(names)
    if kind is not None:
        refuse(kind.sentence_end, f"torch.{kind.code}", kind.hint)
    if 0 < len(names) < _NAMES and not re.search(rb"(?:^|/)data\.pkl\n", names, re.MULTILINE):
        refuse(_ORDINARY, "torch.no-pickle", "unpack it first")


def _names(data: bytes) -> bytes:
    """Return the names of the entries, each followed by a newline. Stops after 16 MiB or at a malformed entry."""
    position, last_start, names, taken = 0, len(data) - _CENTRAL.size, bytearray(), 0
    while data[position : position + 4] == CENTRAL and position <= last_start and taken < _NAMES:
        name, extra, comment = _lengths(data, position + 28)
        position += _CENTRAL.size
        names += data[position : position + name] + b"\n"
        position += name + extra + comment
        taken += name + 1
    return bytes(names)


def _listed(data: bytes, position: int) -> tuple[Listed, int]:
    magic, flags, method, crc, packed, size, name_length, extra_length, comment, disk, kind, offset = _central(
        data, position
    )
    name_start = position + _CENTRAL.size
    extra_start = name_start + name_length
    end = extra_start + extra_length
    if magic != CENTRAL or end > len(data):
        malformed("has a broken directory", "zip.directory")
    if (
        disk not in (0, _MAX16)
        or comment
        or kind & _DIRECTORY
        or flags & ~(DESCRIBED | _UTF8)
        or name_length > MAX_NAME
    ):
        malformed("has an entry with flags or fields that torch.save does not write", "zip.entry")
    name = data[name_start:extra_start]
    if MAX32 in (size, packed, offset):  # the numbers do not fit 32 bits
        size, packed, offset = wide(data[extra_start:end], size, packed, offset)
    if size != packed and not method:
        malformed(f"has an entry {shown_name(name)} with two different sizes", "zip.size")
    return Listed(offset, name, flags, method, crc, size), end


def wide(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """Return the fields, with numbers from the zip64 extra field where 32 bits are not enough."""
    field = _extra(extra, 1)
    values = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
    try:
        wide = [next(values) if value == MAX32 else value for value in (size, packed, offset)]
    except StopIteration:
        malformed("has an entry without zip64 sizes", "zip.size")
    return wide[0], wide[1], wide[2]


def _extra(extra: bytes, wanted: int) -> bytes:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        position += 4
        if kind == wanted:
            return extra[position : position + length]
        position += length
    return b""
