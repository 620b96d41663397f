"""Small text files that the user keeps beside models: settings and baselines."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from tieconv.errors import DestinationError, SettingsError
from tieconv.text import shown

LIMIT = 64 << 20


def upward(start: str) -> Iterator[str]:
    """The directory ``start`` (absolute) and those above it, the nearest first."""
    directory = start
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent


def read_text(path: str, limit: int = LIMIT) -> str:
    """The text of a regular file, links followed. Raises `SettingsError`."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return _text(path, file, limit)
    except OSError as error:
        raise _unreadable(path, (error.strerror or "unknown error").lower()) from error


def _text(path: str, file: BinaryIO, limit: int) -> str:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise _unreadable(path, "it is no regular file")
    if status.st_size > limit:
        raise _unreadable(path, f"it is larger than {limit >> 20} MiB")
    try:
        return file.read(limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _unreadable(path, "it is no UTF-8 text") from error


def _unreadable(path: str, reason: str) -> SettingsError:
    return SettingsError(f"{shown(path)} cannot be read: {reason}", "check the path", "settings.unreadable")


def write_text(path: str, text: str) -> None:
    """Write a file, whole or not at all; straight into a FIFO or a device. Raises `DestinationError`."""
    data = text.encode("utf-8", "backslashreplace")
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
    """By a rename: a reader, or a run that is killed, sees the old file or the new one."""
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
