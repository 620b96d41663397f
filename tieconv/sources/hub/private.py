"""Files that `tieconv push` leaves out by default: hidden files, caches, keys and tokens."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from tieconv.errors import RefusedError, UnsafePathError
from tieconv.sources.local.links import follow
from tieconv.text import count, shown

_PRIVATE = (".*", "__pycache__", "*.pem", "*.key", "id_rsa", "id_ed25519", "credentials*", "token", "stored_tokens")
_FORBIDDEN = frozenset({".git", ".cache"})
"""Directories that huggingface_hub never uploads."""


def is_private(name: str) -> bool:
    """Return whether a file, or a directory above it, has a private name."""
    return any(fnmatchcase(part, pattern) for part in name.split("/") for pattern in _PRIVATE)


def private(names: Iterable[str], include: Sequence[str]) -> frozenset[str]:
    """Return the private ``names`` that ``include`` does not list as a file or a directory.

    Raises `RefusedError` for an entry of ``include`` that matches no file, or that the Hub refuses.
    """
    every = list(names)
    for wanted in include:
        if _FORBIDDEN.intersection(wanted.split("/")):
            raise RefusedError(
                f"{shown(wanted)} cannot be pushed: the Hub refuses files of a .git or .cache directory",
                "remove it from --include",
                "push.include",
            )
        if not any(_stands_for(wanted, name) for name in every):
            raise RefusedError(
                f"--include {shown(wanted)} matches no file",
                "give a path relative to the model directory",
                "push.include",
            )
    return frozenset(
        name
        for name in every
        if is_private(name) and not any(_stands_for(included_name, name) for included_name in include)
    )


def _stands_for(wanted: str, name: str) -> bool:
    return name == wanted or name.startswith(f"{wanted.rstrip('/')}/")


def grouped(names: Iterable[str], root: str) -> tuple[str, ...]:
    """Return the names for people. Counts the files of private directories and adds the .git directory."""
    several = Counter(_group(name) for name in names)
    groups = [f"{name} ({count(number, 'file')})" if name.endswith("/") else name for name, number in several.items()]
    return tuple(sorted([*groups, *([".git/"] if os.path.lexists(os.path.join(root, ".git")) else [])]))


def _group(name: str) -> str:
    parts = name.split("/")
    for number in range(1, len(parts)):
        if is_private(parts[number - 1]):
            return "/".join(parts[:number]) + "/"
    return name


def refuse_special(root: str, names: Iterable[str]) -> None:
    """Raise `RefusedError` for the first name that is not a regular file of the directory ``root``."""
    for name in names:
        path = os.path.join(root, name)
        raise RefusedError(
            f"{shown(name)} {_description(path, root)}",
            "replace it with the file itself, or move it out of the model directory",
            "push.directory",
        )


def _description(path: str, root: str) -> str:
    if not os.path.islink(path):
        return "is not a regular file"
    try:
        target = follow(path, root)
    except UnsafePathError:
        return f"is a symlink that points outside the model directory, to {shown(os.readlink(path))}"
    if os.path.isdir(target):
        return "is a symlink to a directory"
    return "is a symlink to a missing file"
