"""The zip archive that `torch.save` writes, read strictly: what one reader could see and another not is refused.

Entries are stored, follow one another without a gap from the file's first byte, agree in both of their headers, and
the directory follows the last of them. Source: APPNOTE.TXT 6.3.10, and `caffe2/serialize` of torch 2.13, whose
files carry data descriptors and zip64 records at any size.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, NoReturn

from tieconv.formats.pickle_values import refuse
from tieconv.text import shown

Pread = Callable[[int, int], bytes]
"""``pread(size, offset)``: up to ``size`` bytes at ``offset`` of one file."""

LOCAL, CENTRAL, DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
END, END64, LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
DIRECTORY_LIMIT = 128_000_000
"""The largest central directory in bytes: a million entries."""
MAX_NAME = 1024
_DESCRIBED, _UTF8 = 0x0008, 0x0800
_LOCAL = struct.Struct("<4s2xHH4xIIIHH")
_CENTRAL = struct.Struct("<4s4xHH4xIIIHHHH6xI")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<4sIQI")
_central, _local = _CENTRAL.unpack_from, _LOCAL.unpack_from
_MAX16, _MAX32 = 0xFFFF, 0xFFFFFFFF
_DESCRIPTOR, _DESCRIPTOR64 = struct.Struct("<4sIII").pack, struct.Struct("<4sIQQ").pack
_SEARCHED = 1 << 20
_SHORT, _LONG = 16, 24
"""Bytes of a data descriptor with sizes of 32 and of 64 bits."""
_WINDOW = 1 << 16
_PART = r"(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})+")
"""A path without ``.``, ``..`` or an empty part, without backslashes or control characters."""
_USUAL = re.compile(r"data/[0-9]+")


class Entry(NamedTuple):
    """A record of the archive: its bytes ``start`` to ``end`` of the file and their checksum."""

    name: str
    start: int
    end: int
    crc: int

    @property
    def size(self) -> int:
        return self.end - self.start


class _Listed(NamedTuple):
    """An entry as the directory has it, sorted by ``offset``, that of its local header."""

    offset: int
    name: bytes
    flags: int
    method: int
    crc: int
    size: int


def read_archive(pread: Pread, size: int, *, sparse: bool = False) -> dict[str, Entry]:
    """The records by their name inside the archive, without its top directory.

    ``sparse``, for a source on which each read is a request, takes the place of a storage from the directory and from
    the layout of `torch.save`, where that leaves one possibility, and does not read its local header.

    Raises `PickleProblem` for an archive that is not exactly what `torch.save` writes.
    """
    start, length, count, end = _directory_place(pread, size)
    listed = _directory(pread(length, start), count)
    entries = _entries(_Window(pread, start), sorted(listed), start, sparse)
    if start + length != end:
        _malformed("has bytes between its directory and its end", "zip.junk")
    return _without_top(entries)


def content(pread: Pread, entry: Entry, limit: int) -> bytes:
    """The whole of a small record, its checksum verified."""
    if entry.size > limit:
        refuse(
            f"has a record {shown(entry.name)} of {entry.size:,} bytes, more than the {limit:,} that are read",
            "zip.too-large",
        )
    data = pread(entry.size, entry.start)
    if len(data) != entry.size or zlib.crc32(data) != entry.crc:
        _malformed(f"has a record {shown(entry.name)} whose checksum is wrong", "zip.crc")
    return data


def _malformed(why: str, code: str) -> NoReturn:
    refuse(why, code, "the file is damaged or was made to mislead: fetch it again from its publisher")


def _shown(name: bytes) -> str:
    return shown(name.decode("utf-8", "replace"))


def _directory_place(pread: Pread, size: int) -> tuple[int, int, int, int]:
    """Offset, bytes and entries of the directory, and the offset of the first end record."""
    tail = pread(_END.size, max(size - _END.size, 0))
    if len(tail) < _END.size or not tail.startswith(END):
        last = pread(min(size, _SEARCHED), max(size - _SEARCHED, 0))
        if 0 <= last.rfind(END) <= len(last) - _END.size:
            _malformed("has bytes behind the end of its archive", "zip.suffix")
        _malformed("is a zip archive without its end", "zip.truncated")
    _, disk, first_disk, here, count, length, start, comment = _END.unpack(tail)
    end = size - _END.size
    if disk or first_disk or here != count or comment:
        _malformed("is a zip archive of several parts or with a comment", "zip.end")
    place = pread(_LOCATOR64.size, end - _LOCATOR64.size) if end >= _LOCATOR64.size else b""
    if place.startswith(LOCATOR64):
        return _place64(pread, place, end - _LOCATOR64.size, (count, length, start))
    if count == _MAX16 or _MAX32 in (length, start):
        _malformed("is a zip archive without its zip64 record", "zip.end")
    return _bounded(start, length, count, end)


def _place64(pread: Pread, place: bytes, end: int, small: tuple[int, int, int]) -> tuple[int, int, int, int]:
    """As the zip64 record has it; the plain record must say the same or leave it open."""
    _, disk, offset, disks = _LOCATOR64.unpack(place)
    raw = pread(_END64.size, offset) if offset == end - _END64.size else b""
    if disk or disks != 1 or len(raw) != _END64.size or not raw.startswith(END64):
        _malformed("has a zip64 locator that leads astray", "zip.end")
    _, rest, _, _, disk, first_disk, here, count, length, start = _END64.unpack(raw)
    if disk or first_disk or here != count or rest != _END64.size - 12:
        _malformed("is a zip archive of several parts", "zip.end")
    open_ends = (_MAX16, _MAX32, _MAX32)
    for value, plain, unset in zip((count, length, start), small, open_ends, strict=True):
        if plain not in (value, unset):
            _malformed("has two end records that disagree", "zip.end")
    return _bounded(start, length, count, offset)


def _bounded(start: int, length: int, count: int, end: int) -> tuple[int, int, int, int]:
    if length > DIRECTORY_LIMIT:
        refuse(f"has a directory of {length:,} bytes", "zip.too-large")
    if start + length > end or count * _CENTRAL.size > length:
        _malformed("has a directory that does not fit the file", "zip.directory")
    return start, length, count, end


def _directory(data: bytes, count: int) -> list[_Listed]:
    listed: list[_Listed] = []
    position, last = 0, len(data) - _CENTRAL.size
    for _ in range(count):
        if position > last:
            _malformed("ends inside its directory", "zip.directory")
        entry, position = _listed(data, position)
        listed.append(entry)
    if position != len(data):
        _malformed("has bytes behind its directory's last entry", "zip.junk")
    _check_kind(listed)
    return listed


def _check_kind(listed: list[_Listed]) -> None:
    """Archives of another kind, by the names of their entries; compressed ones are of another kind."""
    names = b"\n".join([entry.name for entry in listed]) + b"\n"
    if b"/constants.pkl\n" in names or b"/code/" in names:
        refuse(
            "is a TorchScript archive, a program with weights",
            "torch.script",
            "save a state dict where it was made: torch.save(torch.jit.load(FILE).state_dict(), OUT)",
        )
    if b".npy\n" in names:
        refuse("is a numpy archive (.npz), not a torch file", "torch.npz", "load it with numpy")
    if any(entry.method for entry in listed):
        refuse("has a compressed entry, which torch.save does not write", "zip.compressed", "unpack it first")


def _listed(data: bytes, position: int) -> tuple[_Listed, int]:
    magic, flags, method, crc, packed, size, name_length, extra_length, comment, disk, offset = _central(data, position)
    name_start = position + _CENTRAL.size
    extra_start = name_start + name_length
    end = extra_start + extra_length
    if magic != CENTRAL or end > len(data):
        _malformed("has a broken directory", "zip.directory")
    if disk not in (0, _MAX16) or comment or flags & ~(_DESCRIBED | _UTF8) or name_length > MAX_NAME:
        _malformed("has an entry of a kind that torch.save does not write", "zip.entry")
    name = data[name_start:extra_start]
    if _MAX32 in (size, packed, offset):  # fields too small for their number
        size, packed, offset = _wide(data[extra_start:end], size, packed, offset)
    if size != packed and not method:
        _malformed(f"has an entry {_shown(name)} of two sizes", "zip.size")
    return _Listed(offset, name, flags, method, crc, size), end


def _wide(extra: bytes, size: int, packed: int, offset: int) -> tuple[int, int, int]:
    """The fields that the zip64 extra holds for those that are full."""
    field = _extra(extra, 1)
    values = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
    try:
        wide = [next(values) if value == _MAX32 else value for value in (size, packed, offset)]
    except StopIteration:
        _malformed("has an entry without its zip64 sizes", "zip.size")
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


class _Window:
    """Small reads that go forward, served from a larger one: an archive has a header every few bytes."""

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


def _entries(window: _Window, listed: list[_Listed], end: int, sparse: bool) -> list[Entry]:
    """The entries, one behind the other from the first byte of the file to the directory."""
    found: list[Entry] = []
    position = 0
    following = [entry[0] for entry in listed]
    following.append(end)
    for number, (offset, name, flags, _, crc, size) in enumerate(listed, 1):
        if offset != position:
            what = "has bytes before its first entry" if not found else "has entries that overlap or leave a gap"
            _malformed(what, "zip.overlap" if found else "zip.prefix")
        derived = _derived_start(offset, name, flags, size, following[number]) if sparse else None
        if derived is not None:
            position = following[number]
            found.append(Entry(_text(name), derived, derived + size, crc))
            continue
        start = _data_start(window, offset, name, flags, crc, size)
        stop, position = start + size, following[number]
        if stop > position:
            _malformed(f"has an entry {_shown(name)} that reaches into the next", "zip.overlap")
        if not flags & _DESCRIBED:
            position = stop
        elif not _described(window, stop, position - stop, crc, size):
            _refuse_headers(name)
        found.append(Entry(_text(name), start, stop, crc))
    if position != end:
        _malformed("has bytes between its last entry and its directory", "zip.junk")
    return found


_ALIGNED = 64
"""What `torch.save` aligns storages to."""
_STORAGE = re.compile(rb"[^/]+/data/[0-9]+")


def _derived_start(offset: int, name: bytes, flags: int, size: int, following: int) -> int | None:
    """Where a storage begins by its size and its neighbour; ``None`` where several places, or none, are aligned."""
    if not _STORAGE.fullmatch(name):
        return None
    least = offset + _LOCAL.size + len(name) + 4  # an extra field of padding, which may be empty
    ends = (_SHORT, _LONG) if flags & _DESCRIBED else (0,)
    starts = [following - size - end for end in ends]
    fitting = [start for start in starts if start % _ALIGNED == 0 and least <= start < least + _ALIGNED + _EXTRA64]
    return fitting[0] if len(fitting) == 1 else None


_EXTRA64 = 20
"""Bytes of the zip64 sizes in a local header."""


def _refuse_headers(name: bytes) -> NoReturn:
    _malformed(f"has an entry {_shown(name)} whose two headers disagree", "zip.headers")


def _data_start(window: _Window, offset: int, name: bytes, listed_flags: int, listed_crc: int, listed_size: int) -> int:
    """Where the data begins, once the local header says what the directory says."""
    head = _LOCAL.size + len(name)
    raw = window.read(head, offset)
    if len(raw) < head:
        _malformed("ends inside an entry", "zip.truncated")
    magic, flags, method, crc, packed, size, name_length, extra_length = _local(raw)
    if magic != LOCAL or raw[_LOCAL.size :] != name or name_length != len(name) or flags != listed_flags or method:
        _refuse_headers(name)
    left_open = flags & _DESCRIBED and not (crc or packed or size)
    if not left_open:
        if _MAX32 in (size, packed):
            size, packed, _ = _wide(window.read(extra_length, offset + head), size, packed, 0)
        if (crc, packed, size) != (listed_crc, listed_size, listed_size):
            _refuse_headers(name)
    return offset + head + int(extra_length)


def _described(window: _Window, start: int, length: int, crc: int, size: int) -> bool:
    """Whether the ``length`` bytes behind an entry are a data descriptor, which must repeat the directory."""
    if length == _SHORT and size <= _MAX32:
        return window.read(_SHORT, start) == _DESCRIPTOR(DESCRIPTOR, crc, size, size)
    return length == _LONG and window.read(_LONG, start) == _DESCRIPTOR64(DESCRIPTOR, crc, size, size)


def _text(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError:
        _malformed("has an entry whose name is no UTF-8", "zip.name")


def _without_top(entries: list[Entry]) -> dict[str, Entry]:
    """The entries by name below the archive's one top directory, none of them twice, none leading elsewhere."""
    if not entries:
        _malformed("is an empty zip archive", "zip.empty")
    top = entries[0].name.partition("/")[0] + "/"
    if not _NAME.fullmatch(top + "data"):
        _malformed(f"has an entry {shown(entries[0].name)}, which is no name inside a torch file", "zip.name")
    found: dict[str, Entry] = {}
    skip, usual = len(top), _USUAL.fullmatch
    for entry in entries:
        name = entry.name
        if not name.startswith(top) or not (usual(name, skip) or _NAME.fullmatch(name)):
            _malformed(f"has an entry {shown(name)}, which is no name inside a torch file", "zip.name")
        found[name[skip:]] = entry
    if len(found) < len(entries):
        _malformed(f"has two entries {shown(_repeated(entries)[skip:])}", "zip.repeated")
    return found


def _repeated(entries: list[Entry]) -> str:
    names = sorted(entry.name for entry in entries)
    return next(name for name, following in pairwise(names) if name == following)
