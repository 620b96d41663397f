"""Where an execution writes, and the paths derived from it."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

from tieconv.checkpoint.files.model_files import Layout
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.errors import DestinationError
from tieconv.text import shown

_STAGING = re.compile(r"\.[^/]+\.tieconv-staging(/|$)")
_STAGING_BELOW = re.compile(r"/\.[^/]+\.tieconv-staging(/|$)")
_LONGEST_NAME = 200
"""Bytes of the longest OUT name that leaves room for the staging directory's name (a name has at most 255)."""


@record
class Target:
    """OUT and how to write it.

    With ``in_place`` the write replaces the model itself and ignores ``path``. ``hardlink`` shares unchanged files with
    the source as hard links. ``verify="structure"`` skips the byte comparison of ranges that the kernel copied or
    shared. ``resume`` takes over the finished files of a killed run. It leaves them if a signal or the system stops
    this one.
    """

    path: Path
    in_place: bool = False
    overwrite: bool = False
    hardlink: bool = False
    verify: Literal["full", "structure"] = "full"
    resume: bool = False


def is_file(plan: Plan) -> bool:
    """Return whether OUT is one weight file rather than a directory."""
    return plan.checkpoint.layout is Layout.FILE


def source_root(plan: Plan) -> Path:
    """Return the directory that the plan's file names are relative to."""
    return Path(plan.checkpoint.root)


def source_path(plan: Plan) -> Path:
    """Return the model itself: its directory, or the lone weight file."""
    root = Path(os.path.realpath(plan.checkpoint.root))
    return root / plan.checkpoint.files[0].name if is_file(plan) else root


def destination(plan: Plan, target: Target) -> Path:
    """Return OUT, absolute and with no symlink in its parent. Raises `DestinationError` for a path without a name."""
    if target.in_place:
        return source_path(plan)
    parent, name = os.path.split(os.path.abspath(target.path))
    if not name:
        raise DestinationError(f"{shown(target.path)} is not a name for a new model", "give -o a path", "out.name")
    return Path(os.path.realpath(parent)) / name


def changed_names(plan: Plan) -> tuple[str, ...]:
    """Return the files that the plan writes anew."""
    return (*(output.name for output in plan.weights), *(output.name for output in plan.texts))


def linked_names(plan: Plan) -> tuple[str, ...]:
    """Return the unchanged files of the output, without what a killed run left in the model."""
    return tuple(link.name for link in plan.links if not is_staging(link.name))


def replaces_directory(plan: Plan, target: Target) -> bool:
    """Return whether the write replaces an old directory with a new one.

    A shell whose working directory is the old one needs ``cd .`` to see the new one.
    """
    if is_file(plan):
        return False
    if target.in_place:
        return len(changed_names(plan)) > 1 or bool(plan.removed)
    return target.overwrite and os.path.isdir(destination(plan, target))


def is_staging(name: str) -> bool:
    """Return whether the relative path ``name`` is in a staging directory."""
    return _STAGING.match(name) is not None or _STAGING_BELOW.search(name) is not None


def staging_path(final: Path) -> Path:
    """Return the staging directory of ``final``: its sibling, or inside ``final`` if that is a mount point."""
    name = final.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    inside = os.path.isdir(final) and not final.is_symlink() and _apart(final)
    return (final if inside else final.parent) / f".{name}.tieconv-staging"


def _apart(directory: Path) -> bool:
    """Return whether the system cannot rename from the parent of ``directory`` into it."""
    try:
        return os.path.ismount(directory) or not os.access(directory.parent, os.W_OK | os.X_OK)
    except FileNotFoundError:  # another process removed it meanwhile; the write then reports that
        return False
