"""Recognise the weight files that a killed run finished. Their tensors are still to be compared with the source."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tieconv.execute.contents.copy import read_full
from tieconv.execute.contents.file_layout import FileLayout

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_finished(path: Path, layout: FileLayout) -> bool:
    """Return whether ``path`` is a file of this user with the size and the header of ``layout``.

    The header is written last. Says nothing about the tensors.
    """
    try:
        descriptor = os.open(path, _READ)
    except OSError:
        return False
    try:
        status = os.fstat(descriptor)
        alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
        return alone and status.st_size == layout.size and _has_literals(descriptor, layout)
    finally:
        os.close(descriptor)


def _has_literals(descriptor: int, layout: FileLayout) -> bool:
    for offset, expected in layout.literals(descriptor):
        stored = memoryview(bytearray(len(expected)))
        read_full(descriptor, stored, offset)
        if stored != expected:
            return False
    return True
