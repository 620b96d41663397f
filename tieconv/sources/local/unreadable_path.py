"""Explain why a path cannot be opened, and what to do."""

from __future__ import annotations

import errno
import os
import re
import stat

from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.text import shown


def unreadable(path: str | os.PathLike[str], error: OSError) -> UnreadableError:
    """Convert a system error for a path to an error with a hint."""
    if error.errno in (errno.ENXIO, errno.ELOOP):
        return UnsafePathError(
            f"{shown(path)} is not a regular file", "move it out of the model directory", "path.not-regular"
        )
    reason = (error.strerror or "unknown error").lower()
    hint = _HINTS.get(error.errno or 0, "check the path and the disk")
    if error.errno == errno.ENOENT and os.path.islink(path):
        hint = "the symlink points to a missing file: fetch the file again, or remove the symlink"
    return UnreadableError(f"{shown(path)} cannot be opened: {reason}", hint, "path.unreadable")


_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "ask its owner for permission to read it",
    errno.EPERM: "ask its owner for permission to read it",
    errno.EMFILE: "allow more open files: ulimit -n 8192",
}


def not_regular(path: str | os.PathLike[str], mode: int) -> UnsafePathError:
    """Return the error for a path that is not a regular file."""
    kind = _KINDS.get(stat.S_IFMT(mode), "a special file")
    return UnsafePathError(
        f"{shown(path)} is {kind}, not a regular file", "move it out of the model directory", "path.not-regular"
    )


_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}

WANTED = "give a model directory, a weight file or an index"
_PAGE = r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:[/?#].*)?"


_REPOSITORY = r"(?a:(?!\.)[\w.-]+/(?!\.)[\w.-]+)"
_FILES = (".safetensors", ".json", ".bin", ".pt", ".pth", ".th", ".ckpt", ".onnx")


def hint_for_missing(source: str) -> str:
    """Return the hint for a missing path. A name on the Hub gets its hf:// name."""
    if page := re.fullmatch(_PAGE, source):
        return f"for the model on the Hub write hf://{shown(page[1])}"
    if re.fullmatch(_REPOSITORY, source) and not source.endswith(_FILES):
        return f"for the model on the Hub write hf://{shown(source)}"
    return WANTED


def shrank(name: str) -> UnreadableError:
    """Return the error about a file that ended before the bytes that its header describes."""
    return UnreadableError(
        f"{shown(name)} ended while it was read",
        "check that no other program is writing the file, then run the command again",
        "path.shrank",
    )
