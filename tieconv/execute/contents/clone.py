"""Share a file's blocks with another file (reflink)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from pathlib import Path

_FICLONE = 0x40049409
_FICLONERANGE = 0x4020940D
_BLOCK = 4096
_UNSUPPORTED = frozenset(
    {
        errno.EOPNOTSUPP,
        errno.ENOTTY,
        errno.EXDEV,
        errno.EINVAL,
        errno.EPERM,
        errno.EISDIR,
        errno.ENOSYS,
        errno.ETXTBSY,
        errno.EBADF,
    }
)


def clone(source: int, descriptor: int) -> bool:
    """Make the empty file ``descriptor`` share all blocks of ``source``; return false if the file system cannot."""
    try:
        fcntl.ioctl(descriptor, _FICLONE, source)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
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
        fcntl.ioctl(probe, _FICLONERANGE, struct.pack("qQQQ", source, 0, length, 0))
    except OSError:
        return False
    finally:
        os.close(probe)
    return True
