"""Say whether a loader that reads every file with a matching name finds the weights of a directory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import OPENED, TWO_FORMATS, Layout
from tieconv.loaders.evidence.head_pair import head_pair, listed
from tieconv.loaders.evidence.unclear import unclear_class, unclear_files, wrong_format
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.text import shown


def by_pattern(
    inspection: Inspection,
    loader: str,
    formats: Sequence[str],
    *patterns: str,
    indexed: bool = False,
    prefers: bool = False,
    joined: bool = False,
    codes: bool = False,
) -> Refusal | None:
    """Return why the loader does not reach the tensors, or may read other files; ``None`` if it reads these.

    ``indexed`` says that it skips files that an index of the usual name does not list. ``prefers`` says that it reads
    only the first of ``formats``, with the first of ``patterns``, if a directory has several. ``joined`` says that the
    caller adds the tensors of the unused files (`with_unused_files`). ``codes`` says that it reads quantised tables.
    """
    settled = prefers and inspection.checkpoint.format == formats[0]
    patterns = patterns[:1] if settled else patterns
    refusal = unclear_files(inspection, *((TWO_FORMATS,) if settled else ()))
    if refusal is None and is_directory(inspection, formats):
        refusal = _matched(inspection, loader, patterns)
        refusal = refusal or _doubled(inspection, loader, patterns, indexed, joined=joined)
    refusal = refusal or unclear_class(inspection, codes=codes) or wrong_format(inspection, loader, formats)
    return refusal or _prefixed_again(inspection, loader)


def is_directory(inspection: Inspection, formats: Collection[str]) -> bool:
    """Return whether the model is a directory of weights in one of ``formats``."""
    checkpoint = inspection.checkpoint
    return checkpoint.layout is not Layout.FILE and checkpoint.format in formats


def _prefixed_again(inspection: Inspection, loader: str) -> Refusal | None:
    """Return the refusal for a name that has the prefix of the base model twice, or ``None``."""
    start, pair = f"{inspection.family.prefix}.", head_pair(inspection)
    names = (pair.embedding, pair.head) if pair is not None else ()
    doubled = next((name for name in names if name.startswith((start + start, "."))), None)
    if doubled is None:
        return None
    return unknown(f"{shown(doubled)} has the prefix twice, and tieconv has no measurement of {loader} for that")


def _matched(inspection: Inspection, loader: str, patterns: Sequence[str]) -> Refusal | None:
    checkpoint = inspection.checkpoint
    names = [file.name for file in checkpoint.files]
    missed = [name for name in names if not _matches(name, patterns)]
    sought = f"{loader} looks for {listed(patterns)}"
    if missed == names:
        return Refusal(Cause.FILES, f"{sought} and finds no weights: the directory contains {shown(names[0])}")
    if missed:
        return unknown(f"{sought} and does not read {shown(missed[0])}")
    if checkpoint.entry is None and not checkpoint.complete:
        return unknown("a shard is missing: the names of the other shards count it")
    return None


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def with_unused_files(inspection: Inspection, *patterns: str) -> Inspection:
    """Return ``inspection`` with the files that the model does not use and the loader reads, by their names."""
    orphans = tuple(file for file in inspection.checkpoint.orphans if _matches(file.name, patterns))
    if not orphans:
        return inspection
    checkpoint = replace(inspection.checkpoint, files=(*orphans, *inspection.checkpoint.files))
    return replace(inspection, checkpoint=checkpoint)


def _doubled(
    inspection: Inspection, loader: str, patterns: Sequence[str], indexed: bool, joined: bool
) -> Refusal | None:
    """Return the refusal if the loader also reads an unused file that may hold another embedding or head.

    ``joined`` says that a tensor that only the unused file holds is part of the model.
    """
    checkpoint, pair = inspection.checkpoint, head_pair(inspection)
    if pair is None or (indexed and checkpoint.index is not None and checkpoint.entry in OPENED):
        return None
    equal = {(shadow.name, shadow.file) for shadow in inspection.shadows if shadow.differs is False}
    for file in checkpoint.orphans:
        names = {tensor.name for tensor in file.tensors} & {pair.embedding, pair.head}
        names = names & checkpoint.tensors.keys() if joined else names
        doubled = next((name for name in sorted(names) if (name, file.name) not in equal), None)
        if doubled is not None and _matches(file.name, patterns):
            return unknown(f"{shown(file.name)} also contains {shown(doubled)}, and {loader} reads both files")
    return None
