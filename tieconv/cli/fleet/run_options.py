"""Options that every command over a fleet has, and its progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tieconv.cli.fleet.engine import engine_options
from tieconv.cli.options import MODEL_PATH
from tieconv.cli.progress import rate_progress
from tieconv.text import count, size

if TYPE_CHECKING:
    from tieconv.api import FleetProgress

F = TypeVar("F", bound=Callable[..., Any])


def _parsed_part(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    """Return I and N of ``I/N``."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise click.BadParameter("write I/N with I from 1 to N, such as 3/100", context, parameter)
    return int(match[1]), int(match[2])


def run_options(function: F) -> F:
    """Add ``SOURCE...``, ``-o``, ``-j``, ``--engine``, ``--address`` and ``--part``."""
    options = [
        click.argument("sources", nargs=-1, required=True, type=MODEL_PATH, metavar="SOURCE..."),
        click.option(
            "-o", "--output", "runs", required=True, type=click.Path(), metavar="RUNS", help="Directory of results."
        ),
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(1, 256),
            default=1,
            show_default=True,
            metavar="N",
            help="Number of processes.",
        ),
        engine_options,
        click.option(
            "--part",
            default="1/1",
            callback=_parsed_part,
            metavar="I/N",
            help="Take part I of N, each on another machine.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def filter_options(function: F) -> F:
    """Add ``-r``, ``--include``, ``--exclude`` and ``--newer-than``."""
    options = [
        click.option("-r", "--recursive", is_flag=True, help="Also take the models in subdirectories of each model."),
        click.option(
            "--include", multiple=True, metavar="GLOB", help="Take only models with a name or path like GLOB."
        ),
        click.option("--exclude", multiple=True, metavar="GLOB", help="Skip models with a name or path like GLOB."),
        click.option("--newer-than", metavar="AGE", help="Take only models that changed since AGE, such as 12h or 7d."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@contextmanager
def fleet_progress(verb: str) -> Iterator[Callable[[FleetProgress], None]]:
    """Yield ``tick``, which shows the progress with its rates."""
    began = time.monotonic()
    with rate_progress(verb) as bar:

        def tick(progress: FleetProgress) -> None:
            rates = f"{speed(progress, time.monotonic() - began)}, {count(progress.unread, 'failure')}"
            bar(rates, progress.finished, progress.total)

        yield tick


def speed(progress: FleetProgress, seconds: float) -> str:
    """Return the rates of ``seconds``: ``3 models/s, 20 MB/s``, or ``9.5 s a model, 20 MB/s``."""
    passed = max(seconds, 0.001)
    rate = progress.finished / passed
    models = f"{rate:,.0f} models/s" if rate >= 1 or not rate else f"{1 / rate:.1f} s a model"
    return f"{models}, {size(int(progress.bytes / passed))}/s"
