"""Check where an ONNX graph stores its external data, before a byte of it is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import NoReturn

from tieconv.checkpoint.files.git_files import LARGEST
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.text import shown


@record
class External:
    """A tensor with external data: the graph's file name, the tensor's name and its ``external_data`` entries.

    ``needed`` is the number of bytes of its type and shape, or ``None`` if unknown.
    """

    graph: str
    name: str
    entries: Mapping[str, str]
    needed: int | None


def byte_range(tensor: External, root: str, files: Files) -> ByteRange:
    """Return the byte range of the external data, relative to ``root``.

    Raises `UnsafePathError` for a path outside the graph's directory, and for a link. Raises `UnreadableError` if
    offset and length do not fit the file, the type or the shape.
    """
    name = _file(tensor, root, files)
    size = files.state(name).size
    start, length = _number(tensor, "offset") or 0, _number(tensor, "length")
    needed = tensor.needed
    end = start + (size - start if length is None else length)
    if needed is not None and length is None:
        end = start + needed
    if start > size or end > size or (needed is not None and end - start != needed):
        files.pread(name, LARGEST, 0)  # raises the error of a Git pointer file
        _unreadable(tensor, f"needs {needed} bytes at offset {start} of {shown(name)}, which has {size:,} bytes")
    return ByteRange(name, start, end)


def _file(tensor: External, root: str, files: Files) -> str:
    location = tensor.entries.get("location", "")
    parts = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or parts.is_absolute() or ".." in parts.parts:
        raise UnsafePathError(
            f"{shown(tensor.graph)}: tensor {shown(tensor.name)} is stored in {shown(location)!r}, outside the model's "
            "directory",
            "if you trust the file, move the data beside the graph and export the model again",
            "onnx.outside",
        )
    name = os.path.normpath(os.path.join(os.path.dirname(tensor.graph), location))
    local = os.path.isabs(root)  # a repository on the Hub has no links
    if local:
        _check_links(tensor, name, root)
    files.state(name)  # raises the error of a special file
    if local and os.lstat(os.path.join(root, name)).st_nlink > 1:
        _linked(tensor, name, "has several hard links")
    return name


def _check_links(tensor: External, name: str, root: str) -> None:
    """Refuse a path below the root with a symlink in any part."""
    path = root
    for part in PurePosixPath(name).parts:
        path = os.path.join(path, part)
        try:
            linked = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            return
        if linked:
            _linked(tensor, name, "is a symlink")


def _linked(tensor: External, name: str, why: str) -> NoReturn:
    raise UnsafePathError(
        f"{shown(tensor.graph)}: tensor {shown(tensor.name)} is stored in {shown(name)}, which {why}",
        "if you trust the file, replace the link with a copy, or fetch the model with hf download --local-dir",
        "onnx.linked",
    )


def _number(tensor: External, key: str) -> int | None:
    text = tensor.entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        _unreadable(tensor, f"has the {key} {shown(text)!r}, which is not a number")
    return int(text)


def _unreadable(tensor: External, why: str) -> NoReturn:
    raise UnreadableError(
        f"{shown(tensor.graph)}: tensor {shown(tensor.name)} {why}",
        "fetch or export the model again",
        "onnx.external",
    )
