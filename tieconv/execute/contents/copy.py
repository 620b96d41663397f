"""Copy bytes between open files: by the kernel if it can, else through a buffer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from tieconv.errors import UnreadableError
from tieconv.formats.safetensors.header import PAGE
from tieconv.text import shown

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
    buffer = memoryview(bytearray(min(BLOCK, size)))
    done = 0
    while done < size:
        block = buffer[: min(len(buffer), size - done)]
        read_full(source, block, start + done)
        write_full(descriptor, block, offset + done)
        done += len(block)
        tick(len(block))


def read_full(source: int, buffer: memoryview, start: int) -> None:
    """Fill ``buffer``. Raises `UnreadableError` if the file ends early."""
    done = 0
    while done < len(buffer):
        got = os.preadv(source, [buffer[done:]], start + done)
        if not got:
            raise UnreadableError(
                f"{shown(name_of(source))} ended while it was read",
                "check that no other program is writing the file, then run the command again",
                "path.shrank",
            )
        done += got


def name_of(descriptor: int) -> str:
    """Return the path of the open file, if the system reports one."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return "a source file"


def write_full(descriptor: int, data: memoryview | bytes, offset: int) -> None:
    """Write all of ``data``."""
    rest = memoryview(data)
    while rest:
        put = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[put:], offset + put


def write_zeros(descriptor: int, offset: int, size: int, tick: Tick) -> None:
    """Write real zeros, so that the disk reserves the space now: a hole would not."""
    zeros = bytes(min(BLOCK, size))
    done = 0
    while done < size:
        block = memoryview(zeros)[: min(len(zeros), size - done)]
        write_full(descriptor, block, offset + done)
        done += len(block)
        tick(len(block))
