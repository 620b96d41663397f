"""The one step that makes a write visible."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tieconv.errors import DestinationError, RefusedError
from tieconv.execute.tree import sync_directory
from tieconv.text import shown

_AT_FDCWD = -100
_NOREPLACE = 1
_EXCHANGE = 2
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def _renameat2(old: Path, new: Path, flags: int) -> None:
    try:
        function = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(old), None, str(new))


def exchange(first: Path, second: Path) -> None:
    """Swap the two names in one step. `OSError` where the file system cannot."""
    _renameat2(first, second, _EXCHANGE)


def can_exchange(directory: Path) -> bool:
    """Whether names under ``directory`` can be swapped, tried on two directories of its own."""
    first, second = directory / "exchange-a", directory / "exchange-b"
    os.mkdir(first)
    os.mkdir(second)
    try:
        exchange(first, second)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    finally:
        os.rmdir(first)
        os.rmdir(second)
    return True


def publish_new(staged: Path, final: Path) -> None:
    """Give ``staged`` the name ``final``, which must be free. Raises `DestinationError` where it is not."""
    try:
        _renameat2(staged, final, _NOREPLACE)
    except FileExistsError:
        raise _taken(final) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        if os.path.lexists(final):
            raise _taken(final) from None
        os.rename(staged, final)
    _settle(staged, final, lambda: os.rename(final, staged))


def publish_file(staged: Path, final: Path) -> None:
    """Put a file in the place of an old one, or of none."""
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno not in (*_UNSUPPORTED, errno.ENOENT):
            raise
        os.replace(staged, final)
        _sync_both(staged, final)
    else:
        _settle(staged, final, lambda: exchange(staged, final))


def publish_directory(staged: Path, final: Path, aside: Path) -> Path:
    """Put a directory in the place of an old one, which then is at the path returned.

    Where the file system cannot exchange them, the old one steps aside first.
    """
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _step_aside(staged, final, aside)
        _settle(staged, final, lambda: _step_aside(aside, final, staged))
        return aside
    _settle(staged, final, lambda: exchange(staged, final))
    return staged


def exchange_directory(staged: Path, final: Path) -> Path:
    """As `publish_directory`, but with no instant at which ``final`` is absent. Raises `RefusedError`."""
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno in _UNSUPPORTED or error.errno == errno.EBUSY:
            raise cannot_exchange(final) from error
        raise
    _settle(staged, final, lambda: exchange(staged, final))
    return staged


def cannot_exchange(final: Path) -> RefusedError:
    """The refusal where a directory cannot be replaced in one step."""
    return RefusedError(
        f"{shown(final)} cannot be replaced in one step on this file system",
        "write a new model with -o OUT",
        "in-place.exchange",
    )


def _step_aside(staged: Path, final: Path, aside: Path) -> None:
    os.rename(final, aside)
    try:
        os.rename(staged, final)
    except OSError:
        os.rename(aside, final)
        raise


def _taken(final: Path) -> DestinationError:
    return DestinationError(
        f"{shown(final)} appeared while it was being written", "give another -o, or --overwrite", "out.exists"
    )


def _settle(staged: Path, final: Path, undo: Callable[[], None]) -> None:
    """Make the new names durable; where the disk fails at that, take them back."""
    try:
        _sync_both(staged, final)
    except OSError:
        with suppress(OSError):
            undo()
        raise


def _sync_both(staged: Path, final: Path) -> None:
    sync_directory(final.parent)
    sync_directory(staged.parent)
