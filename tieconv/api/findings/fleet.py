"""Check many models into a directory of results, and report on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tieconv.api.findings.gate import inspecting
from tieconv.sources.texts import write_text

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tieconv.checkpoint.results.fleet import FleetProgress, FleetReport
    from tieconv.gate.policy import Policy


def fleet_check(
    models: Sequence[str],
    runs: str,
    *,
    depth: str | None = None,
    consumers: str | None = None,
    part: tuple[int, int] = (1, 1),
    jobs: int = 1,
    tick: Callable[[FleetProgress], object] = lambda _: None,
    executor: Executor | None = None,
) -> FleetProgress:
    """Check models, and add each to the directory ``runs`` as it finishes. A later call reads only changed models.

    ``part`` (I, N) checks each N-th model, from the I-th. An ``executor`` of `concurrent.futures` replaces the
    processes. Raises `DestinationError` if the directory cannot be written.
    """
    from tieconv.gate.assemble import make_policy
    from tieconv.gate.examine import lost_model
    from tieconv.gate.fleet.collect import checked, collect, part_of
    from tieconv.gate.fleet.run_directory import CHECKED
    from tieconv.gate.fleet.run_part import RunPart
    from tieconv.gate.settings import Settings
    from tieconv.gate.work.workers import Workers

    policy = make_policy(Settings(), depth=depth, consumers=consumers)
    run = RunPart(runs, "check", part, {"depth": str(policy.depth), "for": policy.consumers}, CHECKED)
    work = partial(checked, inspecting(policy, None, None))
    return collect(work, lost_model, part_of(models, part), run, Workers(jobs, executor), tick)


def fleet_report(
    runs: str, policy: Policy, *, since: str | None = None, output: str | None = None
) -> tuple[FleetReport, tuple[str, ...]]:
    """Return the report on the directory ``runs`` and the files that it wrote to ``output`` (default: ``runs``).

    Writes `report.html`, and with pyarrow `models.parquet` and `findings.parquet`. ``since`` is the directory of an
    earlier run. Raises `SettingsError` if a directory holds no run.
    """
    from tieconv.gate.fleet.report import fleet_report as report_on
    from tieconv.gate.fleet.run_directory import read_run
    from tieconv.reporters.html.fleet_page import render

    run = read_run(runs)
    report = report_on(run, policy, read_run(since) if since else None)
    directory = output or runs
    os.makedirs(directory, exist_ok=True)
    page = os.path.join(directory, "report.html")
    write_text(page, render(report))
    if not has_tables():
        return report, (page,)
    from tieconv.gate.fleet.parquet_tables import write_tables

    return report, (page, *write_tables(directory, report.checked, run.models))


def has_tables() -> bool:
    """Return whether pyarrow is installed, which writes the tables."""
    from importlib.util import find_spec

    return find_spec("pyarrow") is not None
