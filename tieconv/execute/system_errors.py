"""Turn errors of the operating system into one sentence each."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tieconv.errors import WriteFailedError
from tieconv.text import shown, size

_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user may still write to the file system of ``directory``."""
    status = os.statvfs(directory)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    return blocks * status.f_frsize


def no_space(target: object, needed: int, free: int, why: str = "not enough space") -> WriteFailedError:
    """Return the error for a full disk or quota; ``needed`` and ``free`` in bytes, ``needed`` 0 if unknown."""
    wanted = f"{size(needed)} ({needed:,} bytes) needed, " if needed else ""
    return WriteFailedError(
        f"{shown(target)} cannot be written: {why}: {wanted}{size(free)} ({free:,} bytes) free",
        "free some space, or write to another disk with -o",
        "write.no-space",
    )


@contextmanager
def writing(target: object, directory: Path, needed: int) -> Iterator[None]:
    """Turn an `OSError` inside into a `WriteFailedError` about ``target``, which takes ``needed`` bytes."""
    try:
        yield
    except OSError as error:
        raise _failed(target, directory, needed, error) from error


def _failed(target: object, directory: Path, needed: int, error: OSError) -> WriteFailedError:
    reason = (error.strerror or type(error).__name__).lower()
    if error.errno in _SPACE:
        return no_space(target, needed, _free_or_zero(directory), reason)
    if error.errno == errno.EFBIG:
        return WriteFailedError(
            f"{shown(target)} cannot be written: {reason}: {size(needed)} ({needed:,} bytes) needed, "
            f"{size(_free_or_zero(directory))} free on the disk",
            "raise the file size limit (ulimit -f), or use a file system that holds files of this size",
            "write.too-large",
        )
    return WriteFailedError(f"{shown(target)} cannot be written: {reason}", _hint(error.errno), "write.failed")


def _free_or_zero(directory: Path) -> int:
    try:
        return free_bytes(directory)
    except OSError:
        return 0


def _hint(number: int | None) -> str:
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return "write somewhere else with -o"
    if number == errno.EIO:
        return "the disk reports an error; check it before you write again"
    return "tieconv changed nothing; run the command again, or write somewhere else with -o"
