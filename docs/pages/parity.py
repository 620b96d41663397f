"""Write `parity.md`: how parity measures a graph, and its verdicts on healthy and on damaged graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tieconv.onnx.parity.gate_limits import CELL_LIMIT, MAX_LIMIT, RMS_LIMIT

MEASURED = Path(__file__).parent / "parity.json"

INTRO = Path(__file__).with_name("parity_text.md")
LIMITS = {"{RMS_LIMIT}": RMS_LIMIT, "{MAX_LIMIT}": MAX_LIMIT, "{CELL_LIMIT}": CELL_LIMIT}


def page() -> str:
    """Return the text, the table of healthy graphs and the table of faults."""
    text = INTRO.read_text(encoding="utf-8")
    for name, limit in LIMITS.items():
        text = text.replace(name, f"{limit:g}")
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    healthy = [row for row in rows if not row["fault"]]
    damaged = [row for row in rows if row["fault"]]
    return "\n".join((text, *_healthy(healthy), "", "Each planted fault must fail:", "", *_damaged(damaged), ""))


def _healthy(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| model | precision | verdict | RMS ratio | max ratio | worst case | cached steps |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        figures = " | ".join(
            map(_figure, (row["rms_ratio"], row["max_ratio"], row["case_ratio"], row["steps_rms_ratio"]))
        )
        yield f"| {row['model']} | {row['dtype']} | {row['verdict']} | {figures} |"


def _damaged(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield "| fault | model | precision | verdict | RMS ratio | max ratio | gates that failed |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        figures = " | ".join(map(_figure, (row["rms_ratio"], row["max_ratio"])))
        gates = ", ".join(f"`{name}`" for name in row["failed"])
        yield f"| {row['fault']} | {row['model']} | {row['dtype']} | {row['verdict']} | {figures} | {gates} |"


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:.1e}"
