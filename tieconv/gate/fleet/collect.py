"""Read the models of a fleet that are new or changed, and add their findings to a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tieconv.checkpoint.results.checked import CheckedModel
from tieconv.checkpoint.results.fleet import FleetProgress
from tieconv.checkpoint.value_type import record
from tieconv.errors import TieconvError
from tieconv.gate.examine import Inspect, examine, lost_model
from tieconv.gate.fleet.listed_content import ListedContent, listed_content
from tieconv.gate.jobs import unordered
from tieconv.sources import is_object

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from tieconv.gate.fleet.run_directory import RunPart

_UNLISTED = ListedContent("", 0)


@record
class _Task:
    source: str
    known: str


_Collected = tuple[CheckedModel | None, ListedContent]
"""The findings, or None for an unchanged model."""


def part_of(sources: Sequence[str], part: tuple[int, int]) -> tuple[str, ...]:
    """Return the models of part ``(I, N)``: each N-th, so that large neighbours spread over the parts."""
    return tuple(sources[part[0] - 1 :: part[1]])


def collect(
    inspect: Inspect,
    sources: Sequence[str],
    run: RunPart,
    jobs: int,
    tick: Callable[[FleetProgress], object],
    executor: Executor | None = None,
) -> FleetProgress:
    """Read each model whose listing is not the one of ``run``, and add it. Calls ``tick`` for each model."""
    run.start(sources)
    tasks = [_Task(source, run.known.get(source, "")) for source in sources]
    progress = FleetProgress(len(tasks))
    for _, (model, content) in _results(inspect, tasks, jobs, executor):
        if model is not None:
            run.add(model, content, time.time())
        progress = FleetProgress(
            progress.total,
            progress.finished + 1,
            progress.unchanged + (model is None),
            progress.unread + (model is not None and model.failure is not None),
            progress.bytes + (content.bytes if model is not None else 0),
        )
        tick(progress)
    return progress


def _results(
    inspect: Inspect, tasks: Sequence[_Task], jobs: int, executor: Executor | None
) -> Iterator[tuple[int, _Collected]]:
    clean = any(is_object(task.source) for task in tasks)
    return unordered(partial(_read, inspect), tasks, jobs, _lost, clean=clean, executor=executor)


def _read(inspect: Inspect, task: _Task) -> _Collected:
    """Return the findings of a model, unless its listing is known. A change after the listing counts."""
    try:
        content = listed_content(task.source)
    except (TieconvError, OSError):
        content = _UNLISTED  # reading the model reports why
    if task.known and task.known == content.fingerprint:
        return None, content
    return examine(inspect, task.source), content


def _lost(task: _Task) -> _Collected:
    return lost_model(task.source), _UNLISTED
