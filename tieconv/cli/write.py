"""Print a plan, or apply it: the last step of every writing command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click
from click.core import ParameterSource

from tieconv.checkpoint.value_type import record
from tieconv.cli.progress import byte_progress, fetched_line
from tieconv.cli.screen import painter, say, timed, width
from tieconv.cli.streams import MAX_LINES, document, echo, shortened
from tieconv.errors import WriteFailedError
from tieconv.text import shown, size

if TYPE_CHECKING:
    from tieconv.api import Outcome, PlannedWrite, Verify, WriteOptions


class PlanOptions(TypedDict):
    """Options that every planner of `tieconv.api` takes."""

    drop_other_formats: bool
    fetch: bool


@record
class WriteArguments:
    """The options of `write_options`."""

    output: str | None
    in_place: bool
    overwrite: bool
    dry_run: bool
    drop_other_formats: bool
    hardlink: bool
    verify: Verify
    resume: bool = False

    def __post_init__(self) -> None:
        if self.output is not None and self.in_place:
            raise click.UsageError("-o OUT and --in-place cannot be used together")
        if self.overwrite and self.output is None:
            raise click.UsageError("--overwrite needs -o OUT")
        if self.resume and self.output is None:
            raise click.UsageError("--resume needs -o OUT")

    @property
    def options(self) -> WriteOptions:
        options: WriteOptions = {"in_place": self.in_place, "overwrite": self.overwrite, "hardlink": self.hardlink}
        if self.resume:
            options["resume"] = True
        source = click.get_current_context().get_parameter_source("verify")
        return options if source is ParameterSource.DEFAULT else {**options, "verify": self.verify}

    @property
    def planning(self) -> PlanOptions:
        """Options for the planner. It fetches a remote model only if the plan is applied to a local output."""
        return {"drop_other_formats": self.drop_other_formats, "fetch": self.writes and not self.remote}

    @property
    def remote(self) -> bool:
        """Whether the output is in an object store."""
        return self.output is not None and self.output.startswith(("s3://", "gs://", "az://"))

    @property
    def writes(self) -> bool:
        return not self.dry_run and (self.output is not None or self.in_place)


def finish(planned: PlannedWrite, arguments: WriteArguments, *, as_json: bool) -> None:
    """Print the plan, and apply it if the user gave a target."""
    stands_inside = arguments.writes and _stands_inside(planned, arguments)
    if arguments.writes:
        planned.clear(arguments.output, in_place=arguments.in_place, resume=arguments.resume)
        _check_target(planned, arguments)
        if not as_json:
            say(_text(planned.outcome(arguments.output), arguments))
        outcome = _execute(planned, arguments)
        if not as_json:
            say_notes(planned.plan.notes, outcome.plan.notes)
    else:
        outcome = planned.outcome(arguments.output)
        _check_target(planned, arguments)
        if not as_json:
            echo(_text(outcome, arguments))
    if as_json:
        document(str(outcome))
    if planned.fetched is not None:
        say(fetched_line(planned.fetched))
    say(_closing(outcome, arguments))
    if stands_inside:
        say("the current directory was replaced; run `cd .` to enter the new one")


def say_notes(known: tuple[str, ...], notes: tuple[str, ...]) -> None:
    """Print the notes of the write that the plan did not have."""
    planned = frozenset(known)  # dedup has a note for each copy, of which a model may have 200,000
    for note in notes:
        if note not in planned:
            say(f"note: {note}")


_AGAIN = "run the same command again to go on"
_AFTER = 10
"""Lines that may follow a plan, such as what was fetched and written."""


def _text(outcome: Outcome, arguments: WriteArguments) -> str:
    """Return the plan as text: for stderr before a write, for stdout if the plan is the result."""
    from tieconv.reporters.text.plan_text import render

    stream = sys.stderr if arguments.writes else sys.stdout
    text = render(outcome, painter(stream), width(stream), hardlink=arguments.hardlink, in_place=arguments.in_place)
    return shortened(text, MAX_LINES - _AFTER)


def _stands_inside(planned: PlannedWrite, arguments: WriteArguments) -> bool:
    """Return whether the write replaces the working directory or one of its parents."""
    if not planned.replaces_directory(arguments.output, in_place=arguments.in_place):
        return False
    target = Path(planned.plan.checkpoint.root if arguments.in_place else str(arguments.output)).resolve()
    return Path.cwd().is_relative_to(target)


def _check_target(planned: PlannedWrite, arguments: WriteArguments) -> None:
    """Raise the errors of a write to this target, before the plan is printed and for a dry run too."""
    if arguments.output is not None or arguments.in_place:
        planned.check(arguments.output, **arguments.options)


def _execute(planned: PlannedWrite, arguments: WriteArguments) -> Outcome:
    with timed("write and verify"), byte_progress(planned.plan.command) as progress:
        try:
            return planned.execute(arguments.output, progress=progress, **arguments.options)
        except (KeyboardInterrupt, SystemExit):
            if arguments.resume:
                say(f"the finished weight files are kept: {_AGAIN}")
            raise
        except WriteFailedError as error:
            if not arguments.resume:
                raise
            raise WriteFailedError(error.message, f"{error.command_hint}; then {_AGAIN}", error.code) from error


def _closing(outcome: Outcome, arguments: WriteArguments) -> str:
    if not outcome.executed:
        return "nothing was written: give -o OUT or --in-place" if not arguments.dry_run else "nothing was written"
    written = size(outcome.plan.bytes_written)
    where = shown(outcome.output)
    if outcome.plan.changes_nothing and arguments.in_place:
        return f"{where} already is as requested: nothing was written"
    if outcome.remote is not None:
        return _uploaded(outcome, arguments)
    proof = "every byte compared" if arguments.verify == "full" else "structure verified"
    return f"wrote {where}: {written} new, {proof}"


def _uploaded(outcome: Outcome, arguments: WriteArguments) -> str:
    remote = outcome.remote
    assert remote is not None
    moved = f"{size(remote.bytes_uploaded)} uploaded, {size(remote.bytes_copied)} copied by the server"
    if remote.method == "upload":
        moved = f"{size(remote.bytes_uploaded)} uploaded"
    everything = "verify" in arguments.options and arguments.verify == "full"
    compared = "every byte compared" if everything or remote.method == "upload" else "uploaded bytes compared"
    return f"wrote {shown(outcome.output)}: {moved}, {compared}"
