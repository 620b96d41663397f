"""Read the zip archive that `torch.save` writes. Refuse anything that two zip readers could read differently.

Entries are not compressed and follow one another without a gap from the first byte of the file. Both headers of an
entry agree, and the directory follows the last entry. Source: APPNOTE.TXT 6.3.10, and `caffe2/serialize` of torch
2.13, which writes data descriptors and zip64 records at any size.
"""

from __future__ import annotations

import re
import struct
import zlib
from itertools import pairwise
from typing import NamedTuple, NoReturn

from tieconv.formats.torch.archive_directory import (
    DESCRIBED,
    MAX32,
    Listed,
    Pread,
    directory_place,
    listed_entries,
    malformed,
    shown_name,
    wide,
)
from tieconv.formats.torch.pickle.values import refuse
from tieconv.text import shown

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
    listed = listed_entries(pread(length, start), count)
    listed.sort()
    entries = _entries(_Window(pread, start), listed, start, sparse)
    if start + length != end:
        malformed("has bytes between its directory and its end", "zip.junk")
    return _without_top(entries)


def content(pread: Pread, entry: Entry, limit: int) -> bytes:
    """Return a small record after checking its CRC-32."""
    if entry.size > limit:
        refuse(
            f"has a record {shown(entry.name)} of {entry.size:,} bytes, more than the limit of {limit:,}",
            "zip.too-large",
        )
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
    fitting = [start for start in starts if start % _ALIGNED == 0 and least <= start < least + _ALIGNED + _EXTRA64]
    return fitting[0] if len(fitting) == 1 else None


_EXTRA64 = 20
"""Bytes of the zip64 sizes in a local header."""


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
