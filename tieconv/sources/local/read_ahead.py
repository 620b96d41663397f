"""Tell the kernel which bytes of a file come next."""

from __future__ import annotations

import os

AHEAD = 2 * 1024 * 1024
"""Bytes between two hints."""
_LARGE = 128 * 1024
"""Bytes of a read that belongs to a read from end to end."""


def read_ahead(descriptor: int, position: int, size: int, end: int) -> None:
    """Announce the bytes behind a read of ``size`` bytes at ``position``; ``end`` is the end of the tensor.

    The kernel reads ahead of one series of reads. A comparison reads two tensors in turn, often of one file. Does
    nothing for a small read, and on systems without `posix_fadvise`.
    """
    after = position + size
    if size < _LARGE or position // AHEAD == after // AHEAD or after >= end or not hasattr(os, "posix_fadvise"):
        return
    os.posix_fadvise(descriptor, after, min(2 * AHEAD, end - after), os.POSIX_FADV_WILLNEED)
