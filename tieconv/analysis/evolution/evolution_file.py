"""Read and extend the file of a run over revisions. Each measured revision is one line, so a later run can resume."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.results.analysis import Measure
from tieconv.checkpoint.results.evolution import RevisionFigures
from tieconv.sources.line_file import LineFile
from tieconv.version import VERSION

SCHEMA = "tieconv.evolution-run/1"

_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class EvolutionFile:
    """The revisions that an earlier run measured, to which this run adds its own; nothing without a ``path``."""

    def __init__(self, path: str | None) -> None:
        self._file = LineFile(path, SCHEMA) if path else None
        self._known: dict[str, tuple[Mapping[str, Any], RevisionFigures]] = {}
        if self._file is not None:
            self._file.read(self._use)

    def _use(self, entry: Mapping[str, Any]) -> None:
        figures = _figures(entry["revision"])
        self._known[figures.source] = entry["key"], figures

    def known(self, source: str, asked: Mapping[str, object], identities: Sequence[str]) -> RevisionFigures | None:
        """Return what an earlier run measured of a revision, if options and identities are those of now.

        ``identities`` are of the revision and of those that it is compared with.
        """
        key, figures = self._known.get(source, (None, None))
        return replace(figures, reused=True) if figures and key == _key(asked, identities) else None

    def add(self, figures: RevisionFigures, asked: Mapping[str, object], identities: Sequence[str]) -> None:
        """Append a revision. Raises `DestinationError`."""
        if self._file is not None:
            self._file.append({"key": _key(asked, identities), "revision": figures.to_dict()})


def _key(asked: Mapping[str, object], identities: Sequence[str]) -> dict[str, object]:
    return {"tieconv": VERSION, "asked": dict(asked), "identities": list(identities)}


def _figures(document: Mapping[str, Any]) -> RevisionFigures:
    """Return the record of an entry of ``revisions``. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
    step = document["step"]
    return RevisionFigures(
        str(document["name"]),
        str(document["source"]),
        None if step is None else int(step),
        str(document["identity"]),
        {str(role): str(name) for role, name in document["tables"].items()},
        tuple(_measure(measure) for measure in document["measures"]),
        {
            str(measure["name"]): float(measure["standard_error"])
            for measure in document["measures"]
            if measure["standard_error"] is not None
        },
    )


def _measure(document: Mapping[str, Any]) -> Measure:
    value, floor, ceiling = (_number(document[key]) for key in ("value", "floor", "ceiling"))
    n = document["n"]
    return Measure(
        str(document["name"]),
        value,
        floor,
        ceiling,
        None if n is None else int(n),
        str(document["unit"]),
        str(document["says"]),
    )


def _number(value: object) -> float | None:
    if value is None:
        return None
    return _NUMBERS[value] if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # ValueError, TypeError
