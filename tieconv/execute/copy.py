"""Copy bytes between open files: by the kernel if it can, else through a buffer."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError, TieconvError
from tieconv.formats.safetensors import PAGE
from tieconv.sources import local
from tieconv.text import Hint, count, option, shown

Tick = Callable[[int], None]
"""Receives the number of bytes just done."""
BLOCK = 256 * 1024
"""Bytes of the copy buffer: it fits the second-level cache."""
KERNEL_PIECE = 64 * 1024 * 1024
"""Bytes of one kernel call: few enough to report progress and to handle signals between calls."""
_UNSUPPORTED = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF, errno.ETXTBSY}
)
Extent = tuple[int, int]
"""Start and end (exclusive) of written bytes."""


def copy_range(source: int, start: int, descriptor: int, offset: int, size: int, tick: Tick) -> list[Extent]:
    """Copy ``size`` bytes and return the extents of ``descriptor`` that the kernel copied or shared.

    The kernel gets whole pages with the same alignment in both files, because a file system can share those.
    """
    head = -offset % PAGE if start % PAGE == offset % PAGE else 0
    head = min(head, size)
    middle = (size - head) // PAGE * PAGE if start % PAGE == offset % PAGE else size
    by_hand(source, start, descriptor, offset, head, tick)
    done = _by_kernel(source, start + head, descriptor, offset + head, middle, tick)
    rest = head + done
    by_hand(source, start + rest, descriptor, offset + rest, size - rest, tick)
    return [(offset + head, offset + rest)] if done else []


def _by_kernel(source: int, start: int, descriptor: int, offset: int, size: int, tick: Tick) -> int:
    """Return the number of bytes that the kernel copied; fewer if it cannot copy between these two files."""
    if not hasattr(os, "copy_file_range"):
        return 0
    done = 0
    while done < size:
        piece = min(KERNEL_PIECE, size - done)
        try:
            got = os.copy_file_range(source, descriptor, piece, start + done, offset + done)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            break
        if not got:
            break
        done += got
        tick(got)
    return done


def by_hand(source: int, start: int, descriptor: int, offset: int, size: int, tick: Tick) -> None:
    """Copy ``size`` bytes through a buffer. Raises `UnreadableError` if ``source`` ends early."""
    for done, block in read_blocks(source, start, size):
        write_full(descriptor, block, offset + done)
        tick(len(block))


def read_blocks(source: int, start: int, size: int, step: int = BLOCK) -> Iterator[tuple[int, bytearray]]:
    """Yield (offset from ``start``, bytes) of ``size`` bytes, ``step`` at a time, in a block that is reused."""
    block = bytearray(min(step, size))
    for done in range(0, size, step):
        if size - done < len(block):
            block = bytearray(size - done)
        read_full(source, memoryview(block), start + done)
        yield done, block


def read_full(source: int, buffer: memoryview, start: int) -> None:
    """Fill ``buffer``. Raises `UnreadableError` if the file ends early."""
    done = 0
    while done < len(buffer):
        got = os.preadv(source, [buffer[done:]], start + done)
        if not got:
            raise local.shrank(name_of(source))
        done += got


def name_of(descriptor: int) -> str:
    """Return the path of the open file, if the system reports one."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "a source file"


def write_full(descriptor: int, data: memoryview | bytes | bytearray, offset: int) -> None:
    """Write all of ``data``."""
    rest = memoryview(data)
    while rest:
        put = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[put:], offset + put


def write_zeros(descriptor: int, offset: int, size: int, tick: Tick) -> None:
    """Write real zeros, so that the disk reserves the space now: a hole would not."""
    zeros = memoryview(bytes(min(BLOCK, size)))
    for done in range(0, size, BLOCK):
        block = zeros[: size - done]
        write_full(descriptor, block, offset + done)
        tick(len(block))


# Share a file's blocks with another file (reflink).


_FICLONE = 0x40049409
_FICLONERANGE = 0x4020940D
_BLOCK = 4096
_NO_REFLINK = _UNSUPPORTED | {errno.ENOTTY, errno.EISDIR}


def clone(source: int, descriptor: int) -> bool:
    """Make the empty file ``descriptor`` share all blocks of ``source``; return false if the file system cannot."""
    try:
        local.fcntl.ioctl(descriptor, _FICLONE, source)
    except OSError as error:
        if error.errno not in _NO_REFLINK:
            raise
        return False
    return True


def can_clone(source: int, directory: Path) -> bool:
    """Return whether a file in ``directory`` can share blocks with ``source``, tried on a nameless file."""
    try:
        probe = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):
        return False
    try:
        length = _BLOCK if os.fstat(source).st_size >= _BLOCK else 0  # a length of 0 means: to the end
        local.fcntl.ioctl(probe, _FICLONERANGE, struct.pack("qQQQ", source, 0, length, 0))
    except OSError:
        return False
    finally:
        os.close(probe)
    return True


# Copy mode, owner, extended attributes and access control list from the replaced file to the written file.


_ACCESS = "system.posix_acl_access"
_LISTS = frozenset({_ACCESS, "system.posix_acl_default"})
_OF_CONTENT = frozenset({"security.ima", "security.evm"})
"""Signatures of the old content, which are wrong for the new content."""
_NONE = frozenset({errno.EOPNOTSUPP, errno.ENODATA})
_ALL = ("all",)


@record
class Like:
    """The model for a written file's attributes: the file it ``replaces``, else the one it is made from."""

    path: Path
    replaces: bool

    @property
    def status(self) -> os.stat_result:
        return os.stat(self.path)

    @property
    def creation_mode(self) -> int:
        """The mode to create a file with, before the system removes the bits of the umask."""
        return stat.S_IMODE(self.status.st_mode) & 0o777


def first_like(replaced: Path | None, source: Path) -> Like | None:
    """Return the file at ``replaced``, else the one at ``source``, else ``None``."""
    if replaced is not None and replaced.exists():
        return Like(replaced, True)
    return Like(source, False) if source.exists() else None


def inherit(descriptor: int, like: Like) -> tuple[str, ...]:
    """Copy the owner (as root) and, when the file replaces ``like``, all other attributes to the open file.

    Returns the names of the extended attributes that could not be kept.
    """
    old = like.status
    if not like.replaces:
        _own(descriptor, old)
        return ()
    return _take_over(descriptor, like.path, old, like.creation_mode)


def reset(descriptor: int, like: Like | None, directory: Path) -> None:
    """Give a file that a killed run left the mode, group and extended attributes of a new file in ``directory``.

    An archive can bring such a file along, with any mode. Raises ``OSError`` if an attribute cannot be removed.
    """
    fresh = directory / f"{secrets.token_hex(8)}.tmp"
    mode = 0o666 if like is None else like.creation_mode
    made = os.open(fresh, local.CREATE, mode)
    try:
        status = os.fstat(made)
        os.fchown(descriptor, -1, status.st_gid)
        if hasattr(os, "listxattr"):
            for name in set(os.listxattr(descriptor)).difference(os.listxattr(made)):
                os.removexattr(descriptor, name)
            _copy_extended(descriptor, fresh)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    finally:
        os.close(made)
        os.unlink(fresh)


def inherit_directory(directory: Path, like: Like) -> tuple[str, ...]:
    """Copy attributes to a directory as `inherit` does; a directory that replaces another keeps its whole mode."""
    old = like.status
    with local.closing(os.open(directory, local.DIRECTORY | local.NO_FOLLOW)) as descriptor:
        if like.replaces:
            return _take_over(descriptor, like.path, old, stat.S_IMODE(old.st_mode))
        _own(descriptor, old)
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode & old.st_mode) | 0o700)
        return ()


def _own(descriptor: int, old: os.stat_result) -> None:
    if os.geteuid() == 0:
        with suppress(PermissionError):  # a file system without owners, or one whose owners root may not change
            os.fchown(descriptor, old.st_uid, old.st_gid)


def _take_over(descriptor: int, path: Path, old: os.stat_result, mode: int) -> tuple[str, ...]:
    """Copy the access control list; without one, give the group no permission: its bits were the list's mask."""
    _own(descriptor, old)
    lost = _copy_extended(descriptor, path)
    os.fchmod(descriptor, mode & ~stat.S_IRWXG if _ACCESS in lost else mode)
    return lost


def _copy_extended(descriptor: int, path: Path) -> tuple[str, ...]:
    if not hasattr(os, "listxattr"):
        return _ALL
    try:
        names = os.listxattr(path)
    except OSError as error:
        return () if error.errno in _NONE else _ALL
    for name in _LISTS.intersection(os.listxattr(descriptor)).difference(names):
        os.removexattr(descriptor, name)  # the parent directory's default set it; the old file has none
    return tuple(name for name in names if not _copy_one(descriptor, path, name))


def _copy_one(descriptor: int, path: Path, name: str) -> bool:
    if name in _OF_CONTENT:
        return False
    try:
        value = os.getxattr(path, name)
        if value != _value(descriptor, name):
            os.setxattr(descriptor, name, value)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True


def _value(descriptor: int, name: str) -> bytes | None:
    try:
        return os.getxattr(descriptor, name)
    except OSError:
        return None


def notes(lost: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the note about extended attributes that could not be kept; empty if all were kept."""
    if not lost:
        return ()
    name, attributes = min(lost.items())
    others = f" and of {count(len(lost) - 1, 'other file')}" if len(lost) > 1 else ""
    subject = f"extended attributes of {shown(name)}{others}"
    return (f"tieconv could not keep all {subject}: {shown(', '.join(attributes))}",)


_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS})


def not_linkable(name: str, error: TieconvError) -> TieconvError:
    """Return the refusal if the file system has no hard links, else ``error``."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno in _NO_LINKS:
        reason = (cause.strerror or "").lower()
        problem = f"tieconv cannot hard-link {shown(name)}: {reason}"
        return RefusedError(problem, Hint("leave out ", option(hardlink=True)), "out.hardlink")
    return error
