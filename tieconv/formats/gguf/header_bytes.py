"""Write the parts of a GGUF header that change with its tensors. Source: ggml, docs/gguf.md."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from tieconv.formats.gguf.ggml_types import TYPES
from tieconv.formats.gguf.reader import MAGIC

START = 24
"""Bytes before the metadata entries: magic number, version, and the numbers of tensors and entries."""
_NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}


def encode_start(version: int, tensors: int, keys: int) -> bytes:
    """Return the first `START` bytes."""
    return MAGIC + struct.pack("<IQQ", version, tensors, keys)


def encode_infos(tensors: Iterable[tuple[str, tuple[int, ...], str, int]]) -> bytes:
    """Return the list of tensors: name, shape (outermost first), type and offset of each."""
    return b"".join(_info(*tensor) for tensor in tensors)


def _info(name: str, shape: tuple[int, ...], dtype: str, offset: int) -> bytes:
    text = name.encode()
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
    return struct.pack("<Q", len(text)) + text + dimensions + struct.pack("<IQ", _NUMBERS[dtype], offset)
