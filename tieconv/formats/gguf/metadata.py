"""Read the metadata of a GGUF file: scalars as text. Long strings and arrays are skipped."""

from __future__ import annotations

import struct

from tieconv.formats.gguf.header_cursor import MAX_NAME, HeaderCursor
from tieconv.text import shown

MAX_DEPTH = 4
_LONGEST_TEXT = 4096
"""The most bytes of a metadata string that is kept. Chat templates and licences are skipped."""
_TEXT_IN_ALL = 16_000_000
"""The most bytes of all metadata keys and all kept strings together."""
_MOST_ENTRIES = 4_000_000
"""The most strings and lists in all arrays. The largest vocabularies with merges have a quarter of this."""
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def read_metadata(cursor: HeaderCursor, keys: int) -> dict[str, str]:
    """Return the scalar entries as text. Raises `UnreadableError`."""
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


def _value(cursor: HeaderCursor, kind: int, depth: int) -> str | None:
    if kind == _STRING:
        return _string(cursor)
    if kind == _ARRAY:
        _skip_array(cursor, depth)
        return None
    if kind not in _SCALARS:
        cursor.refuse(f"has a metadata value of unknown type {kind}", "value-type")
    value = cursor.take(struct.calcsize(_SCALARS[kind]))
    return str(struct.unpack(_SCALARS[kind], value)[0])


def _string(cursor: HeaderCursor) -> str | None:
    length = cursor.natural("<Q")
    if length > _LONGEST_TEXT:
        cursor.skip(length)
        return None
    _count_kept(cursor, length)
    return cursor.take(length).decode("utf-8", errors="replace")


def _count_kept(cursor: HeaderCursor, length: int) -> None:
    cursor.kept_bytes += length
    if cursor.kept_bytes > _TEXT_IN_ALL:
        cursor.refuse(f"has metadata keys and strings of more than {_TEXT_IN_ALL:,} bytes", "metadata-size")


def _skip_array(cursor: HeaderCursor, depth: int) -> None:
    kind, length = cursor.natural("<I"), cursor.natural("<Q")
    if kind in _SCALARS:
        cursor.skip(length * struct.calcsize(_SCALARS[kind]))
        return
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


def alignment_of(metadata: dict[str, str], cursor: HeaderCursor) -> int:
    """Return the alignment of tensors in bytes. Refuses a number that is not a power of two."""
    text = metadata.get("general.alignment", "32")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if not number or number & (number - 1):
        cursor.refuse(f"declares the alignment {shown(text)}, which is not a power of two", "alignment")
    return number
