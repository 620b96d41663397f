"""Run the demonstration: a toy model, trained tied and untied, and its table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieconv.checkpoint.results.analysis import Analysis


def run_demo(out: str | Path, *, steps: int, seed: int, step_done: Callable[[], None]) -> Analysis:
    """Train the toys in the new directory ``out`` and return their analysis; call ``step_done`` after each step."""
    from tieconv.demo.toys import run

    return run(Path(out), steps=steps, seed=seed, step_done=step_done)


def demo_table(analysis: Analysis) -> str:
    """Return the demonstration's table in plain text."""
    from tieconv.demo.result_table import render

    return render(analysis)
