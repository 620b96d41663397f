"""Findings that were there when the gate was put up: they do not count, new ones do."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.checked import CheckedFinding
from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError, UnreadableError
from tieconv.formats.json.strict import loads
from tieconv.text import shown

SCHEMA = "tieconv.baseline/1"
MAX_SIZE = 16 << 20
"""Bytes of a baseline: more than 50,000 findings."""
_DEPTHS = tuple(Depth)


@record
class Entry:
    """One known finding. ``model`` is relative to the baseline file; figures of the message do not count."""

    model: str
    rule: str
    file: str
    tensors: tuple[str, ...]


@record
class Baseline:
    """The entries of the file at ``path``, and how much was read to find them."""

    path: str
    depth: Depth
    entries: tuple[Entry, ...]

    def relative(self, model: str) -> str:
        """How the file names the model at the absolute path ``model``."""
        return relative(model, self.path)

    def of(self, source: str) -> Counter[Entry]:
        """The entries about one model; one that stands twice covers two findings."""
        model = self.relative(source)
        return Counter(entry for entry in self.entries if entry.model == model)


def relative(model: str, path: str) -> str:
    """The model at the absolute path ``model`` as the baseline file at ``path`` names it."""
    if "://" in model:
        return model
    return os.path.relpath(model, os.path.dirname(os.path.abspath(path))).replace(os.sep, "/")


def entry_of(model: str, finding: CheckedFinding) -> Entry:
    """What a baseline holds of a finding."""
    return Entry(model, finding.finding.rule, finding.file, tuple(sorted(finding.finding.tensors)))


def covers(now: Depth, then: Depth) -> bool:
    """Whether as much is read now as then, so that what is not found is gone."""
    return _DEPTHS.index(now) >= _DEPTHS.index(then)


def render(depth: Depth, entries: Iterable[Entry]) -> str:
    """The file: sorted, so that two versions differ in what changed."""
    ordered = sorted(entries, key=lambda entry: (entry.model, entry.rule, entry.file, entry.tensors))
    document = {"schema": SCHEMA, "depth": str(depth), "entries": [asdict(entry) for entry in ordered]}
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def parse(text: str, path: str) -> Baseline:
    """The baseline in ``text``. Raises `SettingsError` where it is none."""
    try:
        document: Mapping[str, Any] = loads(text.encode(), path, limit=MAX_SIZE, lenient=True)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']}")
        return Baseline(path, Depth(document["depth"]), tuple(map(_entry, document["entries"])))
    except (ValueError, TypeError, KeyError, UnreadableError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SettingsError(
            f"{shown(path)} is no baseline of {SCHEMA}: {shown(reason)}",
            "write one with --write-baseline FILE",
            "baseline.malformed",
        ) from error


def _entry(value: dict[str, object]) -> Entry:
    model, rule, file, tensors = (value[key] for key in ("model", "rule", "file", "tensors"))
    if not isinstance(tensors, list) or not all(isinstance(text, str) for text in (model, rule, file, *tensors)):
        raise ValueError("an entry has a value of the wrong type")
    return Entry(str(model), str(rule), str(file), tuple(tensors))
