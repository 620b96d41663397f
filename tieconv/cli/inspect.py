"""`tieconv inspect`, `diff` and `push`: look at a model, compare two, and open a pull request with the difference."""

from __future__ import annotations

import sys
from typing import Any

import click

from tieconv.api.evidence import diff, inspect
from tieconv.cli import options as shared
from tieconv.cli.screen import document, echo, fetched_line, headers_bar, paint, say, show, width
from tieconv.errors import RefusedError
from tieconv.text import shown, size


@click.command("inspect")
@shared.model_argument
@click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    default="candidates",
    show_default=True,
    help="How much to read. header: headers only. candidates: also the tied tensors and tensors of their shape. "
    "full: also every tensor that can be a duplicate.",
)
@shared.name_options
@click.option("--consumers", "every", is_flag=True, help="Also predict what each known loader does with MODEL.")
@shared.loader_option
@click.option(
    "--ties-only", is_flag=True, help="Skip shards without a tied name. Saves requests for large models on the Hub."
)
@shared.base_option
@shared.json_option
@shared.common_options
def inspect_command(model: str, every: bool, consumers: str | None, as_json: bool, **options: Any) -> None:
    """Show what MODEL stores, what is tied, and what to run next.

    Exits with 0, and with 2 when MODEL cannot be read. Use `tieconv check` as a gate.
    """
    consumers = consumers if consumers is not None else "all" if every else None
    if options["ties_only"] and consumers:
        problem = "--ties-only cannot be used with --consumers or --for, because a loader reads every shard"
        raise click.UsageError(problem)
    if options["ties_only"] and options["base"] is not None:
        raise click.UsageError("--base cannot be used with --ties-only")
    with headers_bar(model) as tick:
        inspection = inspect(model, consumers=consumers, tick=tick, **options)
    if as_json:
        document(str(inspection))
    else:
        from tieconv.reporters.text.inspect_text import render

        show(render(inspection, paint, width()))
    if inspection.fetched is not None:
        say(fetched_line(inspection.fetched))


@click.command("diff")
@click.argument("a", type=shared.MODEL_PATH)
@click.argument("b", type=shared.MODEL_PATH)
@shared.name_options
@shared.json_option
@shared.common_options
def diff_command(a: str, b: str, embed: str | None, head: str | None, as_json: bool) -> None:
    """Compare the models A and B tensor by tensor. Different names, ties and shards of equal values do not count.

    Exits with 0 if both models compute the same. Then every loader gives every parameter the same bytes, and no
    config value differs that can change the outputs. Exits with 1 if they differ, and with 2 if a model cannot be read.

    ONNX graphs are refused: `tieconv parity` compares a graph with its checkpoint.
    """
    comparison = diff(a, b, embed=embed, head=head)
    if as_json:
        document(str(comparison))
    else:
        from tieconv.reporters.text.diff_text import render

        show(render(comparison, paint, width()))
    sys.exit(0 if comparison.same_function else 1)


@click.command("push", short_help="Open a pull request on the Hub with the files that differ.")
@click.argument("directory", type=shared.MODEL_PATH, metavar="DIR")
@click.argument("target", metavar="hf://org/name")
@click.option(
    "--create-pr/--no-pr",
    "pull_request",
    default=True,
    show_default=True,
    help="--no-pr: commit to the branch without a pull request.",
)
@click.option("-m", "--message", metavar="TEXT", help="Title of the pull request or commit.")
@click.option("--include", multiple=True, metavar="NAME", help="Also push this dot-file, key or cache.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the plan and push nothing.")
@shared.json_option
@shared.common_options
def push_command(directory: str, target: str, yes: bool, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Open a pull request with the files of DIR that differ from the repository's files.

    Compares files by their hashes. Deletes weight and index files that the repository's model uses and DIR does not
    have. Skips dot-files such as `.env`, keys, tokens and caches, and lists them. Prints the plan and asks for
    confirmation. The plan becomes the description of the pull request.
    """
    from tieconv.api import hub  # `inspect` and `diff` do not need it

    push = hub.plan_push(directory, target, **options)
    goes = bool(push.changes) and not dry_run
    if not (as_json and (yes or not goes)):
        from tieconv.reporters.text.plan_text import render_push as render

        show(render(push, paint), err=as_json)
    if goes:
        _ask(yes)
        push = hub.push(push)
        say(f"pushed {size(push.bytes_uploaded)}: {shown(push.url)}")
    else:
        say("nothing was pushed" if push.changes else "no file differs, so nothing was pushed")
    if as_json:
        document(str(push))


def _ask(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        problem = "push needs a confirmation, and standard input is not a terminal"
        raise RefusedError(problem, "add --yes", "push.not-asked")
    echo("push this? [y/N]:", err=True, nl=False)  # Click would send the question past the escaper
    try:
        answer = click.prompt("", default="", prompt_suffix="", show_default=False, err=True)
    except click.Abort as error:
        echo(err=True)
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        answer = ""  # the end of the input does not confirm
    if answer.strip().lower() not in ("y", "yes"):
        raise RefusedError("nothing was pushed", "push again when you are ready", "push.declined")
