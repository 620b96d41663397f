"""Whether a loader finds the weights of a directory: by names that it knows, or by patterns."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tieconv.checkpoint.files.cautions import TWO_FORMATS
from tieconv.checkpoint.files.model_files import OPENED, WEIGHTS_KEY, Layout
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import questions as facts
from tieconv.loaders.files_opened import NAMEABLE, opened, stops_at_index
from tieconv.loaders.interface import Verdict, error, unknown
from tieconv.loaders.questions import listed
from tieconv.text import shown

_BOTH = (facts.SAFETENSORS, facts.TORCH)


def by_name(inspection: Inspection, *, configured: bool = True) -> Verdict | None:
    """The verdict where transformers does not get as far as the tensors; ``None`` where it does.

    ``configured`` says that this version takes the name that the config gives under `transformers_weights`.
    """
    # It opens one file of a directory and looks at no other.
    found = facts.unsettled(inspection, TWO_FORMATS, "layout.ambiguous") or _opened(inspection, configured)
    return found or facts.unclear_class(inspection) or facts.wrong_format(inspection, "transformers", _BOTH)


def by_pattern(
    inspection: Inspection, loader: str, formats: Iterable[str], *patterns: str, indexed: bool = False
) -> Verdict | None:
    """The same for a loader that takes every file that a pattern matches.

    ``indexed`` says that it leaves out what an index of the usual name does not name.
    """
    readable = tuple(formats)
    found = facts.unsettled(inspection)
    if found is None and _is_directory(inspection, readable):
        found = _matched(inspection, loader, patterns) or _doubled(inspection, loader, patterns, indexed)
    found = found or facts.unclear_class(inspection) or facts.wrong_format(inspection, loader, readable)
    return found or _prefixed_again(inspection, loader)


def _prefixed_again(inspection: Inspection, loader: str) -> Verdict | None:
    """The verdict for names with the base model's prefix once more than the table has it."""
    start, pair = f"{inspection.family.prefix}.", facts.pair(inspection)
    held = (pair.embedding, pair.head) if pair is not None else ()
    odd = next((name for name in held if name.startswith((start + start, "."))), None)
    return unknown(f"{shown(odd)} has the prefix twice, and what {loader} makes of that was not read") if odd else None


def _is_directory(inspection: Inspection, formats: tuple[str, ...]) -> bool:
    checkpoint = inspection.checkpoint
    return checkpoint.layout is not Layout.FILE and checkpoint.format in formats


def _opened(inspection: Inspection, configured: bool) -> Verdict | None:
    checkpoint = inspection.checkpoint
    if not _is_directory(inspection, _BOTH):
        return None
    named = checkpoint.config_values.get(WEIGHTS_KEY) if configured else None
    if named is not None and not str(named).endswith(NAMEABLE):
        return error(f"{WEIGHTS_KEY} in the config names {shown(named)}, neither a safetensors file nor an index")
    file = opened(checkpoint, configured=configured)
    if file is None:
        sought = shown(named) if named is not None else "model.safetensors or its index"
        held = shown(checkpoint.entry or checkpoint.files[0].name)
        return error(f"transformers looks for {sought}, and finds no weights: the directory holds {held}")
    if file != checkpoint.entry:
        return unknown(f"transformers opens {shown(file)}, which is not what was read here")
    if stops_at_index(checkpoint):
        return error(f"{shown(file)} has no metadata, and transformers stops there")
    return None


def _matched(inspection: Inspection, loader: str, patterns: tuple[str, ...]) -> Verdict | None:
    checkpoint = inspection.checkpoint
    names = [file.name for file in checkpoint.files]
    missed = [name for name in names if not _matches(name, patterns)]
    sought = f"{loader} looks for {listed(patterns)}"
    if missed == names:
        return error(f"{sought}, and finds no weights: the directory holds {shown(names[0])}")
    if missed:
        return unknown(f"{sought}, which leaves {shown(missed[0])} out")
    if checkpoint.entry is None and not checkpoint.complete:
        return unknown("a shard that the names of the others count is not there")
    return None


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _doubled(inspection: Inspection, loader: str, patterns: tuple[str, ...], indexed: bool) -> Verdict | None:
    """The verdict where a file that the model does not use, and the loader does, may hold another embedding or head."""
    checkpoint, pair = inspection.checkpoint, facts.pair(inspection)
    if pair is None or (indexed and checkpoint.index is not None and checkpoint.entry in OPENED):
        return None
    same = {(shadow.name, shadow.file) for shadow in inspection.shadows if shadow.differs is False}
    for file in checkpoint.orphans:
        held = {tensor.name for tensor in file.tensors} & {pair.embedding, pair.head}
        other = next((name for name in sorted(held) if (name, file.name) not in same), None)
        if other is not None and _matches(file.name, patterns):
            return unknown(f"{shown(file.name)} holds {shown(other)} too, and {loader} reads that file as well")
    return None
