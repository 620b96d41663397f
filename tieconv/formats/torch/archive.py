"""Read the zip archive that `torch.save` writes. Refuse anything that two zip readers could read differently."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, NoReturn

from tieconv.formats.limits import MAX_TENSORS
from tieconv.formats.other_tools import by_entries
from tieconv.formats.torch.pickle_stack import refuse
from tieconv.text import shown

# Read the central directory of a zip archive strictly: its position and the entries that it lists.
#
# Source: APPNOTE.TXT 6.3.10, and `caffe2/serialize` of torch 2.13, which writes zip64 records at any size.

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
    # 0x10 is the attribute bit of a directory. torch does not read the bytes of such an entry.
    if disk not in (0, _MAX16) or comment or kind & 0x10 or flags & ~(DESCRIBED | _UTF8) or name_length > MAX_NAME:
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


# Read the zip archive that `torch.save` writes. Refuse anything that two zip readers could read differently.
#
# Entries are not compressed and follow one another without a gap from the first byte of the file. Both headers of an
# entry agree, and the directory follows the last entry. Source: APPNOTE.TXT 6.3.10, and `caffe2/serialize` of torch
# 2.13, which writes data descriptors and zip64 records at any size.

LOCAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x07\x08"
_LOCAL = struct.Struct("<4s2xHH4xIIIHH")
_local = _LOCAL.unpack_from
_DESCRIPTOR, _DESCRIPTOR64 = struct.Struct("<4sIII").pack, struct.Struct("<4sIQQ").pack
_SHORT, _LONG = 16, 24
"""Bytes of a data descriptor with 32-bit sizes and with 64-bit sizes."""
_WINDOW = 1 << 16
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})+")
"""A path without ``.``, ``..`` or an empty part, without backslashes or control characters."""
_USUAL = re.compile(r"data/[0-9]+")


class Entry(NamedTuple):
    """A record of the archive: bytes ``start`` to ``end`` of the file, and their CRC-32."""

    name: str
    start: int
    end: int
    crc: int

    @property
    def size(self) -> int:
        return self.end - self.start


def read_archive(pread: Pread, size: int, *, sparse: bool = False) -> dict[str, Entry]:
    """Return the records by their names inside the archive, without its top directory.

    ``sparse`` is for a source on which each read is a request. Local headers are not read
    if the directory and the layout of `torch.save` allow only one offset for a storage.

    Raises `PickleProblem` for an archive that is not exactly what `torch.save` writes.
    """
    start, length, count, end = directory_place(pread, size)
    data = pread(length, start)
    names = _names(data)  # they show an archive of another tool
    kind = by_entries(names)
    if kind is not None:
        refuse(kind.sentence_end, f"torch.{kind.code}", kind.hint)
    if 0 < len(names) < _NAMES and not re.search(rb"(?:^|/)data\.pkl\n", names, re.MULTILINE):
        refuse(_ORDINARY, "torch.no-pickle", "unpack it first")
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
    listed.sort()
    entries = _entries(_Window(pread, start), listed, start, sparse)
    if start + length != end:
        malformed("has bytes between its directory and its end", "zip.junk")
    return _without_top(entries)


def content(pread: Pread, entry: Entry, limit: int) -> bytes:
    """Return a small record after checking its CRC-32."""
    if entry.size > limit:
        problem = f"has a record {shown(entry.name)} of {entry.size:,} bytes, more than the limit of {limit:,}"
        refuse(problem, "zip.too-large")
    data = pread(entry.size, entry.start)
    if len(data) != entry.size or zlib.crc32(data) != entry.crc:
        malformed(f"has a record {shown(entry.name)} whose checksum is wrong", "zip.crc")
    return data


class _Window:
    """Serves small forward reads from one larger read, because an archive has many small headers."""

    def __init__(self, pread: Pread, end: int) -> None:
        self._pread, self._end = pread, end
        self._start, self._data = 0, b""

    def read(self, size: int, offset: int) -> bytes:
        at = offset - self._start
        if not 0 <= at <= len(self._data) - size:
            wanted = _WINDOW if 0 <= at < len(self._data) + _WINDOW else size
            self._data = self._pread(max(min(wanted, self._end - offset), size), offset)
            self._start, at = offset, 0
        return self._data[at : at + size]


def _entries(window: _Window, listed: list[Listed], end: int, sparse: bool) -> list[Entry]:
    """Return the entries, which must follow one another from the first byte to the directory. Consumes ``listed``."""
    taken: list[Entry] = []
    position = 0
    following = [entry[0] for entry in listed]
    following.append(end)
    for number, (offset, name, flags, _, crc, size) in enumerate(listed, 1):
        if offset != position:
            problem = "has bytes before its first entry" if not taken else "has entries that overlap or leave a gap"
            malformed(problem, "zip.overlap" if taken else "zip.prefix")
        listed[number - 1] = _USED
        derived = _derived_start(offset, name, flags, size, following[number]) if sparse else None
        if derived is not None:
            position = following[number]
            taken.append(Entry(_text(name), derived, derived + size, crc))
            continue
        start = _data_start(window, offset, name, flags, crc, size)
        stop, position = start + size, following[number]
        if stop > position:
            malformed(f"has an entry {shown_name(name)} that overlaps the next entry", "zip.overlap")
        if not flags & DESCRIBED:
            position = stop
        elif not _described(window, stop, position - stop, crc, size):
            _refuse_headers(name)
        taken.append(Entry(_text(name), start, stop, crc))
    if position != end:
        malformed("has bytes between its last entry and its directory", "zip.junk")
    return taken


_USED = Listed(0, b"", 0, 0, 0, 0)
_ALIGNED = 64
"""The alignment in bytes that `torch.save` gives storages."""
_STORAGE = re.compile(rb"[^/]+/data/[0-9]+")


def _derived_start(offset: int, name: bytes, flags: int, size: int, following: int) -> int | None:
    """Compute the offset of a storage from its size and the next entry. ``None`` unless one offset is aligned."""
    if not _STORAGE.fullmatch(name):
        return None
    least = offset + _LOCAL.size + len(name) + 4  # an extra field for padding, which may be empty
    ends = (_SHORT, _LONG) if flags & DESCRIBED else (0,)
    starts = [following - size - end for end in ends]
    # The zip64 sizes in a local header take 20 bytes.
    fitting = [start for start in starts if start % _ALIGNED == 0 and least <= start < least + _ALIGNED + 20]
    return fitting[0] if len(fitting) == 1 else None


def _refuse_headers(name: bytes) -> NoReturn:
    malformed(f"has an entry {shown_name(name)} whose two headers disagree", "zip.headers")


def _data_start(window: _Window, offset: int, name: bytes, listed_flags: int, listed_crc: int, listed_size: int) -> int:
    """Return the offset of the data. Refuses a local header that disagrees with the directory."""
    length = len(name)
    head = _LOCAL.size + length
    raw = window.read(head, offset)
    if len(raw) < head:
        malformed("ends inside an entry", "zip.truncated")
    magic, flags, method, crc, packed, size, name_length, extra_length = _local(raw)
    if magic != LOCAL or raw[_LOCAL.size :] != name or name_length != length or flags != listed_flags or method:
        _refuse_headers(name)
    left_open = flags & DESCRIBED and not (crc or packed or size)
    if not left_open:
        if MAX32 in (size, packed):
            size, packed, _ = wide(window.read(extra_length, offset + head), size, packed, 0)
        if (crc, packed, size) != (listed_crc, listed_size, listed_size):
            _refuse_headers(name)
    return offset + head + int(extra_length)


def _described(window: _Window, start: int, length: int, crc: int, size: int) -> bool:
    """Return whether the ``length`` bytes behind an entry are a data descriptor that matches the directory."""
    if length == _SHORT and size <= MAX32:
        return window.read(_SHORT, start) == _DESCRIPTOR(DESCRIPTOR, crc, size, size)
    return length == _LONG and window.read(_LONG, start) == _DESCRIPTOR64(DESCRIPTOR, crc, size, size)


def _text(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        malformed("has an entry whose name is not UTF-8", "zip.name")


def _without_top(entries: list[Entry]) -> dict[str, Entry]:
    """Return the entries by their names below the one top directory. Refuses repeated and unsafe names."""
    if not entries:
        malformed("is an empty zip archive", "zip.empty")
    top = entries[0].name.partition("/")[0] + "/"
    if not _NAME.fullmatch(top + "data"):
        malformed(f"has an entry {shown(entries[0].name)}, a name that torch.save does not write", "zip.name")
    by_name: dict[str, Entry] = {}
    skip, usual = len(top), _USUAL.fullmatch
    for entry in entries:
        name = entry.name
        if not name.startswith(top) or not (usual(name, skip) or _NAME.fullmatch(name)):
            malformed(f"has an entry {shown(name)}, a name that torch.save does not write", "zip.name")
        by_name[name[skip:]] = entry
    if len(by_name) < len(entries):
        malformed(f"has two entries named {shown(_repeated(entries)[skip:])}", "zip.repeated")
    return by_name


def _repeated(entries: list[Entry]) -> str:
    names = sorted(entry.name for entry in entries)
    return next(name for name, following in pairwise(names) if name == following)
