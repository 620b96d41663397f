"""`tieconv push`."""

from __future__ import annotations

import sys

import click

from tieconv.api import hub
from tieconv.cli.options import MODEL_PATH, common_options, json_option
from tieconv.cli.screen import paint, say
from tieconv.cli.streams import document, echo, show
from tieconv.errors import RefusedError
from tieconv.text import shown, size


@click.command("push", short_help="Open a pull request on the Hub with the files that differ.")
@click.argument("directory", type=MODEL_PATH, metavar="DIR")
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
@json_option
@common_options
def command(
    directory: str,
    target: str,
    pull_request: bool,
    message: str | None,
    include: tuple[str, ...],
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Open a pull request with the files of DIR that differ from the repository's files.

    Compares files by their hashes. Deletes weight and index files that the repository's model uses and DIR does not
    have. Skips dot-files such as `.env`, keys, tokens and caches, and lists them. Prints the plan and asks for
    confirmation. The plan becomes the description of the pull request.
    """
    push = hub.plan_push(directory, target, message=message, pull_request=pull_request, include=include)
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
        raise RefusedError(
            "push needs a confirmation, and standard input is not a terminal", "add --yes", "push.not-asked"
        )
    try:
        agreed = _agreed()
    except click.Abort as error:
        echo(err=True)
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        agreed = False  # the end of the input does not confirm
    if not agreed:
        raise RefusedError("nothing was pushed", "push again when you are ready", "push.declined")


def _agreed() -> bool:
    """Ask until the answer is yes or no. An empty line means no."""
    while True:
        echo("push this? [y/N]:", err=True, nl=False)  # Click would send the question past the escaper
        answer = click.prompt("", default="", prompt_suffix="", show_default=False, err=True).strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        echo("answer y or n", err=True)
