"""Recognise what Git writes instead of a file: a Git LFS pointer, or a symlink as text.

Sources: the Git LFS specification (docs/spec.md). `core.symlinks` in git-config: without it Git writes a symlink as a
small file that contains the link text.
"""

from __future__ import annotations

import re

from tieconv.errors import UnreadableError
from tieconv.text import shell_word, shown

LARGEST = 1024
"""Bytes of the largest pointer by the specification; a path is shorter on most systems."""
_POINTER = b"version https://git-lfs"
_PATH = rb"(?=.*/|.*\.[A-Za-z]\w*\Z)(?:\.{1,2}/)*[\w.@+-]+(?:/[\w.@+ -]+)*"
"""Segments of a relative path: several of them, or one with a suffix."""
_LINKED = (".json", ".safetensors", ".bin", ".pt", ".pth", ".th", ".ckpt", ".gguf", ".onnx", ".onnx_data", ".model")
"""Suffixes of files that never consist of a single path."""


def check_git_file(name: str, start: bytes, size: int) -> None:
    """Raise `UnreadableError` if Git wrote the file ``name`` as a pointer or a link text.

    ``start`` is the file's first bytes, ``size`` its size in bytes.
    """
    if size > LARGEST:
        return
    if start.startswith(_POINTER):
        raise UnreadableError(
            f"{shown(name)} is a Git LFS pointer, not the file itself",
            "fetch the files in the model's directory: git lfs pull",
            "git.lfs-pointer",
        )
    if start.startswith(b"{"):
        return  # JSON, as most small files are: no path begins like this
    linked = name.endswith(_LINKED) or start.startswith(b"../")
    if linked and len(start) == size and re.fullmatch(_PATH, start):
        raise UnreadableError(
            f"{shown(name)} holds only the path {shown(start.decode('ascii'), 80)}: Git wrote a symlink as text",
            "in the model's directory: git config core.symlinks true && git checkout -- " + shell_word(name),
            "git.symlink-text",
        )
