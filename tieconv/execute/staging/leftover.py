"""Recognise what a killed run left at the name of a staging directory; remove it or refuse."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tieconv.errors import DestinationError
from tieconv.execute import tree
from tieconv.execute.staging.marker import SIZE, Owner, is_cut, parse
from tieconv.text import shell_word, shown

MARKER = "owner"
"""The marker file. Its lock is the ownership; its content identifies the owner."""
NEW = "new"
OLD = "old"
DATA = ".data"
"""The suffix of a graph's data file, after the graph's name."""
EARLIER = "earlier"
_OURS = re.compile(r"new|old|earlier|raw|exchange-[ab]|step-[0-9]+")
"""The directories that a run makes in its staging directory."""
_OPEN_MARKER = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def clear(home: int, path: Path, final: Path) -> None:
    """Remove the staging directory ``path`` of ``final`` that a killed run left; ``home`` is its open parent.

    Does nothing if it has gone meanwhile. Raises `DestinationError` and changes nothing if a live process owns it.
    Raises it too if anything in it differs from what a killed run of this user leaves.
    """
    with suppress(FileNotFoundError), _opened(home, path) as directory:
        if directory is None:
            return
        if not os.listdir(directory):
            with suppress(OSError):  # another run fills it at this moment
                os.rmdir(path.name, dir_fd=home)
            return
        with _settled(home, directory, path, final) as marker:
            if marker is not None:
                empty(directory)
                remove(home, directory, path)


def take_over(home: int, path: Path, final: Path) -> tuple[int, int] | None:
    """Return the open staging directory that a killed run left, and its locked marker; ``None`` if there is none.

    Only `NEW` and the marker stay in it. Raises `DestinationError` in the cases of `clear`.
    """
    with suppress(FileNotFoundError), _opened(home, path) as directory:
        if directory is None or not os.listdir(directory):
            return None
        with _settled(home, directory, path, final) as marker:
            if marker is None:
                return None
            empty(directory, NEW)
            owned = os.dup(directory)
            try:
                return owned, os.dup(marker)  # the lock lasts until both descriptors of the marker are closed
            except OSError:
                os.close(owned)
                raise
    return None


@contextmanager
def _opened(home: int, path: Path) -> Iterator[int | None]:
    """Yield the open directory at ``path``, or ``None`` if another one has the name now.

    Raises `FileNotFoundError` if there is none, and `DestinationError` if it is not a private directory of this user.
    """
    status = os.stat(path.name, dir_fd=home, follow_symlinks=False)
    _check_kind(status, path)
    _check_private(status, path, "it")
    directory = open_directory(home, path.name)
    try:
        yield directory if os.path.samestat(status, os.fstat(directory)) else None
    finally:
        os.close(directory)


def open_directory(home: int, name: str) -> int:
    """Open a directory without following links. Raises `FileNotFoundError` if it is missing or cannot be opened."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=home)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
            raise FileNotFoundError(name) from error
        raise


def _check_kind(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symlink" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise in_the_way(path, f"it is {kind}", f"check it, then remove it: rm {shell_word(str(path))}")


def _check_private(status: os.stat_result, path: Path, label: str) -> None:
    if status.st_uid != os.geteuid():
        hint = "wait if that user is writing there, otherwise ask them to remove it, or give another -o"
        raise in_the_way(path, f"{label} belongs to another user", hint)
    if status.st_mode & _OTHERS:
        raise in_the_way(path, f"other users have permission to write to {label}")


def in_the_way(path: Path, why: str, hint: str = "") -> DestinationError:
    """Return the refusal of what is at ``path``, a staging directory's name."""
    hint = hint or f"check it, then remove it: rm -r {shell_word(str(path))}"
    return DestinationError(f"{shown(path)} is in the way: {why}", hint, "out.staging")


@contextmanager
def _settled(home: int, directory: int, path: Path, final: Path) -> Iterator[int | None]:
    """Yield the locked marker of a killed run, after OUT has its name back; ``None`` if the owner removed it."""
    marker = _open_marker(directory, path)
    try:
        lock(marker, directory, final)
        if not is_at(marker, MARKER, directory):
            yield None  # its owner removed it before this run had the lock
            return
        owner = _owner(marker, directory, path)
        _check_content(directory, path, owner)
        if not os.path.lexists(final):
            _restore_old(directory, home, final)
            _remove_data(home, final, owner)
        yield marker
    finally:
        os.close(marker)


def _open_marker(directory: int, path: Path) -> int:
    """Open the marker, which must be a regular file of this user with one name. It is never written to."""
    try:
        status = os.stat(MARKER, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if not os.listdir(directory):
            raise  # its owner removed everything just now
        raise in_the_way(path, "tieconv did not make it") from None
    if not stat.S_ISREG(status.st_mode):
        raise in_the_way(path, f"its file {MARKER} is not a regular file")
    if status.st_nlink != 1:
        raise in_the_way(path, f"its file {MARKER} is a hard link to another file")
    _check_private(status, path, f"its file {MARKER}")
    try:
        marker = os.open(MARKER, _OPEN_MARKER, dir_fd=directory)
    except PermissionError:
        raise in_the_way(path, f"its file {MARKER} cannot be opened") from None
    if os.path.samestat(status, os.fstat(marker)):
        return marker
    os.close(marker)
    raise FileNotFoundError(MARKER)


def lock(marker: int, directory: int, final: Path) -> None:
    """Take the lock of the open marker. Raises `DestinationError` if another process has it."""
    try:
        fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = parse(os.pread(marker, SIZE, 0))
        raise DestinationError(
            f"{shown(final)} is busy: another tieconv{f' ({who})' if who else ''} is writing it",
            "wait until that process has ended, then run the command again",
            "out.busy",
        ) from None


def is_at(descriptor: int, name: str, directory: int) -> bool:
    """Return whether ``name`` in the open directory still is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _owner(marker: int, directory: int, path: Path) -> Owner | None:
    """Return the owner, which has ended; ``None`` for a marker that a kill cut short, which must be alone."""
    data = os.pread(marker, SIZE + 1, 0)
    owner = parse(data)
    if owner is None and not (is_cut(data) and os.listdir(directory) == [MARKER]):
        raise in_the_way(path, "tieconv did not make it")
    if owner is not None and not owner.is_gone:
        hint = f"wait until that process has ended, then remove what it left: rm -r {shell_word(str(path))}"
        raise in_the_way(path, f"{owner} may still be writing to it", hint)
    return owner


def _check_content(directory: int, path: Path, owner: Owner | None) -> None:
    """Check that only a run's directories are beside the marker. `OLD` must be the one that the run set aside."""
    for name in os.listdir(directory):
        if name == MARKER:
            continue
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not _OURS.fullmatch(name) or not stat.S_ISDIR(status.st_mode):
            raise in_the_way(path, f"it holds {shown(name)}, which tieconv did not put there")
        if name == OLD and not (owner and owner.is_of_this_boot and owner.old == status.st_ino):
            raise in_the_way(path, f"its directory {OLD} is not the one that the killed run set aside")


def _restore_old(directory: int, home: int, final: Path) -> None:
    """Give an old OUT its name back if no new one has it."""
    if OLD in os.listdir(directory):
        os.rename(OLD, final.name, src_dir_fd=directory, dst_dir_fd=home)


def _remove_data(home: int, final: Path, owner: Owner | None) -> None:
    """Remove the data file whose graph never got its name, if the marker identifies it."""
    name = f"{final.name}{DATA}"
    if not (owner and owner.is_of_this_boot and owner.data) or name not in os.listdir(home):
        return
    status = os.stat(name, dir_fd=home, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_ino == owner.data:
        os.unlink(name, dir_fd=home)


def empty(directory: int, but: str = MARKER) -> None:
    """Remove everything in the open staging directory except the marker and ``but``."""
    for name in os.listdir(directory):
        if name not in (MARKER, but):
            tree.remove_at(directory, name)


def remove(home: int, directory: int, path: Path) -> None:
    """Remove the marker, then the empty directory, unless another run has taken its name since."""
    os.unlink(MARKER, dir_fd=directory)
    if is_at(directory, path.name, home):
        with suppress(OSError):
            os.rmdir(path.name, dir_fd=home)
