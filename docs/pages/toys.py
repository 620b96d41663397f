"""The tables of the demonstration over seeds, from the report that `tieconv demo` printed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pages import outputs
from tieconv.demo.toy_settings import REFERENCE

RECORD = Path(__file__).parents[1] / "measured" / "demo.json"
_BLOCK = re.compile(r"(<!-- (demo \w+) -->\n).*?(<!-- /demo -->)", re.DOTALL)
_PAIRS = ("E→U", "E→T", "U→T", "E→E'", "U→U'")


def page(path: Path) -> str:
    """Return the page at ``path`` with its commands run again and its tables of the demonstration written anew."""
    sections = {section["title"]: section for section in json.loads(RECORD.read_text("utf-8"))["sections"]}
    tables = {"demo measures": _measures(sections["Alignment"]), "demo gradients": _gradients(sections)}
    texts = {name: "\n".join(lines) for name, lines in tables.items()}
    return _BLOCK.sub(lambda match: f"{match[1]}{texts[match[2]]}\n{match[3]}", outputs.page(path))


def _measures(section: dict[str, Any]) -> Iterator[str]:
    measures = {measure["name"]: measure for measure in section["measures"]}
    yield from _heads(["measure", *_PAIRS])
    for name in dict.fromkeys(each.rsplit(" ", 1)[0] for each in measures):
        row = [measures[f"{name} {pair}"] for pair in _PAIRS]
        halves = [section["detail"]["half_width"][measure["name"]] for measure in row]
        cells = [f"{measure['value']:.3f} ± {half:.3f}" for measure, half in zip(row, halves, strict=True)]
        yield _row([f"`{name}`", *cells])
        yield _row(["chance", *(f"{round(measure['floor'], 3) + 0.0:.3f}" for measure in row)])
        if name in REFERENCE:
            yield _row(["reference", *(f"{value:.3f}" for value in REFERENCE[name])])


def _gradients(sections: dict[str, Any]) -> Iterator[str]:
    effects = {title.split()[1]: section for title, section in sections.items() if title.startswith("Gradients ")}
    changes = {ratio: section["detail"]["changes"] for ratio, section in effects.items()}
    yield from _heads(["measure", "1:1", *(cell for ratio in changes for cell in (ratio, "change"))])
    first = next(iter(changes.values()))
    for name in first:
        cells = [_interval(first[name]["unscaled"])]
        for ratio in changes:
            cells += [f"{changes[ratio][name]['scaled']['mean']:.3f}", _interval(changes[ratio][name]["difference"])]
        yield _row([f"`{name}`", *cells])
    yield ""
    yield from (f"- {section['sentence'].replace(' ±', ' ± ')}" for section in effects.values())


def _interval(value: dict[str, float]) -> str:
    return f"{round(value['mean'], 3) + 0.0:.3f} ± {value['half_width']:.3f}"


def _heads(cells: list[str]) -> Iterator[str]:
    yield _row(cells)
    yield "|" + "---|" * len(cells)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
