"""Every refusal that needs no writing."""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from tieconv.checkpoint.model_files import TRAINING
from tieconv.checkpoint.plan import Plan
from tieconv.errors import DestinationError, RefusedError, StalePlanError, TieconvError
from tieconv.execute import tree
from tieconv.execute.contents.clone import can_clone
from tieconv.execute.contents.file_layout import bytes_in_place_of_shared
from tieconv.execute.system_errors import free_bytes, no_space, writing
from tieconv.execute.target import (
    Target,
    changed_names,
    destination,
    is_file,
    linked_names,
    replaces_directory,
    source_path,
    source_root,
)
from tieconv.formats import GRAPH_SUFFIX
from tieconv.formats.safetensors.header import SUFFIX
from tieconv.formats.torch.model import SUFFIXES
from tieconv.sources.local.files import file_state, open_regular
from tieconv.sources.local.links import in_hub_cache, in_hub_store
from tieconv.text import shown

_WEIGHTS = (SUFFIX, *SUFFIXES)
_ONLY_BESIDE = frozenset({"export"})
"""Commands without --in-place."""
_INDEXES = tuple(f"{suffix}.index.json" for suffix in _WEIGHTS)


def check_target(plan: Plan, target: Target) -> None:
    """Raise what would stop `execute` before its first byte.

    `RefusedError`, `DestinationError`, `StalePlanError`, or `WriteFailedError` where space is short.
    """
    check_names(plan)
    _check_special(plan)
    final = destination(plan, target)
    with writing(final.name, final.parent, 0):
        check_place(plan, target)
        check_fresh(plan)
        _check_space(plan, target)


def check_far_target(plan: Plan, target: Target) -> None:
    """As `check_target`, for a model that has yet to be fetched: without what is asked of its files and the space."""
    check_names(plan)
    _check_special(plan)
    final = destination(plan, target)
    with writing(final.name, final.parent, 0):
        check_place(plan, target)


def check_place(plan: Plan, target: Target) -> None:
    """Whether OUT may be written; asked again once the staging directory is owned."""
    final = destination(plan, target)
    if target.in_place:
        _check_in_place(plan, target, final)
    else:
        _check_apart(plan, target, final)
        _check_out(plan, target, final)
    _check_parent(plan, target, final)


def check_names(plan: Plan) -> None:
    """Output names are relative, stay inside OUT and differ on every file system."""
    names = (*changed_names(plan), *linked_names(plan))
    if is_file(plan) and (len(names) != 1 or len(plan.weights) + len(plan.links) != 1):
        raise RefusedError(
            f"{shown(plan.checkpoint.source)} is one file, but the change concerns {len(names)}",
            "give the model directory instead of the file",
            "out.one-file",
        )
    seen: dict[str, str] = {}
    for name in names:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or not parts.parts or str(parts) != name or "\0" in name:
            raise RefusedError(f"{shown(name)} is no file name inside a model", "", "out.unsafe-name")
        twin = seen.setdefault(unicodedata.normalize("NFC", name).casefold(), name)
        if twin is not name:
            raise RefusedError(
                f"{shown(twin)} and {shown(name)} would be one file where case does not count",
                "rename one of them",
                "out.case-collision",
            )


def _check_special(plan: Plan) -> None:
    if plan.checkpoint.special:
        first = next(iter(plan.checkpoint.special))
        raise RefusedError(
            f"{shown(first)} is no regular file of this model, so it cannot come along",
            "move it out of the model directory",
            "out.special",
        )


def _check_in_place(plan: Plan, target: Target, final: Path) -> None:
    root = source_root(plan)
    hint = "write a new model with -o OUT"
    if any(caution.code == TRAINING for caution in plan.checkpoint.cautions):
        raise RefusedError(
            f"{shown(plan.checkpoint.source)} is a training checkpoint, whose other contents would be lost in place",
            hint,
            "out.training",
        )
    if in_hub_cache(root) or in_hub_store(final):
        raise RefusedError(
            f"{shown(root)} is a snapshot of the hub cache, whose files other models share",
            hint,
            "in-place.hub-cache",
        )
    if is_file(plan) and plan.weights and final.suffix not in _suffixes(plan):
        raise RefusedError(f"{shown(final.name)} would hold another format than its name says", hint, "in-place.format")
    weights = [file.name for file in plan.checkpoint.files]
    for name in (*weights, *changed_names(plan), *plan.removed):
        if os.path.islink(root / name):
            raise RefusedError(
                f"{shown(name)} is a link, so --in-place would leave its target behind", hint, "in-place.link"
            )
    if replaces_directory(plan, target) and os.path.ismount(final):
        raise RefusedError(
            f"{shown(final)} is a mount point, which cannot be replaced in one step", hint, "in-place.mount"
        )


def _check_apart(plan: Plan, target: Target, final: Path) -> None:
    """OUT is not the source, not in it and not around it, whatever names lead there."""
    source = source_path(plan)
    if _same(final, source):
        hint = "write beside it" + ("" if plan.command in _ONLY_BESIDE else ", or use --in-place")
        raise DestinationError(f"{shown(target.path)} is the model itself", hint, "out.is-source")
    if not is_file(plan) and any(_same(parent, source) for parent in final.parents):
        raise DestinationError(
            f"{shown(target.path)} lies inside the model {shown(source)}",
            "write outside it",
            "out.inside-source",
        )
    if any(_same(parent, final) for parent in source.parents):
        raise DestinationError(
            f"{shown(target.path)} holds the model {shown(source)}", "write beside it", "out.around-source"
        )


def _same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return first == second


def _check_out(plan: Plan, target: Target, final: Path) -> None:
    if in_hub_store(final):
        raise DestinationError(
            f"{shown(target.path)} lies in the hub cache, which would give it out as the published model",
            "give another -o",
            "out.hub-cache",
        )
    if is_file(plan) and plan.weights and final.suffix not in _suffixes(plan):
        suffix = Path(plan.weights[0].name).suffix
        raise DestinationError(
            f"{shown(target.path)} does not end in {suffix}, as the file to write does",
            f"write {shown(final.name)}{suffix}",
            "out.suffix",
        )
    if not os.path.lexists(final):
        return
    if final.is_symlink():
        raise DestinationError(f"{shown(target.path)} is a link", "give the path that it leads to", "out.link")
    if not target.overwrite:
        raise DestinationError(f"{shown(target.path)} exists", "give another -o, or --overwrite", "out.exists")
    why_not = _not_a_file(final, _suffixes(plan)) if is_file(plan) else _not_a_model(final)
    if why_not:
        raise DestinationError(
            f"{shown(target.path)} {why_not}, so it is not overwritten", "give another -o", "out.not-a-model"
        )


def _suffixes(plan: Plan) -> tuple[str, ...]:
    """What the name of a lone file of the plan's format may end in."""
    written = plan.weights[0].format if plan.weights else plan.checkpoint.format
    if written == "onnx":
        return (GRAPH_SUFFIX,)
    return SUFFIXES if written == "torch" else (SUFFIX,)


def _not_a_file(final: Path, suffixes: tuple[str, ...]) -> str:
    if not stat.S_ISREG(os.lstat(final).st_mode):
        return "is no regular file"
    return "" if final.suffix in suffixes else f"does not end in {suffixes[0]}"


def _not_a_model(final: Path) -> str:
    if not final.is_dir():
        return "is no directory"
    if os.path.ismount(final):
        return "is a mount point"
    names = os.listdir(final)
    if ".git" in names:
        return "holds a git repository"
    model = any(name == "config.json" or name.endswith((*_WEIGHTS, *_INDEXES, GRAPH_SUFFIX)) for name in names)
    return "" if model or not names else "holds no model"


def _check_parent(plan: Plan, target: Target, final: Path) -> None:
    parent = final.parent
    if not parent.is_dir():
        raise DestinationError(f"{shown(parent)} is no directory", f"mkdir -p {shown(parent)}", "out.no-parent")
    swaps = replaces_directory(plan, target)
    within = target.in_place and not is_file(plan) and not swaps
    # To rename a directory takes the permission to write it: its entry for the parent changes.
    for directory in (final,) if within else (parent, final) if swaps else (parent,):
        if not os.access(directory, os.W_OK | os.X_OK):
            raise DestinationError(
                f"{shown(directory)} may not be written", "write somewhere else with -o", "out.read-only"
            )


def check_fresh(plan: Plan, relinked: Collection[tuple[int, int]] = ()) -> None:
    """Raise `StalePlanError` where a file is no longer the one that the plan was made from.

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
    """The error for a source file that changed."""
    return StalePlanError(f"{shown(name)} changed after the plan was made", "run the command again", "plan.stale")


def _check_space(plan: Plan, target: Target) -> None:
    """Space for all that must be stored anew; blocks that the file system can share cost nothing."""
    final = destination(plan, target)
    shares = _can_share(plan, final.parent)
    needed = bytes_in_place_of_shared(plan) if shares else plan.bytes_written
    if not (shares or target.in_place or target.hardlink):
        needed += plan.bytes_linked
    free = free_bytes(final.parent)
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
