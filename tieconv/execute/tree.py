"""Walk, link and remove directory trees. Links are never followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tieconv.checkpoint.model_files import FileState
from tieconv.errors import WriteFailedError
from tieconv.sources import local
from tieconv.text import ELSEWHERE, Hint, count, option, shown, size

_DIRECTORY = -1 << 63
"""Replaces the time of a directory, which changes with its entries."""
UNLINKED: set[tuple[int, int]] = set()
"""(device, inode) of files that lost one of several names to this process: that changes their ctime, not their bytes.

A run killed in place leaves such names of the model's own files.
"""
LARGE = 64 << 20
"""Bytes from which `free_later` holds a file."""
HOLDERS: list[object] = []
"""Each reads a pipe that this process closes when it ends."""
_MOST_LEVELS = 128
"""Nested directories that are removed: each holds a descriptor, and a model has fewer."""


def walk(root: Path, below: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield (relative path, status) of everything under ``root``, a directory before its content."""
    with os.scandir(root / below) as entries:
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        name = f"{below}/{entry.name}" if below else entry.name
        status = entry.stat(follow_symlinks=False)
        yield name, status
        if stat.S_ISDIR(status.st_mode):
            yield from walk(root, name)


def states(root: Path) -> dict[str, FileState]:
    """Return what identifies every entry under ``root``; for a directory only that it is one."""
    return {name: _state(status) for name, status in walk(root)}


def _state(status: os.stat_result) -> FileState:
    if stat.S_ISDIR(status.st_mode):
        return FileState(status.st_dev, status.st_ino, 0, _DIRECTORY)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def is_directory(state: FileState) -> bool:
    """Return whether ``state``, one of `states`, is that of a directory."""
    return state.mtime_ns == _DIRECTORY


def file_state_at(path: Path) -> FileState | None:
    """Return the state of the file that ``path`` leads to; ``None`` if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def relinked(root: Path) -> set[tuple[int, int]]:
    """Return device and inode of the files under ``root`` with a second name, and of those in `UNLINKED`."""
    files = (status for _, status in walk(root) if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode))
    return {*UNLINKED, *((status.st_dev, status.st_ino) for status in files)}


def allocated(root: Path) -> int:
    """Return the bytes on disk of the files under ``root`` that have one name; 0 if it is missing."""
    if not os.path.isdir(root):
        return 0
    return sum(
        512 * status.st_blocks for _, status in walk(root) if stat.S_ISREG(status.st_mode) and status.st_nlink == 1
    )


def link(root: Path, new: Path, without: Collection[str]) -> None:
    """Make ``new`` a second directory of everything under ``root``: hard links, also to symlinks themselves.

    Leaves out the files in ``without``.
    """
    for name, status in walk(root):
        if stat.S_ISDIR(status.st_mode):
            (new / name).mkdir(parents=True, exist_ok=True)
        elif name not in without:
            os.link(root / name, new / name, follow_symlinks=False)


def directories(root: Path) -> list[Path]:
    """Return ``root`` and the directories under it, the deepest first."""
    below = [root / name for name, status in walk(root) if stat.S_ISDIR(status.st_mode)]
    return [*reversed(below), root]


def free_later(root: Path) -> None:
    """Let a process that ends after this one hold the large files under ``root``, before they are removed.

    Linux frees a file's pages when its last descriptor is closed. After Ctrl-C, gigabytes took up to 1.8 s on a busy
    machine. The names go at once, and the space is free when the other process ends, however it ends.
    """
    import subprocess  # only after Ctrl-C

    held: list[int] = []
    with suppress(OSError):
        large = [name for name, status in walk(root) if stat.S_ISREG(status.st_mode) and status.st_size >= LARGE]
        held += [os.open(root / name, local.NO_FOLLOW) for name in large]
        if held:
            HOLDERS.append(subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, pass_fds=held))
    for descriptor in held:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove ``path`` and its content; do nothing if it is missing."""
    with local.closing(os.open(path.parent, local.DIRECTORY)) as parent:
        remove_at(parent, path.name)


def remove_at(directory: int, name: str, levels: int = 0) -> None:
    """Remove ``name`` in the open directory and its content; do nothing if it is missing.

    It removes names through open directories only, so it changes no symlink target and no file with a second name.
    """
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        if status.st_nlink > 1:
            UNLINKED.add((status.st_dev, status.st_ino))
        os.unlink(name, dir_fd=directory)
        return
    if levels > _MOST_LEVELS:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), name)
    with local.closing(_open_writable(directory, name)) as below:
        for entry in os.listdir(below):
            remove_at(below, entry, levels + 1)
    os.rmdir(name, dir_fd=directory)


def _open_writable(directory: int, name: str) -> int:
    """Open a directory whose entries are to go; its mode may forbid its owner to change it."""
    flags = local.DIRECTORY | local.NO_FOLLOW
    try:
        below = os.open(name, flags, dir_fd=directory)
    except PermissionError:
        _allow(directory, name, flags)
        below = os.open(name, flags, dir_fd=directory)
    if os.fstat(below).st_mode & 0o700 != 0o700:
        os.fchmod(below, 0o700)
    return below


def _allow(directory: int, name: str, flags: int) -> None:
    """Let the owner change the directory ``name``, and never what a symlink of that name points to."""
    if not hasattr(os, "O_PATH"):  # macOS, where chmod itself can leave symlinks alone
        os.chmod(name, 0o700, dir_fd=directory, follow_symlinks=False)
        return
    with local.closing(os.open(name, os.O_PATH | flags, dir_fd=directory)) as handle:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)


def rescue(old: Path, new: Path, known: Mapping[str, FileState]) -> None:
    """Move to ``new`` what appeared in ``old`` after ``known`` was taken, unless the name exists there."""
    for name, status in list(walk(old)):
        if name not in known and not os.path.lexists(new / name) and not stat.S_ISDIR(status.st_mode):
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(old / name, new / name)


def sync_directory(path: Path) -> None:
    """Make the directory's entries durable."""
    with local.closing(os.open(path, local.DIRECTORY)) as descriptor:
        os.fsync(descriptor)


# Turn errors of the operating system into one sentence each.


def free_bytes(directory: Path) -> int:
    """Return the bytes that this user may still write to the file system of ``directory``."""
    local.require_posix()
    status = os.statvfs(directory)
    blocks = status.f_bfree if os.geteuid() == 0 else status.f_bavail
    return blocks * status.f_frsize


def no_space(target: object, needed: int, free: int, why: str = "not enough space") -> WriteFailedError:
    """Return the error for a full disk or quota; ``needed`` and ``free`` in bytes, ``needed`` 0 if unknown."""
    wanted = f"{size(needed)} ({count(needed, 'byte')}) needed, " if needed else ""
    problem = f"{shown(target)} cannot be written: {why}: {wanted}{size(free)} ({count(free, 'byte')}) free"
    hint = Hint("free some space, or write to another disk with ", option("out"))
    return WriteFailedError(problem, hint, "write.no-space")


@contextmanager
def writing(target: object, directory: Path, needed: int) -> Iterator[None]:
    """Turn an `OSError` inside into a `WriteFailedError` about ``target``, which takes ``needed`` bytes."""
    try:
        yield
    except OSError as error:
        raise _failed(target, directory, needed, error) from error


def _failed(target: object, directory: Path, needed: int, error: OSError) -> WriteFailedError:
    reason = (error.strerror or type(error).__name__).lower()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_space(target, needed, _free_or_zero(directory), reason)
    if error.errno == errno.EFBIG:
        return WriteFailedError(
            f"{shown(target)} cannot be written: {reason}: {size(needed)} ({count(needed, 'byte')}) needed, "
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
        return ELSEWHERE
    if number == errno.EIO:
        return "the disk reports an error; check it before you write again"
    return Hint("tieconv changed nothing; run the command again, or ", ELSEWHERE)
