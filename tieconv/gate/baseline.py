"""Read and write baselines: findings that existed when the gate was introduced do not count, new ones do."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.checked import CheckedFinding
from tieconv.checkpoint.value_type import record
from tieconv.errors import MALFORMED, SettingsError
from tieconv.formats.strict_json import parse_json
from tieconv.text import shown

SCHEMA = "tieconv.baseline/1"
MAX_SIZE = 16 << 20
"""Largest baseline in bytes: more than 50,000 findings."""
_DEPTHS = tuple(Depth)


@record
class Entry:
    """One known finding. ``model`` is relative to the baseline file. Numbers in the message are not compared."""

    model: str
    rule: str
    file: str
    tensors: tuple[str, ...]


@record
class Baseline:
    """The entries of the file at ``path``, and the depth at which they were found."""

    path: str
    depth: Depth
    entries: tuple[Entry, ...]

    def relative(self, model: str) -> str:
        """Return how the file writes the model at the absolute path ``model``."""
        return relative(model, self.path)

    def of(self, source: str) -> Counter[Entry]:
        """Return the entries of one model. An entry that is listed twice covers two findings."""
        model = self.relative(source)
        return Counter(entry for entry in self.entries if entry.model == model)


def relative(model: str, path: str) -> str:
    """Return how the baseline file at ``path`` writes the model at the absolute path ``model``."""
    if "://" in model:
        return model
    return os.path.relpath(model, os.path.dirname(os.path.abspath(path))).replace(os.sep, "/")


def entry_of(model: str, finding: CheckedFinding) -> Entry:
    """Return the baseline entry of a finding."""
    return Entry(model, finding.finding.rule, finding.file, tuple(sorted(finding.finding.tensors)))


def covers(now: Depth, then: Depth) -> bool:
    """Return whether ``now`` reads at least as much as ``then``. If so, a finding that is missing is fixed."""
    return _DEPTHS.index(now) >= _DEPTHS.index(then)


def render(depth: Depth, entries: Iterable[Entry]) -> str:
    """Return the text of the file. Entries are sorted, so a text diff shows only what changed."""
    ordered = sorted(entries, key=lambda entry: (entry.model, entry.rule, entry.file, entry.tensors))
    document = {"schema": SCHEMA, "depth": str(depth), "entries": [asdict(entry) for entry in ordered]}
    return json.dumps(document, indent=2, ensure_ascii=True) + "\n"


def parse(text: str, path: str) -> Baseline:
    """Return the baseline in ``text``. Raises `SettingsError` if it is not a baseline."""
    try:
        document: Any = parse_json(text.encode(), MAX_SIZE)
        if document["schema"] != SCHEMA:
            raise ValueError(f"its schema is {document['schema']}")
        return Baseline(path, Depth(document["depth"]), tuple(map(_entry, document["entries"])))
    except MALFORMED as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise SettingsError(
            f"{shown(path)} is not a {SCHEMA} file: {shown(reason)}",
            "write one with --write-baseline FILE",
            "baseline.malformed",
        ) from error


def _entry(value: dict[str, object]) -> Entry:
    model, rule, file, tensors = (value[key] for key in ("model", "rule", "file", "tensors"))
    if not isinstance(tensors, list) or not all(isinstance(text, str) for text in (model, rule, file, *tensors)):
        raise ValueError("an entry has a value of the wrong type")
    return Entry(str(model), str(rule), str(file), tuple(tensors))
