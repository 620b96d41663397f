"""Check files of huggingface_hub's cache against their hashes, before they enter it and before use."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import file_download

from tieconv.checkpoint.model_files import FileState
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
"""Files with the hash that tieconv checked when they entered the cache."""


def blob_name(path: str) -> str | None:
    """Return the name of the blob behind a snapshot's file, which is its hash. ``None`` without a symlink."""
    return os.path.basename(os.readlink(path)) if os.path.islink(path) else None


def verify(repo: str, root: str, files: Mapping[str, str]) -> None:
    """Hash the cached ``files`` of the snapshot ``root``. An empty hash means the name of the blob.

    Raises `UnreadableError` for the first file with another hash.
    """
    with workers(_WORKERS) as pool:
        for _ in pool.map(lambda name: _verify(repo, root, name, files[name]), files):
            continue


def _verify(repo: str, root: str, name: str, known: str) -> None:
    if not os.path.lexists(os.path.join(root, name)):
        raise UnreadableError(
            f"hf://{repo}: the server did not send {shown(name)}", "check HF_ENDPOINT and proxies", "hub.malformed"
        )
    expected = known or blob_name(os.path.join(root, name)) or ""
    if not _HASH.fullmatch(expected):
        raise UnreadableError(
            f"the Hub cache has no hash for {shown(name)} of hf://{repo}, so tieconv cannot check it",
            "unset HF_HUB_OFFLINE, then try again",
            "hub.no-hash",
        )
    reader = FileSet(root)  # one for each thread: after an error other threads may still read
    try:
        if _proved.get(reader.state(name)) == expected or hash_file(reader, name, kind_of(expected)) == expected:
            return
    finally:
        reader.close()
    raise UnreadableError(
        f"{shown(name)} of hf://{repo} is damaged in the local cache: its bytes do not match the hash {expected}",
        f"fetch it again: hf download {shell_word(repo)} {shell_word(name)} --force-download",
        "hub.damaged-cache",
    )


def _admit(move: Callable[[Path, Path], None], source: Path, target: Path) -> None:
    """Move a fetched file into the cache if its bytes match the hash in its new name."""
    if is_limited() and _HASH.fullmatch(target.name):
        reader = FileSet(source.parent)
        try:
            if hash_file(reader, source.name, kind_of(target.name)) != target.name:
                raise AnswerError(
                    f"the server sent bytes that do not match the hash {target.name}",
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
    """Make huggingface_hub check a file before it moves the file into the cache.

    huggingface_hub has no public hook for this. If a version lacks the function, `verify` checks the file later.
    """
    move: Any = getattr(file_download, "_chmod_and_move", None)
    if move is not None and getattr(move, "__name__", "") != "admitted":

        def admitted(source: Path, target: Path) -> None:
            _admit(move, Path(source), Path(target))

        file_download._chmod_and_move = admitted  # type: ignore[assignment]


_install()
