"""The parity report as plain JSON values; a figure that is no finite number is null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tieconv.checkpoint.parity import Parity


def document(report: Parity) -> dict[str, object]:
    """Everything but the schema's id."""
    identity = report.identity
    return {
        "verdict": str(report.verdict),
        "reason": report.reason or None,
        "hint": report.hint or None,
        "graph": report.graph,
        "model": report.model,
        "provider": plain(report.provider),
        "structure": plain(report.structure),
        "weights": None if identity is None else {"proved": identity.proved, **plain(identity)},
        "gates": plain(report.gates),
        "cases": plain(report.cases),
        "metrics": plain(report.metrics),
        "histograms": plain(report.histograms),
    }


def _top1(figures: Any) -> float:
    return float(figures.top1)


def plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as arrays, infinities and NaN as null."""
    if is_dataclass(value):
        made: dict[str, Any] = {entry.name: plain(getattr(value, entry.name)) for entry in fields(value)}
        return made | {"top1": _top1(value)} if "flips" in made else made
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
