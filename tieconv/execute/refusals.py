"""Refuse a target before anything is written."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from tieconv.checkpoint.files.cautions import TRAINING
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.errors import DestinationError, RefusedError, StalePlanError, TieconvError
from tieconv.execute import tree
from tieconv.execute.contents.clone import can_clone
from tieconv.execute.contents.file_layout import bytes_in_place_of_shared
from tieconv.execute.output_path import check_apart, check_out, file_suffixes
from tieconv.execute.system_errors import free_bytes, no_space, writing
from tieconv.execute.target import (
    Target,
    changed_names,
    destination,
    is_file,
    linked_names,
    replaces_directory,
    source_root,
    staging_path,
)
from tieconv.sources.local.files import file_state, open_regular
from tieconv.sources.local.links import in_hub_cache, in_hub_store
from tieconv.text import shown


def check_target(plan: Plan, target: Target) -> None:
    """Raise what would stop `execute` before its first byte.

    Raises `RefusedError`, `DestinationError`, `StalePlanError`, or `WriteFailedError` if space is short.
    """
    check_contents(plan)
    final = destination(plan, target)
    with writing(final.name, final.parent, 0):
        check_place(plan, target)
        check_fresh(plan)
        _check_space(plan, target)


def check_far_target(plan: Plan, target: Target) -> None:
    """Check the target of a model that is not fetched yet: as `check_target`, but not its files and the space."""
    check_contents(plan)
    final = destination(plan, target)
    with writing(final.name, final.parent, 0):
        check_place(plan, target)


def check_contents(plan: Plan) -> None:
    """Check that every file of the plan can be written, wherever OUT is. Raises `RefusedError`."""
    check_names(plan)
    _check_special(plan)


def check_place(plan: Plan, target: Target) -> None:
    """Check whether OUT may be written; runs again once the staging directory is owned."""
    final = destination(plan, target)
    if target.in_place:
        _check_in_place(plan, target, final)
    else:
        check_apart(plan, target, final)
        check_out(plan, target, final)
    _check_parent(plan, target, final)


def check_names(plan: Plan) -> None:
    """Check that output names are relative, stay inside OUT and differ on every file system."""
    names = (*changed_names(plan), *linked_names(plan))
    if is_file(plan) and (len(names) != 1 or len(plan.weights) + len(plan.links) != 1):
        raise RefusedError(
            f"{shown(plan.checkpoint.source)} is one file, but the change affects {len(names)} files",
            "give the model directory instead of the file",
            "out.one-file",
        )
    seen: dict[str, str] = {}
    for name in names:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts or str(parts) != name or "\0" in name:
            raise RefusedError(f"{shown(name)} is not a file name inside a model", "", "out.unsafe-name")
        twin = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if twin is not name:
            raise RefusedError(
                f"{shown(twin)} and {shown(name)} are the same name on a file system that ignores case",
                "rename one of them",
                "out.case-collision",
            )


def _check_special(plan: Plan) -> None:
    if plan.checkpoint.special:
        first = next(iter(plan.checkpoint.special))
        raise RefusedError(
            f"{shown(first)} is not a regular file, so tieconv cannot copy it",
            "move it out of the model directory",
            "out.special",
        )


def _check_in_place(plan: Plan, target: Target, final: Path) -> None:
    root = source_root(plan)
    hint = "write a new model with -o OUT"
    if any(caution.code == TRAINING for caution in plan.checkpoint.cautions):
        raise RefusedError(
            f"{shown(plan.checkpoint.source)} is a training checkpoint: a write in place would lose its other contents",
            hint,
            "out.training",
        )
    if in_hub_cache(root) or in_hub_store(final):
        raise RefusedError(
            f"{shown(root)} is a snapshot in the Hub cache, and other snapshots share its files",
            hint,
            "in-place.hub-cache",
        )
    if is_file(plan) and plan.weights and final.suffix not in file_suffixes(plan):
        raise RefusedError(f"{shown(final.name)} would have a suffix of another format", hint, "in-place.format")
    weights = [file.name for file in plan.checkpoint.files]
    for name in (*weights, *changed_names(plan), *plan.removed):
        if os.path.islink(root / name):
            raise RefusedError(
                f"{shown(name)} is a symlink, so --in-place would leave its target unchanged", hint, "in-place.link"
            )
    if replaces_directory(plan, target) and os.path.ismount(final):
        raise RefusedError(
            f"{shown(final)} is a mount point, so tieconv cannot replace it in one step", hint, "in-place.mount"
        )


def _check_parent(plan: Plan, target: Target, final: Path) -> None:
    parent = final.parent
    if not parent.is_dir():
        raise DestinationError(f"{shown(parent)} is not a directory", f"mkdir -p {shown(parent)}", "out.no-parent")
    swaps = replaces_directory(plan, target)
    within = target.in_place and not is_file(plan) and not swaps
    # A rename needs write permission on the directory itself: its ".." entry changes.
    for directory in (final,) if within else (parent, final) if swaps else (parent,):
        if not os.access(directory, os.W_OK | os.X_OK):
            raise DestinationError(
                f"you have no permission to write to {shown(directory)}",
                "write somewhere else with -o",
                "out.read-only",
            )


def check_fresh(plan: Plan, relinked: Collection[tuple[int, int]] = ()) -> None:
    """Raise `StalePlanError` if a file changed after the plan was made.

    ``relinked`` are the (device, inode) of files that got another name since.
    """
    root = source_root(plan)
    for name, state in plan.fingerprint.items():
        try:
            descriptor = open_regular(root / name, root)
        except TieconvError as error:
            raise stale(name) from error
        try:
            if not state.is_still(file_state(descriptor), {*relinked, *tree.UNLINKED}):
                raise stale(name)
        finally:
            os.close(descriptor)


def stale(name: str) -> StalePlanError:
    """Return the error for a source file that changed."""
    return StalePlanError(f"{shown(name)} changed after the plan was made", "run the command again", "plan.stale")


def _check_space(plan: Plan, target: Target) -> None:
    """Check the space for all that must be stored anew; blocks that the file system can share need none."""
    final = destination(plan, target)
    shares = _can_share(plan, final.parent)
    needed = bytes_in_place_of_shared(plan) if shares else plan.bytes_written
    if not (shares or target.in_place or target.hardlink):
        needed += plan.bytes_linked
    free = free_bytes(final.parent) + (tree.allocated(staging_path(final)) if target.resume else 0)
    if needed > free:
        raise no_space(final.name, needed, free)


def _can_share(plan: Plan, directory: Path) -> bool:
    root = source_root(plan)
    for name in (file.name for file in plan.checkpoint.files):
        descriptor = open_regular(root / name, root)
        try:
            if os.fstat(descriptor).st_size:
                return can_clone(descriptor, directory)
        finally:
            os.close(descriptor)
    return False
