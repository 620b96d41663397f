"""Check that OUT may be written: it is not the model, and what is there may be overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.errors import DestinationError
from tieconv.execute.target import (
    Target,
    is_file,
    source_path,
)
from tieconv.formats import GRAPH_SUFFIX
from tieconv.formats.gguf.reader import SUFFIX as GGUF_SUFFIX
from tieconv.formats.safetensors.header import SUFFIX
from tieconv.formats.torch.model import SUFFIXES
from tieconv.sources.local.links import in_hub_store
from tieconv.text import shown

_WEIGHTS = (SUFFIX, *SUFFIXES, GGUF_SUFFIX)
_ONLY_BESIDE = frozenset({"export"})
"""Commands without --in-place."""
_INDEXES = tuple(f"{suffix}.index.json" for suffix in _WEIGHTS)


def check_apart(plan: Plan, target: Target, final: Path) -> None:
    """Check that OUT is not the source, not inside it and not around it, whatever links lead there."""
    source = source_path(plan)
    if _same(final, source):
        hint = "give another -o" + ("" if plan.command in _ONLY_BESIDE else ", or use --in-place")
        raise DestinationError(f"OUT is the model itself: {shown(target.path)}", hint, "out.is-source")
    if not is_file(plan) and any(_same(parent, source) for parent in final.parents):
        raise DestinationError(
            f"{shown(target.path)} is inside the model {shown(source)}",
            "give a path outside the model with -o",
            "out.inside-source",
        )
    if any(_same(parent, final) for parent in source.parents):
        raise DestinationError(
            f"{shown(target.path)} contains the model {shown(source)}", "give another -o", "out.around-source"
        )


def _same(first: Path, second: Path) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:
        return first == second


_REMOTE = ("hf:/", "s3:/", "gs:/", "az:/")
"""The first characters of a remote address after `Path` has joined its slashes."""


def check_out(plan: Plan, target: Target, final: Path) -> None:
    """Check that OUT is free, or holds a model that may be overwritten."""
    if str(target.path).startswith(_REMOTE):
        raise DestinationError(
            f"{shown(target.path)} is not a local path, and this command writes only local models",
            "write to a local directory, then copy or push it",
            "out.remote",
        )
    if in_hub_store(final):
        raise DestinationError(
            f"{shown(target.path)} is in the Hub cache, so other programs would take it for the published model",
            "give another -o",
            "out.hub-cache",
        )
    if is_file(plan) and plan.weights and final.suffix not in file_suffixes(plan):
        suffix = Path(plan.weights[0].name).suffix
        raise DestinationError(
            f"{shown(target.path)} does not end in {suffix}, the suffix of the file to write",
            f"name the output {shown(final.name)}{suffix}",
            "out.suffix",
        )
    if not os.path.lexists(final):
        return
    if final.is_symlink():
        raise DestinationError(
            f"{shown(target.path)} is a symlink", "give the path that the symlink points to", "out.link"
        )
    if not target.overwrite:
        raise DestinationError(f"{shown(target.path)} exists", "give another -o, or --overwrite", "out.exists")
    why_not = _not_a_file(final, file_suffixes(plan)) if is_file(plan) else _not_a_model(final)
    if why_not:
        raise DestinationError(
            f"{shown(target.path)} {why_not}, so tieconv does not overwrite it", "give another -o", "out.not-a-model"
        )


def file_suffixes(plan: Plan) -> tuple[str, ...]:
    """Return the suffixes that a lone file of the plan's format may have."""
    written = plan.weights[0].format if plan.weights else plan.checkpoint.format
    if written == "onnx":
        return (GRAPH_SUFFIX,)
    if written == "gguf":
        return (GGUF_SUFFIX,)
    return SUFFIXES if written == "torch" else (SUFFIX,)


def _not_a_file(final: Path, suffixes: tuple[str, ...]) -> str:
    if not stat.S_ISREG(os.lstat(final).st_mode):
        return "is not a regular file"
    return "" if final.suffix in suffixes else f"does not end in {suffixes[0]}"


def _not_a_model(final: Path) -> str:
    if not final.is_dir():
        return "is not a directory"
    if os.path.ismount(final):
        return "is a mount point"
    names = os.listdir(final)
    if ".git" in names:
        return "contains a Git repository"
    model = any(name == "config.json" or name.endswith((*_WEIGHTS, *_INDEXES, GRAPH_SUFFIX)) for name in names)
    return "" if model or not names else "does not contain a model"
