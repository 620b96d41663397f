"""Check many models into a directory of results, and report on it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.check import inspecting
from tieconv.checkpoint.results.checked import Failure
from tieconv.checkpoint.results.fleet import CommandResult, CommandRun, FleetProgress, FleetReport
from tieconv.sources.user_files import own_directory, write_text
from tieconv.text import shown

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tieconv.gate.fleet_runs import Task
    from tieconv.gate.model_sources import ListedContent
    from tieconv.gate.policy import Policy


RunCommand = Callable[[Sequence[str]], tuple[int, str, tuple[str, str] | None]]
"""``run(arguments)`` returns the exit code, the JSON document, and the message and hint if there is no answer."""
WRITING = ("convert", "export")
"""The commands of a fleet that write a directory."""


def fleet_check(
    models: Sequence[str],
    runs: str,
    *,
    depth: str | None = None,
    consumers: str | None = None,
    part: tuple[int, int],
    jobs: int,
    tick: Callable[[FleetProgress], object] = lambda _: None,
    executor: Executor | None = None,
) -> FleetProgress:
    """Check models, and add each to the directory ``runs`` as it finishes. A later call reads only changed models.

    ``part`` (I, N) checks each N-th model, from the I-th. An ``executor`` of `concurrent.futures` replaces the
    processes. Raises `DestinationError` if the directory cannot be written.
    """
    from tieconv.gate.examine import lost_model
    from tieconv.gate.fleet_runs import CHECKED, RunPart, checked, collect, part_of
    from tieconv.gate.policy import make_policy
    from tieconv.gate.settings import Settings
    from tieconv.gate.workers import Workers

    policy = make_policy(Settings(), depth=depth, consumers=consumers)
    run = RunPart(runs, "check", part, {"depth": str(policy.depth), "for": policy.consumers}, CHECKED)
    work = partial(checked, inspecting(policy, None, None))
    return collect(work, lost_model, part_of(models, part), run, Workers(jobs, executor), tick)


def fleet_run(
    verb: str,
    options: Sequence[str],
    run: RunCommand,
    models: Sequence[str],
    runs: str,
    *,
    part: tuple[int, int],
    jobs: int,
    tick: Callable[[FleetProgress], object],
    executor: Executor | None,
) -> CommandRun:
    """Run a command on each model, and add its result to the directory ``runs``. Skips unchanged models with an answer.

    ``run`` is called in other processes, one model at a time, with ``verb``, ``options`` and the model. What it writes
    is below ``runs``. Raises `DestinationError` if that cannot be written.
    """
    from tieconv.gate.fleet_runs import RESULTS, RunPart, collect, exported_graphs, lost_result, part_of
    from tieconv.gate.workers import Workers

    graphs = exported_graphs(runs) if verb == "parity" else None
    latest: dict[str, CommandResult] = {}

    def keep(result: CommandResult) -> None:
        latest[result.source] = replace(result, document="")

    mine = part_of(models, part)
    asked = {"verb": verb, "options": list(options)}
    results = RunPart(runs, verb, part, asked, RESULTS, keep)
    if verb in WRITING:
        own_directory(os.path.join(runs, verb))
    work = partial(_answer, run, verb, tuple(options), os.path.join(runs, verb))
    progress = collect(work, lost_result, mine, results, Workers(jobs, executor, apart=True), tick, graphs)
    return CommandRun(progress, tuple(latest[source] for source in mine if latest[source].exit_code != 0))


def _answer(
    run: RunCommand, verb: str, options: tuple[str, ...], directory: str, task: Task, content: ListedContent
) -> CommandResult:
    from tieconv.gate.fleet_runs import content_of, output_of

    if verb == "parity" and not task.graph:
        failure = Failure(
            f"{shown(task.source)}: no graph of it was exported", "run `tieconv fleet export` on it first"
        )
        return CommandResult(task.source, 2, failure=failure)
    sources = [task.graph, task.source] if task.graph else [task.source]
    output = output_of(directory, task.source, content.fingerprint, options) if verb in WRITING else None
    if output:
        own_directory(directory)  # a worker starts late, and RUNS may hold a symlink of this name by then
    where = ["-o", output, "--overwrite"] if output else []
    began = time.monotonic()
    code, document, failed = run([verb, *options, *where, "--", *sources])
    seconds = time.monotonic() - began
    written = output if output and code == 0 and os.path.isdir(output) else None  # it may be of an earlier run
    why_not = Failure(*failed) if failed else None
    return CommandResult(task.source, code, seconds, document, written, why_not, content_of(written) if written else "")


def fleet_report(
    runs: str,
    policy: Policy | Callable[[Sequence[str]], Policy],
    *,
    since: str | None = None,
    output: str | None = None,
) -> tuple[FleetReport, tuple[str, ...]]:
    """Return the report on the directory ``runs`` and the files that it wrote to ``output`` (default: ``runs``).

    Writes `report.html`, and with pyarrow `models.parquet` and `findings.parquet`. ``since`` is the directory of an
    earlier run. ``policy`` may be a function of the models' sources. Raises `SettingsError` if a directory holds no
    run.
    """
    from tieconv.gate.fleet_report import fleet_report as report_on
    from tieconv.gate.fleet_runs import read_run
    from tieconv.reporters.html.fleet_page import render

    run = read_run(runs)
    chosen = policy(tuple(run.models)) if callable(policy) else policy
    report = report_on(run, chosen, read_run(since) if since else None)
    directory = output or runs
    os.makedirs(directory, exist_ok=True)
    page = os.path.join(directory, "report.html")
    write_text(page, render(report))
    if not has_tables():
        return report, (page,)
    from tieconv.gate.fleet_report import write_tables

    return report, (page, *write_tables(directory, report.checked, run.models))


def has_tables() -> bool:
    """Return whether pyarrow is installed, which writes the tables."""
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None
