"""Decide which symlinks may be followed, and recognise the Hub cache."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

from tieconv.errors import UnsafePathError
from tieconv.text import shown


def follow(path: str, root: str) -> str:
    """Return the target of the symlink at ``path``, which is below ``root`` or a blob of its Hub cache.

    Raises `UnsafePathError` for any other target.
    """
    real_root = Path(os.path.realpath(root))
    # Unlike Path.resolve, realpath does not raise for a loop. Opening the link fails later.
    target = Path(os.path.realpath(path))
    if target.is_relative_to(real_root) or _is_blob(target, real_root):
        return str(target)
    raise UnsafePathError(
        f"{shown(path)} is a symlink that points outside the model directory, to {shown(target)}",
        "if you trust the file, copy it into the model directory",
        "path.escape",
    )


_HUB_REPOSITORY = ("models--", "datasets--", "spaces--")
_SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")


def _hub_repository(real_root: Path) -> Path | None:
    """Return the repository of the Hub cache with ``real_root`` in one of its snapshots, or ``None``."""
    for parent in real_root.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(_HUB_REPOSITORY):
            return parent.parent
    return None


def _is_blob(target: Path, real_root: Path) -> bool:
    """Return whether ``target`` is a blob of the Hub cache that the snapshot ``real_root`` may use."""
    repository = _hub_repository(real_root)
    if repository is None:
        return False
    shared = repository.parent / "blobs"  # since huggingface_hub 2.4
    if target.is_relative_to(shared):
        return _SHARED_BLOB.fullmatch(str(target.relative_to(shared))) is not None
    return target.is_relative_to(repository / "blobs")


def in_hub_cache(root: Path) -> bool:
    """Return whether ``root`` is in a snapshot of the Hub cache, whose files other snapshots share."""
    repository = _hub_repository(Path(os.path.realpath(root)))
    return repository is not None and any((home / "blobs").is_dir() for home in (repository, repository.parent))


def in_hub_store(path: Path) -> bool:
    """Return whether ``path`` is in the snapshots or blobs of a Hub cache.

    Every program reads these files as the published model, so tieconv must not write there.
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
