"""Run each case of a writer in its environment, judge its file, and keep the figures."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracles.runner import SCRIPTS, Runner
from tests.writers.judge import ANNOUNCED, NOTHING, REFUSED, RIGHT, UNKNOWN, WRONG, Cell, judge
from tests.writers.table import PROGRAMS, WRITERS

ROOT = Path(__file__).parents[2]
FIGURES = ROOT / "docs" / "measured" / "writers"
COUNTED = (RIGHT, NOTHING, ANNOUNCED, UNKNOWN, REFUSED)
Judged = dict[str, list[Cell]]


def cells(name: str, python: str, only: str = "", every: int = 1) -> Iterator[tuple[str, list[Cell]]]:
    """Yield each case of writer ``name`` with its cells. ``only``: cases whose names contain it."""
    SCRIPTS[name] = str(PROGRAMS / f"{WRITERS[name].script}.py")
    runner = Runner(
        name, python, {"PYTHONPATH": str(ROOT), "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}, name
    )
    listed = runner.observe({"id": name, "do": "list"})
    if "cases" not in listed:
        raise SystemExit(f"{name}: {listed['why']}")
    chosen = [title for title in listed["cases"] if only in title][::every]
    for title in chosen:
        case = listed["cases"][title]
        with tempfile.TemporaryDirectory() as scratch:
            work = Path(scratch)

            def ask(do: str, path: Path, case_name: str = title) -> dict[str, Any]:
                return runner.observe({"id": case_name, "do": do, "case": case_name, "path": str(path)})

            folder = work / "model"
            made = ask("write", folder)
            if "facts" not in made:
                yield title, [Cell("write", WRONG, f"the program does not write it: {made['why']}")]
                continue
            model = folder / case["file"] if case["file"] else folder
            yield title, list(judge(model, made["facts"], case, lambda path: ask("load", path), work))
    runner.close()


def figures(versions: dict[str, str], judged: Judged) -> dict[str, Any]:
    """Return the figures of a writer as they are kept: counts, the wrong cells, refusals and notes by their text."""
    flat = [(title, cell) for title, made in judged.items() for cell in made]
    refused = Counter(f"{cell.question}: {cell.why}" for _, cell in flat if cell.outcome == "refused")
    notes = Counter(
        note for _, cell in flat if cell.question == "check" for note in cell.why.split() if cell.outcome == RIGHT
    )
    return {
        "versions": versions,
        "files": len(judged),
        **{outcome: sum(cell.outcome == outcome for _, cell in flat) for outcome in COUNTED},
        "wrong": [f"{title}: {cell.question}: {cell.why}" for title, cell in flat if cell.outcome == WRONG],
        "refusals": dict(refused.most_common()),
        "notes": dict(notes.most_common()),
    }


def new_faults(name: str, found: dict[str, Any]) -> list[str]:
    """Return the wrong cells that the kept figures of the writer do not list."""
    path = FIGURES / f"{name}.json"
    listed = json.loads(path.read_text(encoding="utf-8"))["wrong"] if path.exists() else []
    return [line for line in found["wrong"] if line not in listed]


def keep(name: str, found: dict[str, Any]) -> Path:
    """Write the figures of a writer; return their file."""
    FIGURES.mkdir(exist_ok=True)
    path = FIGURES / f"{name}.json"
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
