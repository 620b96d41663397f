"""Work on the models of a fleet that are new or changed, and add the results to a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from tieconv.checkpoint.results.checked import CheckedModel
from tieconv.checkpoint.results.fleet import FleetProgress
from tieconv.checkpoint.value_type import record
from tieconv.errors import TieconvError
from tieconv.gate.examine import Inspect, examine
from tieconv.gate.fleet.listed_content import ListedContent, listed_content
from tieconv.gate.fleet.runs import Failing, RunPart
from tieconv.gate.work.jobs import unordered
from tieconv.gate.work.workers import Workers
from tieconv.sources import is_object

_UNLISTED = ListedContent("", 0)


@record
class Task:
    """A model to work on: the fingerprint of its ``known`` result, and a ``graph`` that belongs to it, or empty."""

    source: str
    known: str = ""
    graph: str = ""


R = TypeVar("R", bound=Failing)
Work = Callable[[Task, ListedContent], R]
"""``work(task, content)`` returns the result for a model. It must survive pickling."""


def part_of(sources: Sequence[str], part: tuple[int, int]) -> tuple[str, ...]:
    """Return the models of part ``(I, N)``: each N-th, so that large neighbours spread over the parts."""
    return tuple(sources[part[0] - 1 :: part[1]])


def collect(
    work: Work[R],
    lost: Callable[[str], R],
    sources: Sequence[str],
    run: RunPart[R],
    workers: Workers,
    tick: Callable[[FleetProgress], object],
    graphs: Mapping[str, str] | None = None,
) -> FleetProgress:
    """Work on each model whose listing is not the one of ``run``, and add it. Calls ``tick`` for each model.

    ``graphs`` maps models to a path that belongs to them. With another path, a model is worked on again.
    """
    run.start(sources)
    paths = graphs or {}
    tasks = [Task(source, run.known.get(source, ""), paths.get(source, "")) for source in sources]
    progress = FleetProgress(len(tasks))
    workers = replace(workers, clean=any(map(is_object, sources)))

    def missing(task: Task) -> tuple[R | None, ListedContent]:
        return lost(task.source), _UNLISTED

    for _, (result, content) in unordered(partial(_attempt, work), tasks, workers, missing):
        if result is not None:
            run.add(result, content, time.time())
        progress = FleetProgress(
            progress.total,
            progress.finished + 1,
            progress.unchanged + (result is None),
            progress.unread + (result is not None and result.failure is not None),
            progress.bytes + (content.bytes if result is not None else 0),
        )
        tick(progress)
    return progress


def _attempt(work: Work[R], task: Task) -> tuple[R | None, ListedContent]:
    """Return the result for a model, or None if its listing is known. A change after the listing counts."""
    try:
        content = listed_content(task.source)
    except (TieconvError, OSError):
        content = _UNLISTED  # the work reports why
    if task.graph and content.fingerprint:
        content = ListedContent(f"{content.fingerprint} {task.graph}", content.bytes)
    if task.known and task.known == content.fingerprint:
        return None, content
    return work(task, content), content


def checked(inspect: Inspect, task: Task, content: ListedContent) -> CheckedModel:
    """Do the work of `fleet check`: return the findings of a model, or why it could not be read."""
    return examine(inspect, task.source)
