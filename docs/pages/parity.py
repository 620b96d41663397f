"""Write `parity.md`: how parity measures a graph, and its verdicts on healthy and on damaged graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.onnx.real_faults import UNSEEN
from tieconv.onnx.parity.judge import CELL_LIMIT, MAX_LIMIT, RMS_LIMIT

MEASURED = Path(__file__).parent / "parity.json"
HEALTHY = Path(__file__).with_name("healthy.json")
PLANTED = Path(__file__).with_name("planted.json")
REAL = Path(__file__).with_name("real_faults.json")

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
    tables = (*_healthy(healthy), "", "Each planted fault must fail:", "", *_damaged(damaged), "")
    return "\n".join((text, *tables, *_optimised(_rows(HEALTHY)), *_planted(_rows(PLANTED)), *_real(_rows(REAL))))


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def _optimised(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the healthy graphs of other exporters, and those that went through an optimiser."""
    refused = sum(row["verdict"] != "passed" for row in rows)
    yield "### Optimised graphs, and other exporters"
    yield ""
    yield f"Of {len(rows)} healthy graphs in float32, {refused} were refused. An empty optimiser means: as exported."
    yield ""
    yield "| model | exporter | optimiser | verdict | RMS ratio | max ratio | worst case |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        names = " | ".join((row["model"], row["exporter"], row["optimiser"], row["verdict"]))
        yield f"| {names} | {row['rms_ratio']:.2f} | {row['max_ratio']:.2f} | {row['case_ratio']:.2f} |"
    yield ""


def _planted(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the list of planted faults: first those that passed, with the reason."""
    missed = [row for row in rows if row["verdict"] == "passed"]
    yield "### More planted faults"
    yield ""
    yield f"Of {len(rows)} more planted faults in float32, {len(rows) - len(missed)} failed parity. These passed:"
    yield ""
    yield "| fault | model | why parity cannot see it |"
    yield "|---|---|---|"
    for row in missed:
        yield f"| {row['fault']} | {row['model']} | {row['unseen']} |"
    yield ""
    yield "Each was measured with `--budget 1s`, so with the seven cases of every measurement. These failed:"
    yield ""
    yield "| fault | model | worst case | gates that failed | cause in the report |"
    yield "|---|---|---|---|---|"
    for row in rows:
        if row not in missed:
            gates = ", ".join(f"`{name}`" for name in row["failed"])
            yield f"| {row['fault']} | {row['model']} | {_figure(row['case_ratio'])} | {gates} | {row['cause']} |"
    yield ""


def _real(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the faults in the graph of a real model, with the cases that caught each."""
    faults = [row for row in rows if row["fault"]]
    failed = sum(row["verdict"] == "failed" for row in faults)
    yield "### Faults in a real model"
    yield ""
    yield f"`python -m tests.onnx.real_faults` plants {len(faults)} faults into the graph of SmolLM2-135M-Instruct,"
    yield f"and measures them with `--budget 1s`. Of these, {failed} failed. The healthy graph passed."
    yield ""
    yield "| fault | worst case | cases above the limit | gates of weights and ids, or those that failed |"
    yield "|---|---|---|---|"
    for row in faults:
        cases = "all" if len(row["cases"]) == len(CASES) else ", ".join(row["cases"])
        gates = ", ".join(f"`{name}`" for name in row["failed"] if name in STORED or not cases)
        passed = f" (passed: {UNSEEN[row['fault']]})" if row["verdict"] == "passed" else ""
        yield f"| {row['fault']}{passed} | {_figure(row['case_ratio'])} | {cases} | {gates} |"
    yield ""


CASES = ("long", "six rows", "one token", "six rows with a cache", "cached steps", "every token")
STORED = ("weights", "graph_weights", "token_lookup")


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
