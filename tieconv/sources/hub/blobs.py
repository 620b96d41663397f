"""Files of huggingface_hub's cache, held against their hashes: before they enter it, and before a verb reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import file_download

from tieconv.checkpoint.files.model_files import FileState
from tieconv.errors import UnreadableError
from tieconv.sources.digest import hash_file, kind_of
from tieconv.sources.hub.errors import AnswerError
from tieconv.sources.hub.session import is_limited
from tieconv.sources.local.files import FileSet
from tieconv.sources.threads import workers
from tieconv.text import shell_word, shown

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_WORKERS = 4

_proved: dict[FileState, str] = {}
"""Files that were hashed as they entered the cache, and need not be hashed again."""


def blob_name(path: str) -> str | None:
    """The hash that the cache names the blob of a snapshot's file by; ``None`` where the file is there itself."""
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else None


def verify(repo: str, root: str, files: Mapping[str, str]) -> None:
    """Hash the cached ``files`` of the snapshot ``root``; one without a hash is to have that of its blob's name.

    Raises `UnreadableError` for the first that has another.
    """
    with workers(_WORKERS) as pool:
        for _ in pool.map(lambda name: _verify(repo, root, name, files[name]), files):
            continue


def _verify(repo: str, root: str, name: str, known: str) -> None:
    if not os.path.lexists(os.path.join(root, name)):
        raise UnreadableError(
            f"hf://{repo}: {shown(name)} was listed and did not come", "check HF_ENDPOINT and proxies", "hub.malformed"
        )
    expected = known or blob_name(os.path.join(root, name)) or ""
    if not _HASH.fullmatch(expected):
        raise UnreadableError(
            f"the cache does not say which hash {shown(name)} of hf://{repo} has, so nothing proves its bytes",
            "unset HF_HUB_OFFLINE, then try again",
            "hub.no-hash",
        )
    reader = FileSet(root)  # of this thread alone: after an error the others still read for a moment
    try:
        if _proved.get(reader.state(name)) == expected or hash_file(reader, name, kind_of(expected)) == expected:
            return
    finally:
        reader.close()
    raise UnreadableError(
        f"{shown(name)} of hf://{repo} is damaged in the local cache: its bytes do not have the hash {expected}",
        f"fetch it again: hf download {shell_word(repo)} {shell_word(name)} --force-download",
        "hub.damaged-cache",
    )


def _admit(move: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    """Move a file that was fetched into the cache if its bytes have the hash that it gets as its name."""
    if is_limited() and _HASH.fullmatch(target.name):
        reader = FileSet(source.parent)
        try:
            if hash_file(reader, source.name, kind_of(target.name)) != target.name:
                raise AnswerError(
                    f"the server sent other bytes than those of the hash {target.name}, and they were not kept",
                    "check HF_ENDPOINT and proxies",
                    "hub.hash",
                )
        finally:
            reader.close()
    move(source, target)
    if is_limited() and _HASH.fullmatch(target.name):
        status = target.stat()
        _proved[FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)] = target.name


def _install() -> None:
    """Have huggingface_hub's move into its cache prove the file first.

    It has no public way to do so. A version without this function is caught by `verify`, after the fact.
    """
    move: Any = getattr(file_download, "_chmod_and_move", None)
    if move is not None and getattr(move, "__name__", "") != "admitted":

        def admitted(source: Path, target: Path) -> None:
            _admit(move, Path(source), Path(target))

        file_download._chmod_and_move = admitted  # type: ignore[assignment]


_install()
