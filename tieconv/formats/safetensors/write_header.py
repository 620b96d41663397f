"""Write the header of a safetensors file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping

from tieconv.errors import UnreadableError
from tieconv.formats.safetensors.header import HEADER_LIMIT
from tieconv.text import shown


def encode_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...], int]],
    metadata: Mapping[str, str] | None,
    *,
    congruent: Callable[[int], int] | None = None,
) -> bytes:
    """The first bytes of a file: length, JSON, padding spaces.

    ``tensors`` are (name, dtype, shape, bytes) in the order of their data, which follows without gaps.
    The header's own length is a multiple of 8. ``congruent(data_start)``, given the smallest possible offset
    of the first data byte, answers how many further bytes of padding (a multiple of 8 is not required by
    readers) make that offset fit the source's, so that a file system can share blocks.
    """
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    position = 0
    for name, dtype, shape, size in tensors:
        if name == "__metadata__" or name in header:
            raise UnreadableError(
                f"tensor name {shown(name)} cannot be written", "give the tensor another name", "safetensors.name"
            )
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    body += b" " * (-len(body) % 8)
    if congruent is not None:
        body += b" " * congruent(8 + len(body))
    if len(body) > HEADER_LIMIT:
        raise UnreadableError(
            f"the header would take {len(body):,} bytes (limit {HEADER_LIMIT:,})",
            "store the tensors in more than one file",
            "safetensors.header-too-large",
        )
    return len(body).to_bytes(8, "little") + body
