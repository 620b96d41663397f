"""The record of a matrix run, docs/measured/matrix.json, and the end of the run that prints its counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[2] / "docs" / "measured" / "matrix.json"
Rows = dict[str, dict[str, dict[str, str]]]
"""Class -> layout -> verb -> verdict."""


def kind(verdict: str) -> str:
    """What is counted: ``exact``, ``refused``, ``not reached``, ``not judged`` or ``wrong``."""
    return verdict.split(":")[0].split(",")[0]


def counts(rows: Rows) -> dict[str, dict[str, Counter[str]]]:
    """Verb -> layout -> how many classes have each kind of verdict."""
    found: dict[str, dict[str, Counter[str]]] = {}
    for layouts in rows.values():
        for layout, verdicts in layouts.items():
            for verb, verdict in verdicts.items():
                found.setdefault(verb, {}).setdefault(layout, Counter())[kind(verdict)] += 1
    return found


def flat(rows: Rows) -> Iterator[tuple[str, str, str, str]]:
    """(class, layout, verb, verdict), in the order of the rows."""
    for name, layouts in rows.items():
        for layout, verdicts in layouts.items():
            for verb, verdict in verdicts.items():
                yield name, layout, verb, verdict


def merge(rows: Rows, total: int) -> Rows | None:
    """All rows to record: those of a whole run alone, else in place of the recorded ones; ``None`` beside others.

    A row keeps its place in a record of the same versions only.
    """
    if len(rows) == total:
        return rows
    first = next(iter(rows.values()))
    header, recorded = read() if PATH.exists() else ({}, {})
    same = header.get("versions") == _versions() and header["layouts"] == list(first)
    if not same or header["verbs"] != list(next(iter(first.values()))):
        return None
    return recorded | rows


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("transformers", "torch", "safetensors")}


def render(rows: Rows) -> str:
    """The record: verdicts by number, a line a class, one list a layout; one list alone where all layouts agree."""
    from fixtures import zoo

    first = next(iter(rows.values()))
    verdicts = [verdict for verdict, _ in Counter(verdict for *_, verdict in flat(rows)).most_common()]
    numbers = {verdict: number for number, verdict in enumerate(verdicts)}
    header = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "versions": _versions(),
        "layouts": list(first),
        "verbs": list(next(iter(first.values()))),
        "unbuildable": zoo.UNBUILDABLE,
        "without_tokens": sorted(zoo.WITHOUT_TOKENS),
        "verdicts": verdicts,
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in header.items()]
    classes = ",\n".join(f"{json.dumps(name)}: {_row(rows[name], numbers)}" for name in sorted(rows))
    return "{\n" + ",\n".join(lines) + ',\n"classes": {\n' + classes + "\n}\n}\n"


def _row(layouts: Mapping[str, Mapping[str, str]], numbers: Mapping[str, int]) -> str:
    lists = [[numbers[verdict] for verdict in verdicts.values()] for verdicts in layouts.values()]
    return json.dumps(lists[:1] if all(one == lists[0] for one in lists) else lists, separators=(",", ":"))


def read(path: Path = PATH) -> tuple[dict[str, Any], Rows]:
    """The header of a record, and its rows."""
    record = json.loads(path.read_text(encoding="utf-8"))
    rows: Rows = {}
    for name, lists in record.pop("classes").items():
        full = lists * len(record["layouts"]) if len(lists) == 1 else lists
        rows[name] = {
            layout: {verb: record["verdicts"][number] for verb, number in zip(record["verbs"], numbers, strict=True)}
            for layout, numbers in zip(record["layouts"], full, strict=True)
        }
    return record, rows


PROPERTY = "matrix"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the counts of this run and record its rows."""
    rows, total = _collected(terminalreporter)
    if not rows:
        return
    terminalreporter.section("matrix")
    for line in table(rows):
        terminalreporter.write_line(line)
    merged = merge(rows, total)
    if merged is None:
        terminalreporter.write_line(f"not recorded: {PATH} is of other versions, layouts or verbs; judge every class")
        return
    PATH.parent.mkdir(parents=True, exist_ok=True)
    PATH.write_text(render(merged), encoding="utf-8")
    terminalreporter.write_line(f"{len(rows)} classes: written to {PATH}")


def _collected(reporter: Any) -> tuple[Rows, int]:
    rows: Rows = {}
    total = 0
    for outcome in ("passed", "failed"):
        for report in reporter.stats.get(outcome, ()):
            for key, value in getattr(report, "user_properties", ()):
                if key == PROPERTY and report.when == "call":
                    rows[value["class"]], total = value["layouts"], value["total"]
    return rows, total


def table(rows: Rows) -> Iterator[str]:
    """The counts, and a line for each verdict that is wrong."""
    for verb, layouts in counts(rows).items():
        cells = (
            f"{layout}: {', '.join(f'{n} {word}' for word, n in sorted(c.items()))}" for layout, c in layouts.items()
        )
        yield f"{verb:28} {' | '.join(cells)}"
    for name, layout, verb, verdict in flat(rows):
        if kind(verdict) == "wrong":
            yield f"{name} {layout} {verb}: {verdict}"
