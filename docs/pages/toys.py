"""The table of the demonstration, from the report that `tieconv demo` printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import outputs
from tieconv.demo.toy_settings import REFERENCE

RECORD = Path(__file__).parents[1] / "measured" / "demo.json"
_BLOCK = re.compile(r"(<!-- demo measures -->\n).*?(<!-- /demo -->)", re.DOTALL)
_PAIRS = ("E→U", "E→T", "U→T", "E→E'", "U→U'")


def page(path: Path) -> str:
    """Return the page at ``path`` with its commands run again and its tables of the demonstration written anew."""
    sections = {section["title"]: section for section in json.loads(RECORD.read_text("utf-8"))["sections"]}
    table = "\n".join(_measures(sections["Alignment"]))
    return _BLOCK.sub(lambda match: f"{match[1]}{table}\n{match[2]}", outputs.page(path))


def _measures(section: dict[str, Any]) -> Iterator[str]:
    measures = {measure["name"]: measure for measure in section["measures"]}
    yield from _heads(["measure", *_PAIRS])
    for name in dict.fromkeys(each.rsplit(" ", 1)[0] for each in measures):
        row = [measures[f"{name} {pair}"] for pair in _PAIRS]
        yield _row([f"`{name}`", *(f"{measure['value']:.3f}" for measure in row)])
        yield _row(["chance", *(f"{round(measure['floor'], 3) + 0.0:.3f}" for measure in row)])
        if name in REFERENCE:
            yield _row(["reference", *(f"{value:.3f}" for value in REFERENCE[name])])


def _heads(cells: list[str]) -> Iterator[str]:
    yield _row(cells)
    yield "|" + "---|" * len(cells)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
