"""Make a write visible in one step."""

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
    """Swap the two names in one step. Raises `OSError` if the file system cannot."""
    _renameat2(first, second, _EXCHANGE)


def can_exchange(directory: Path) -> bool:
    """Return whether names under ``directory`` can be swapped, tried on two new directories."""
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
    """Give ``staged`` the name ``final``, which must be free. Raises `DestinationError` if it is taken."""
    own = os.lstat(staged)
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
    _check_published(own, final)


def publish_file(staged: Path, final: Path) -> None:
    """Rename a file to ``final``, which may be an old file or free."""
    own = os.lstat(staged)
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno not in (*_UNSUPPORTED, errno.ENOENT):
            raise
        os.replace(staged, final)
        _sync_both(staged, final)
    else:
        _settle(staged, final, lambda: exchange(staged, final))
    _check_published(own, final)


def publish_directory(staged: Path, final: Path, aside: Path, old: os.stat_result) -> Path:
    """Replace ``old`` with a directory and return the path that ``old`` then has.

    If the file system cannot exchange them, the old one moves away first.
    """
    own = os.lstat(staged)
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _step_aside(staged, final, aside)
        _check_displaced(aside, old, final, lambda: _step_aside(aside, final, staged))
        _settle(staged, final, lambda: _step_aside(aside, final, staged))
        displaced = aside
    else:
        _check_displaced(staged, old, final, lambda: exchange(staged, final))
        _settle(staged, final, lambda: exchange(staged, final))
        displaced = staged
    _check_published(own, final)
    return displaced


def exchange_directory(staged: Path, final: Path, old: os.stat_result) -> Path:
    """Replace a directory as `publish_directory` does, but so that ``final`` always exists. Raises `RefusedError`."""
    own = os.lstat(staged)
    try:
        exchange(staged, final)
    except OSError as error:
        if error.errno in _UNSUPPORTED or error.errno == errno.EBUSY:
            raise cannot_exchange(final) from error
        raise
    _check_displaced(staged, old, final, lambda: exchange(staged, final))
    _settle(staged, final, lambda: exchange(staged, final))
    _check_published(own, final)
    return staged


def cannot_exchange(final: Path) -> RefusedError:
    """Return the refusal for a directory that cannot be replaced in one step."""
    return RefusedError(
        f"this file system cannot replace {shown(final)} in one step",
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
        f"another program created {shown(final)} while tieconv wrote it",
        "give another -o, or --overwrite",
        "out.exists",
    )


def _check_displaced(displaced: Path, old: os.stat_result, final: Path, undo: Callable[[], None]) -> None:
    """Restore the names if ``final`` was not the directory that was checked."""
    if not os.path.samestat(os.lstat(displaced), old):
        undo()
        raise _replaced(final)


def _check_published(own: os.stat_result, final: Path) -> None:
    """Raise `DestinationError` if ``final`` is not what this process wrote: another program replaced it."""
    try:
        same = os.path.samestat(own, os.lstat(final))
    except FileNotFoundError:
        same = False
    if not same:
        raise _replaced(final)


def _replaced(final: Path) -> DestinationError:
    return DestinationError(
        f"another program replaced {shown(final)} while tieconv wrote it",
        f"check who may write to {shown(final.parent)}, then run the command again",
        "out.replaced",
    )


def _settle(staged: Path, final: Path, undo: Callable[[], None]) -> None:
    """Make the new names durable; if the disk fails to do so, restore the old ones."""
    try:
        _sync_both(staged, final)
    except OSError:
        with suppress(OSError):
            undo()
        raise


def _sync_both(staged: Path, final: Path) -> None:
    sync_directory(final.parent)
    sync_directory(staged.parent)
