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
    """Return the text, the figures of healthy graphs and the lists of faults."""
    text = INTRO.read_text(encoding="utf-8")
    for name, limit in LIMITS.items():
        text = text.replace(name, f"{limit:g}")
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    healthy = [row for row in rows if not row["fault"]]
    damaged = [row for row in rows if row["fault"]]
    sections = (_healthy(healthy), _optimised(_rows(HEALTHY)), _damaged(damaged), _planted(_rows(PLANTED)))
    return "\n".join((text, *(line for section in sections for line in section), *_real(_rows(REAL))))


def _rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def _healthy(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the extremes of the healthy graphs, and each one that did not pass."""
    precisions = ", ".join(dict.fromkeys(row["dtype"] for row in rows))
    yield f"**{_passed(rows)} healthy graphs passed** ({precisions}): {_models(rows)}. {_extremes(rows)}"
    steps = [row["steps_rms_ratio"] for row in rows if row["steps_rms_ratio"] is not None]
    yield f"The RMS ratio of cached steps was {_range(steps)}."
    yield ""


def _optimised(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the same for healthy graphs of other exporters, and for those that went through an optimiser."""
    exporters = ", ".join(dict.fromkeys(row["exporter"] for row in rows))
    optimisers = ", ".join(dict.fromkeys(row["optimiser"] for row in rows if row["optimiser"]))
    yield f"**{_passed(rows)} further ones passed**, all in float32. They are of these exporters: {exporters}. Those of"
    yield f"transformers also went through {optimisers}. {_extremes(rows)}"
    yield ""
    yield f"Models: {_models(rows)}."
    yield ""


def _passed(rows: list[dict[str, Any]]) -> str:
    """Return how many of the graphs passed, with the models of those that did not."""
    failed = [row["model"] for row in rows if row["verdict"] != "passed"]
    return f"{len(rows) - len(failed)} of {len(rows)}" + (f" (not {', '.join(failed)})" if failed else "")


def _models(rows: list[dict[str, Any]]) -> str:
    return ", ".join(dict.fromkeys(row["model"] for row in rows))


def _extremes(rows: list[dict[str, Any]]) -> str:
    ratios = [_range([row[name] for row in rows]) for name in ("rms_ratio", "max_ratio", "case_ratio")]
    return f"Their RMS ratios were {ratios[0]}, max ratios {ratios[1]}, worst cases {ratios[2]}."


def _range(values: list[float]) -> str:
    low, high = _figure(min(values)), _figure(max(values))
    return low if low == high else f"{low} to {high}"


def _damaged(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the faults that some rule of thumb misses, with the models and precisions they were planted in."""
    yield "### Planted faults"
    yield ""
    yield "Every one of these failed. *Logits* means `rms_ratio`, `max_ratio` and `case_ratio`, mostly with"
    yield "`flip_margin`. *Steps* means `steps_rms_ratio` and `steps_max_ratio`."
    yield ""
    yield "| fault | planted in | RMS ratio | gates that failed |"
    yield "|---|---|---|---|"
    for fault, group in _by_fault(rows).items():
        planted: dict[str, list[str]] = {}
        for row in group:
            planted.setdefault(row["model"], []).append(row["dtype"])
        models = ", ".join(f"{model} ({', '.join(dtypes)})" for model, dtypes in planted.items())
        passed = " ".join(f"**{row['model']} {row['verdict']}**" for row in group if row["verdict"] != "failed")
        yield f"| {fault} | {models} {passed}| {_range([row['rms_ratio'] for row in group])} | {_gates(group)} |"
    yield ""


def _by_fault(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["fault"], []).append(row)
    return groups


LOGITS = ("case_ratio", "rms_ratio", "max_ratio", "flip_margin")
STEPS = ("steps_rms_ratio", "steps_max_ratio", "steps_flip_margin")


def _gates(rows: list[dict[str, Any]]) -> str:
    """Return the gates that failed in one of the rows at least; those of logits and of steps by one word."""
    names = dict.fromkeys(name for row in rows for name in row["failed"])
    words = [f"`{name}`" for name in names if name not in LOGITS + STEPS]
    words += ["logits"] * (set(LOGITS[:3]) <= names.keys()) + ["steps"] * (set(STEPS[:2]) <= names.keys())
    return ", ".join(words)


def _planted(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the list of planted faults: first those that passed, with the reason."""
    missed = [row for row in rows if row["verdict"] == "passed"]
    failed = [row for row in rows if row not in missed]
    named = sum(bool(row["cause"]) for row in failed)
    yield f"Of {len(rows)} more faults in float32, with `--budget 1s`, {len(failed)} failed. For {named} of them, the"
    yield "report names the wrong constant or epsilon. These passed:"
    yield ""
    yield from (f"- {row['fault']} ({row['model']}). Reason: {row['unseen']}." for row in missed)
    yield ""
    yield "These failed:"
    yield ""
    yield "| fault | worst case | gates that failed | cause in the report |"
    yield "|---|---|---|---|"
    for fault, group in _by_fault(failed).items():
        worst = ", ".join(f"{row['model']} {_figure(row['case_ratio'])}".rstrip() for row in group)
        yield f"| {fault} | {worst} | {_gates(group)} | {'named' if all(row['cause'] for row in group) else ''} |"
    yield ""


def _real(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the faults in the graph of a real model, by the cases that caught them."""
    faults = [row for row in rows if row["fault"]]
    failed = sum(row["verdict"] == "failed" for row in faults)
    yield "### Faults in a real model"
    yield ""
    yield f"`python -m tests.onnx.real_faults` plants {len(faults)} faults into the graph of SmolLM2-135M-Instruct, and"
    yield f"measures them with `--budget 1s`. Of these, {failed} failed. The healthy graph passed. The figure is the"
    yield "worst case's RMS ratio. Gates of weights and ids that failed too are named, and other gates if no case did."
    yield ""
    groups: dict[str, list[str]] = {}
    for row in faults:
        cases = "all" if len(row["cases"]) == len(CASES) else ", ".join(row["cases"])
        gates = [f"`{name}`" for name in row["failed"] if name in STORED or not cases]
        facts = ", ".join([_figure(row["case_ratio"]), *gates])
        why = f"passed: {UNSEEN[row['fault']]}" if row["verdict"] == "passed" else facts
        groups.setdefault(cases, []).append(f"{row['fault']} ({why})")
    yield "| cases above the limit | faults |"
    yield "|---|---|"
    for cases, names in groups.items():
        yield f"| {cases or 'none'} | {'. '.join(names)}. |"
    yield ""


CASES = ("long", "six rows", "one token", "six rows with a cache", "cached steps", "every token")
STORED = ("weights", "graph_weights", "token_lookup")


def _figure(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if value < 100 else f"{value:.1e}"
