"""Where a graph's tensors lie outside of it, checked before a byte of them is read."""

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
    """A tensor that a graph places outside of itself: the graph's file name, its name, its ``external_data``.

    ``needed`` is what its type and shape take, ``None`` where that is not known.
    """

    graph: str
    name: str
    entries: Mapping[str, str]
    needed: int | None


def byte_range(tensor: External, root: str, files: Files) -> ByteRange:
    """Where the bytes lie, relative to ``root``.

    Raises `UnsafePathError` for a place outside the graph's directory and for a link, `UnreadableError` where offset
    and length do not fit the file, the type or the shape.
    """
    name = _file(tensor, root, files)
    size = files.state(name).size
    start, length = _number(tensor, "offset") or 0, _number(tensor, "length")
    needed = tensor.needed
    end = start + (size - start if length is None else length)
    if needed is not None and length is None:
        end = start + needed
    if start > size or end > size or (needed is not None and end - start != needed):
        files.pread(name, LARGEST, 0)  # says what Git left in place of the file
        _unreadable(tensor, f"needs {needed} bytes at {start} of {shown(name)}, which has {size:,}")
    return ByteRange(name, start, end)


def _file(tensor: External, root: str, files: Files) -> str:
    location = tensor.entries.get("location", "")
    parts = PurePosixPath(location)
    if not location or "\0" in location or "\\" in location or parts.is_absolute() or ".." in parts.parts:
        raise UnsafePathError(
            f"{shown(tensor.graph)}: tensor {shown(tensor.name)} lies at {shown(location)!r}, outside the model's "
            "directory",
            "move its data beside the graph if you trust it",
            "onnx.outside",
        )
    name = os.path.normpath(os.path.join(os.path.dirname(tensor.graph), location))
    local = os.path.isabs(root)  # a repository on the Hub has no links
    if local:
        _check_links(tensor, name, root)
    files.state(name)  # says what is wrong with what is no regular file
    if local and os.lstat(os.path.join(root, name)).st_nlink > 1:
        _linked(tensor, name, "has several names (hard links)")
    return name


def _check_links(tensor: External, name: str, root: str) -> None:
    """No part of the path under the root is a symbolic link."""
    path = root
    for part in PurePosixPath(name).parts:
        path = os.path.join(path, part)
        try:
            linked = stat.S_ISLNK(os.lstat(path).st_mode)
        except OSError:
            return
        if linked:
            _linked(tensor, name, "is a link")


def _linked(tensor: External, name: str, why: str) -> NoReturn:
    raise UnsafePathError(
        f"{shown(tensor.graph)}: tensor {shown(tensor.name)} lies in {shown(name)}, which {why}",
        "put a copy of the file in its place if you trust it (hf download --local-dir makes no links)",
        "onnx.linked",
    )


def _number(tensor: External, key: str) -> int | None:
    text = tensor.entries.get(key)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        _unreadable(tensor, f"has the {key} {shown(text)!r}")
    return int(text)


def _unreadable(tensor: External, why: str) -> NoReturn:
    raise UnreadableError(
        f"{shown(tensor.graph)}: tensor {shown(tensor.name)} {why}",
        "fetch or export the model again",
        "onnx.external",
    )
