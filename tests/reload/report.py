"""The end of a matrix run: its counts, and the record of what it judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.reload.record import PATH, Rows, counts, flat, kind, merge, render

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
