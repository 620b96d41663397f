"""What every writing command does once its plan is made: print it, or carry it out and say so."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from tieconv.cli.network import fetched_line
from tieconv.cli.options import paint, width
from tieconv.cli.streams import document, echo, own, show
from tieconv.text import shown, size

if TYPE_CHECKING:
    from tieconv.checkpoint.plan import Outcome
    from tieconv.planned import PlannedWrite, Verify, WriteOptions


class PlanOptions(TypedDict):
    """Options that every planner of `tieconv.api` takes."""

    drop_other_formats: bool
    fetch: bool


@dataclass(frozen=True, slots=True)
class WriteArguments:
    """What the user said about writing."""

    output: str | None
    in_place: bool
    overwrite: bool
    dry_run: bool
    drop_other_formats: bool
    hardlink: bool
    verify: Verify

    def __post_init__(self) -> None:
        if self.output is not None and self.in_place:
            raise click.UsageError("give -o OUT or --in-place, not both")
        if self.overwrite and self.output is None:
            raise click.UsageError("--overwrite goes with -o OUT")

    @property
    def options(self) -> WriteOptions:
        return {
            "in_place": self.in_place,
            "overwrite": self.overwrite,
            "hardlink": self.hardlink,
            "verify": self.verify,
        }

    @property
    def planning(self) -> PlanOptions:
        """What a planner is to know: a model on the Hub is fetched where it is to be written."""
        return {"drop_other_formats": self.drop_other_formats, "fetch": self.writes}

    @property
    def writes(self) -> bool:
        return not self.dry_run and (self.output is not None or self.in_place)


def finish(planned: PlannedWrite, arguments: WriteArguments, *, as_json: bool) -> None:
    """Print the plan; write it where the user said where to."""
    stands_inside = arguments.writes and _stands_inside(planned, arguments)
    if arguments.writes:
        outcome = _execute(planned, arguments)
    else:
        outcome = planned.outcome()
        _check_dry_run(planned, arguments)
    if as_json:
        document(str(outcome))
    else:
        from tieconv.reporters.plan_text import render

        show(render(outcome, paint, width(), hardlink=arguments.hardlink))
    if planned.fetched is not None:
        echo(fetched_line(planned.fetched), err=True)
    echo(_closing(outcome, arguments), err=True)
    if stands_inside:
        echo("your shell stands in the directory that was replaced: enter it again with `cd .`", err=True)


def _stands_inside(planned: PlannedWrite, arguments: WriteArguments) -> bool:
    """Whether the working directory is, or lies in, a directory that the write exchanges."""
    if not planned.replaces_directory(arguments.output, in_place=arguments.in_place):
        return False
    target = Path(planned.plan.checkpoint.root if arguments.in_place else str(arguments.output)).resolve()
    return Path.cwd().is_relative_to(target)


def _check_dry_run(planned: PlannedWrite, arguments: WriteArguments) -> None:
    """A dry run meets the refusals that the run would meet."""
    if arguments.output is not None or arguments.in_place:
        planned.check(arguments.output, **arguments.options)


def _execute(planned: PlannedWrite, arguments: WriteArguments) -> Outcome:
    plan = planned.plan
    total = plan.bytes_written + plan.bytes_linked
    with click.progressbar(
        length=max(total, 1), label=plan.command, file=own(err=True), hidden=not sys.stderr.isatty()
    ) as bar:
        last = 0

        def progress(done: int, whole: int) -> None:
            nonlocal last
            bar.length = max(whole, 1)
            bar.update(done - last)
            last = done

        return planned.execute(arguments.output, progress=progress, **arguments.options)


def _closing(outcome: Outcome, arguments: WriteArguments) -> str:
    if not outcome.executed:
        return "nothing was written: give -o OUT or --in-place" if not arguments.dry_run else "nothing was written"
    written = size(outcome.plan.bytes_written)
    where = shown(outcome.output)
    if outcome.plan.changes_nothing and arguments.in_place:
        return f"{where} already is what was asked for: nothing was written"
    proof = "every byte compared" if arguments.verify == "full" else "structure verified"
    return f"wrote {where}: {written} new, {proof}"
