"""What every writing command does once its plan is made: print it, or carry it out and say so."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from tieconv.checkpoint.value_type import record
from tieconv.cli.network import fetched_line
from tieconv.cli.progress import byte_progress
from tieconv.cli.screen import painter, say, timed, width
from tieconv.cli.streams import MAX_LINES, document, echo, shortened
from tieconv.text import shown, size

if TYPE_CHECKING:
    from tieconv.api import Outcome, PlannedWrite, Verify, WriteOptions


class PlanOptions(TypedDict):
    """Options that every planner of `tieconv.api` takes."""

    drop_other_formats: bool
    fetch: bool


@record
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
        planned.clear(arguments.output, in_place=arguments.in_place)
        _check_target(planned, arguments)
        if not as_json:
            say(_text(planned.outcome(), arguments))
        outcome = _execute(planned, arguments)
        if not as_json:
            say_notes(planned.plan.notes, outcome.plan.notes)
    else:
        outcome = planned.outcome()
        _check_target(planned, arguments)
        if not as_json:
            echo(_text(outcome, arguments))
    if as_json:
        document(str(outcome))
    if planned.fetched is not None:
        say(fetched_line(planned.fetched))
    say(_closing(outcome, arguments))
    if stands_inside:
        say("your shell is in the directory that was replaced: enter it again with `cd .`")


def say_notes(known: tuple[str, ...], notes: tuple[str, ...]) -> None:
    """Print the notes that the write itself gave, after those of the plan."""
    for note in notes:
        if note not in known:
            say(f"note: {note}")


_AFTER = 10
"""Lines that may follow a plan: what was fetched, what was written, where the shell stands."""


def _text(outcome: Outcome, arguments: WriteArguments) -> str:
    """Return the plan for the stream that it goes to: stderr before a write, stdout where it is the result."""
    from tieconv.reporters.text.plan_text import render

    stream = sys.stderr if arguments.writes else sys.stdout
    text = render(outcome, painter(stream), width(stream), hardlink=arguments.hardlink, in_place=arguments.in_place)
    return shortened(text, MAX_LINES - _AFTER)


def _stands_inside(planned: PlannedWrite, arguments: WriteArguments) -> bool:
    """Whether the working directory is, or lies in, a directory that the write exchanges."""
    if not planned.replaces_directory(arguments.output, in_place=arguments.in_place):
        return False
    target = Path(planned.plan.checkpoint.root if arguments.in_place else str(arguments.output)).resolve()
    return Path.cwd().is_relative_to(target)


def _check_target(planned: PlannedWrite, arguments: WriteArguments) -> None:
    """Raise what a write to this target would raise, before the plan is printed and for a dry run too."""
    if arguments.output is not None or arguments.in_place:
        planned.check(arguments.output, **arguments.options)


def _execute(planned: PlannedWrite, arguments: WriteArguments) -> Outcome:
    with timed("write and verify"), byte_progress(planned.plan.command) as progress:
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
