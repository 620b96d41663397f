"""Recognise what Git leaves in place of a file: a Git LFS pointer, or a symlink written as text.

Source: the Git LFS specification (docs/spec.md) and `core.symlinks` of git-config: "symbolic links are checked out as
small plain files that contain the link text".
"""

from __future__ import annotations

import re

from tieconv.errors import UnreadableError
from tieconv.text import shell_word, shown

LARGEST = 1024
"""Bytes of the largest pointer by the specification; a path is shorter on most systems."""
_POINTER = b"version https://git-lfs"
_PATH = rb"(?=.*/|.*\.[A-Za-z]\w*\Z)(?:\.{1,2}/)*[\w.@+-]+(?:/[\w.@+ -]+)*"
"""Segments of a relative path: more than one of them, or one with a suffix."""
_LINKED = (".json", ".safetensors", ".bin", ".pt", ".pth", ".th", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".model")
"""Ends of the names of files that are never a single path."""


def check_git_file(name: str, start: bytes, size: int) -> None:
    """Raise `UnreadableError` where the file ``name`` of ``size`` bytes, which begins with ``start``, is a stand-in."""
    if size > LARGEST:
        return
    if start.startswith(_POINTER):
        raise UnreadableError(
            f"{shown(name)} is a Git LFS pointer, not the file itself",
            "fetch the files in the model's directory: git lfs pull",
            "git.lfs-pointer",
        )
    if start.startswith(b"{"):
        return  # JSON, as most small files are: no path begins so
    linked = name.endswith(_LINKED) or start.startswith(b"../")
    if linked and len(start) == size and re.fullmatch(_PATH, start):
        raise UnreadableError(
            f"{shown(name)} holds only the path {shown(start.decode('ascii'), 80)}: Git wrote a symlink as text",
            "in the model's directory: git config core.symlinks true && git checkout -- " + shell_word(name),
            "git.symlink-text",
        )
