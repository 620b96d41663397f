"""Read and write small files of the user: settings, baselines, reports, and text for a model."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from tieconv.errors import DestinationError, SettingsError
from tieconv.sources.local.links import in_hub_store
from tieconv.text import path_word, shown

LIMIT = 64 << 20


def upward(start: str) -> Iterator[str]:
    """Yield the absolute directory ``start`` and its parents, nearest first."""
    directory = start
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent


def read_text(path: str, limit: int = LIMIT) -> str:
    """Return the text of a regular file, following links. Raises `SettingsError`."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return _text(path, file, limit)
    except OSError as error:
        raise _unreadable(path, (error.strerror or "unknown error").lower()) from error


def _text(path: str, file: BinaryIO, limit: int) -> str:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, "it is not a regular file")
    if status.st_size > limit:
        raise _unreadable(path, f"it is larger than {limit >> 20} MiB")
    data = file.read(limit)
    encoding = _encoding(data)
    if encoding:
        raise _unreadable(path, f"it is {encoding.upper()} text instead of UTF-8", _conversion(path, encoding))
    if b"\0" in data:
        raise _unreadable(path, "it holds NUL bytes, so it is not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(
            path, "it is not UTF-8 text", f"save it as UTF-8; to detect its encoding: file {path_word(path)}"
        ) from error


_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""The byte order marks of other encodings. UTF-32 is first, because its mark starts like that of UTF-16."""
_HEAD = 4096


def _encoding(data: bytes) -> str:
    """Return the encoding of a byte order mark, or guess UTF-16. Empty for other text.

    Guesses UTF-16 if a tenth or more of the first characters are Latin. One of their two bytes is zero, always on the
    same side.
    """
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), "")
    if marked or len(data) % 2:
        return marked
    first, second = data[:_HEAD:2].count(0), data[1:_HEAD:2].count(0)
    few, most = sorted((first, second))
    if few or most * 20 < len(data[:_HEAD]):
        return ""
    return ("utf-16be" if first else "utf-16le") if most else ""


def _conversion(path: str, encoding: str) -> str:
    return f"iconv -f {encoding} -t utf-8 {path_word(path)} > {path_word(f'{path}.utf-8')}"


def _unreadable(path: str, reason: str, hint: str = "check the path") -> SettingsError:
    return SettingsError(f"{shown(path)} cannot be read: {reason}", hint, "settings.unreadable")


def write_text(path: str, text: str) -> None:
    """Write a text file as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str, data: bytes) -> None:
    """Write a file completely or not at all. Write directly to a FIFO or a device. Raises `DestinationError`."""
    if in_hub_store(Path(path)):
        raise DestinationError(f"{shown(path)} is in the Hub cache", "write it to another directory", "out.hub-cache")
    try:
        if os.path.lexists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                file.write(data)
        else:
            _replace(os.path.realpath(path), data)
    except OSError as error:
        reason = (error.strerror or "unknown error").lower()
        raise DestinationError(
            f"{shown(path)} cannot be written: {reason}", "check the path and its directory", "out.text"
        ) from error


def _replace(path: str, data: bytes) -> None:
    """Replace the file with a rename, so that readers see the old file or the new one."""
    folder, name = os.path.split(path)
    staged = os.path.join(folder, f".{name[:100]}.{os.getpid()}.tmp")
    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(descriptor, stat.S_IMODE(os.stat(path).st_mode))
            file.write(data)
        os.replace(staged, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(staged)
        raise
