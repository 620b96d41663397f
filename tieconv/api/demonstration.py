"""Run the demonstration: a toy model, trained tied and untied, and its table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieconv.checkpoint.results.analysis import Analysis


def run_demo(
    out: str | Path,
    *,
    steps: int,
    seed: int,
    seeds: int,
    gradient_ratios: Sequence[str],
    done: Callable[[int, int], None],
) -> Analysis:
    """Train the toys in the new directory ``out`` and return their analysis.

    ``gradient_ratios`` are written as ``5:1``. ``done`` is called after each step with the steps so far and of all.
    """
    from tieconv.demo.toy_settings import parse_ratio
    from tieconv.demo.toys import run

    ratios = [parse_ratio(text) for text in gradient_ratios]
    return run(Path(out), steps=steps, seed=seed, seeds=seeds, ratios=ratios, done=done)


def demo_table(analysis: Analysis) -> str:
    """Return the demonstration's table in plain text."""
    from tieconv.demo.toys import render_text as render

    return render(analysis)
