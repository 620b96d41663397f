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
    """Return the first bytes of a file: length, JSON and padding spaces.

    ``tensors`` are (name, dtype, shape, bytes) in the order of their data, which follows without gaps. The header's
    length is a multiple of 8. ``congruent`` receives the smallest possible offset of the first data byte. It returns
    how many more bytes of padding align that offset with the source. Then a file system can share blocks. Readers
    do not require a multiple of 8 there.
    """
    header: dict[str, object] = {}
    if metadata is not None:
        header["__metadata__"] = dict(metadata)
    position = 0
    for name, dtype, shape, size in tensors:
        if name == "__metadata__" or name in header:
            raise UnreadableError(
                f"safetensors cannot store the tensor name {shown(name)}",
                "give the tensor another name",
                "safetensors.name",
            )
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    body = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    body += b" " * (-len(body) % 8)
    if congruent is not None:
        body += b" " * congruent(8 + len(body))
    if len(body) > HEADER_LIMIT:
        raise UnreadableError(
            f"the header would have {len(body):,} bytes, more than the limit of {HEADER_LIMIT:,}",
            "store the tensors in more than one file",
            "safetensors.header-too-large",
        )
    return len(body).to_bytes(8, "little") + body
