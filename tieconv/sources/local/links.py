"""Symbolic links: which ones may be followed, and what a hub cache is."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

from tieconv.errors import UnsafePathError
from tieconv.text import shown


def follow(path: str, root: str) -> str:
    """Where the link at ``path`` leads: into ``root``, or to a blob of the hub cache that ``root`` lies in.

    Raises `UnsafePathError` for any other place.
    """
    real_root = Path(os.path.realpath(root))
    # Unlike Path.resolve, realpath raises nothing for a loop: it is found when the link itself cannot be opened.
    target = Path(os.path.realpath(path))
    if target.is_relative_to(real_root) or _is_blob(target, real_root):
        return str(target)
    raise UnsafePathError(
        f"{shown(path)} is a link to {shown(target)}, outside the model directory",
        "copy the file into the directory if you trust it",
        "path.escape",
    )


_HUB_REPOSITORY = ("models--", "datasets--", "spaces--")
_SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")


def _hub_repository(real_root: Path) -> Path | None:
    """The repository in a hub cache whose snapshot ``real_root`` is or lies in."""
    for parent in real_root.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(_HUB_REPOSITORY):
            return parent.parent
    return None


def _is_blob(target: Path, real_root: Path) -> bool:
    """Whether a hub cache keeps ``target`` for the snapshot ``real_root``: as a blob of the repository, or shared."""
    repository = _hub_repository(real_root)
    if repository is None:
        return False
    shared = repository.parent / "blobs"  # since huggingface_hub 2.4
    if target.is_relative_to(shared):
        return _SHARED_BLOB.fullmatch(str(target.relative_to(shared))) is not None
    return target.is_relative_to(repository / "blobs")


def in_hub_cache(root: Path) -> bool:
    """True for a snapshot of a hub cache, whose files other snapshots share."""
    repository = _hub_repository(Path(os.path.realpath(root)))
    return repository is not None and any((home / "blobs").is_dir() for home in (repository, repository.parent))


def in_hub_store(path: Path) -> bool:
    """True where a file at ``path`` would lie in a hub cache: in a repository's snapshots or blobs, or in shared blobs.

    The cache gives what lies there to every program as the published model.
    """
    real = Path(os.path.realpath(path))
    for inner, parent in pairwise((real, *real.parents)):
        if parent.name.startswith(_HUB_REPOSITORY) and inner.name in ("snapshots", "blobs", "refs"):
            return True
        if inner.name == "blobs" and _holds_hub_repositories(parent):
            return True
    return False


def _holds_hub_repositories(directory: Path) -> bool:
    try:
        return any(name.startswith(_HUB_REPOSITORY) for name in os.listdir(directory))
    except OSError:
        return False
