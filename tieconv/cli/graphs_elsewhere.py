"""Run `dedup` and `untie` on an ONNX graph, and refuse options that do not apply to graphs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from tieconv.cli.progress import byte_progress
from tieconv.cli.screen import paint, painter, say, timed, width
from tieconv.cli.streams import document, echo
from tieconv.cli.write import WriteArguments, say_notes
from tieconv.text import shown, size

if TYPE_CHECKING:
    from tieconv.api import GraphOutcome, PlannedGraphs


def finish(planned: PlannedGraphs, arguments: WriteArguments, *, as_json: bool) -> None:
    """Print the plan, and apply it if the user gave a target."""
    from tieconv.reporters.text.plan_text import render_proofs

    writing = {
        "in_place": arguments.in_place,
        "overwrite": arguments.overwrite,
        "hardlink": arguments.hardlink,
        "verify": arguments.verify,
    }
    if arguments.writes:
        planned.clear(arguments.output, in_place=arguments.in_place)
    if arguments.output is not None or arguments.in_place:
        planned.check(arguments.output, **writing)  # type: ignore[arg-type]
    if arguments.writes:
        if not as_json:
            say(_text(planned.outcome(), arguments))
        with timed("write and verify"), byte_progress(planned.command) as progress:
            outcome = planned.execute(arguments.output, progress=progress, **writing)  # type: ignore[arg-type]
        if not as_json:
            say_notes(planned.plan.notes, outcome.plan.notes)
            proofs = render_proofs(outcome, paint, width())
            if proofs:
                echo(proofs)
    else:
        outcome = planned.outcome()
        if not as_json:
            echo(_text(outcome, arguments))
    if as_json:
        document(str(outcome))
    say(_closing(outcome, arguments))


def _text(outcome: GraphOutcome, arguments: WriteArguments) -> str:
    """Return the plan as text: for stderr before a write, for stdout if the plan is the result."""
    from tieconv.reporters.text.plan_text import render_graphs as render

    stream = sys.stderr if arguments.writes else sys.stdout
    return render(outcome, painter(stream), width(stream))


def _closing(outcome: GraphOutcome, arguments: WriteArguments) -> str:
    if not outcome.executed:
        return "nothing was written: give -o OUT" if not arguments.dry_run else "nothing was written"
    proof = "every byte compared" if arguments.verify == "full" else "structure verified"
    proved = [session_proof.proved for session_proof in outcome.proofs]
    runs = [session_proof.runs for session_proof in outcome.proofs]
    whole = all(proved) and all(run is not None and run.equal and not run.not_run for run in runs)
    session = ", proved in a session" if whole else ", copies counted in a session, not all cases run"
    session = "" if not proved else session if all(proved) else ", not proved in a session"
    return f"wrote {shown(outcome.output)}: {size(outcome.plan.bytes_written)} new, {proof}{session}"


def refuse_options(**options: object) -> None:
    """Raise a usage error for options that do not apply to a graph."""
    for name, value in options.items():
        if value:
            raise click.UsageError(f"--{name.replace('_', '-')} cannot be used with an ONNX graph")
