"""The table of false positives, from the record that `python -m tests.checks.measure --write` makes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

RECORD = Path(__file__).parents[1] / "measured" / "silence.json"
_BLOCK = re.compile(r"(<!-- silence -->\n).*?(<!-- /silence -->)", re.DOTALL)


def fill(text: str) -> str:
    """Return ``text`` with its silence block written anew."""
    table = "\n".join(_table(json.loads(RECORD.read_text(encoding="utf-8"))))
    return _BLOCK.sub(lambda match: f"{match[1]}{table}\n{match[2]}", text)


def _table(measured: dict[str, object]) -> list[str]:
    runs = measured["runs"]
    assert isinstance(runs, dict)
    lines = [
        f"Measured on {measured['date']} with transformers {measured['transformers']}: {measured['classes']} classes. "
        "Each was built tiny, saved by `save_pretrained`, and checked with every rule at `candidates` depth.",
        "",
        "| config | models | errors | warnings | notes | models with an error or a warning |",
        "|---|---|---|---|---|---|",
    ]
    for title, run in runs.items():
        levels: Counter[str] = Counter()
        for key, number in run["findings"].items():
            levels[key.split()[0]] += number
        counts = " | ".join(str(levels[level]) for level in ("error", "warning", "note"))
        lines.append(f"| {title} | {run['checked']} | {counts} | {', '.join(run['loud']) or 'none'} |")
    refused = sorted({name for run in runs.values() for name in run["refused"]})
    if refused:
        lines += ["", f"Not built tied: {', '.join(refused)}. transformers refuses the flag when it builds the class."]
    for title, run in runs.items():
        lines += [f"- {title} {name}: {'; '.join(messages)}" for name, messages in run["loud"].items()]
    notes = sorted({key.split()[1] for run in runs.values() for key in run["findings"] if key.startswith("note")})
    if notes:
        lines += ["", f"The notes are of {', '.join(notes)}. By default, a note never fails a gate."]
    return lines
