"""Report wrong command lines like other errors: one sentence, and a hint with the next command."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import click

from tieconv.cli.screen import has_colour
from tieconv.cli.streams import echo
from tieconv.text import path_word, shown
from tieconv.version import VERSION

_LIMIT = 400
_RULE = r"[A-Za-z]{3}\d{3}"
_MODEL = r"(hf|s3|gs|az)://.+|.*/.*|.*\.(safetensors|bin|pt|pth|gguf|onnx)"


class WrongUsage(click.ClickException):
    """A usage error in one sentence, with a hint. Exit code 2, as for Click's usage errors."""

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint

    def show(self, file: object = None) -> None:
        """Print `error:` and `hint:` lines to stderr."""
        tell(self.message, self.hint)


@contextmanager
def translating_usage_errors(context: click.Context | None) -> Iterator[None]:
    """Raise `WrongUsage` for Click's usage errors, except for a missing command, which prints the help."""
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:
        raise
    except click.UsageError as error:
        stated, _, meant = " ".join(error.format_message().split()).partition(" Did you mean ")
        meant = f"did you mean {meant.rstrip('?')}? " if meant else ""
        sentence = stated.rstrip(".").replace(". Choose from:", ", one of:")
        raise WrongUsage(
            shown(f"{sentence[:1].lower()}{sentence[1:]}", _LIMIT), meant + _usage(error.ctx, context)
        ) from None


def _usage(failed: click.Context | None, context: click.Context | None) -> str:
    if failed is not None:
        path = failed.command_path
        words = " ".join((path, *failed.command.collect_usage_pieces(failed)))
        return f"usage: {words}; more with: {path} --help"
    path = " ".join(filter(None, (context.command_path, context.invoked_subcommand))) if context else "tieconv"
    return f"{path} --help lists the options"


_SAME = {
    "info": "inspect",
    "show": "inspect",
    "ls": "inspect",
    "list": "inspect",
    "describe": "inspect",
    "print": "inspect",
    "lint": "check",
    "verify": "check",
    "validate": "check",
    "test": "check",
    "scan": "check",
    "tie": "retie",
    "merge": "retie",
    "clone": "untie",
    "deduplicate": "dedup",
    "compare": "diff",
    "upload": "push",
    "fix": "check --fix",
    "index": "reindex",
    "strip": "bias strip",
    "rule": "explain",
}
"""Names of commands in other tools, and the command of tieconv."""


def as_options(arguments: list[str], commands: Iterable[str]) -> list[str]:
    """Return ``arguments`` with `help [COMMAND]` and `version` replaced, as Git and pip accept them."""
    match arguments:
        case ["help"] | ["version"]:
            context = click.get_current_context()
            echo(context.get_help() if arguments == ["help"] else f"tieconv, version {VERSION}")
            context.exit(0)
        case ["help", command, *_] if command in commands:
            return [command, "--help"]
        case ["help", command, *_]:
            return [command]
    return arguments


def no_command(word: str, commands: Iterable[str]) -> WrongUsage:
    """Return the error for an unknown command. Its hint is a similar command, or one for a rule or a model."""
    from difflib import get_close_matches

    like = get_close_matches(word, list(commands), 1)
    if word.lower() in _SAME:
        like = [_SAME[word.lower()]]
    if like:
        hint = f"did you mean tieconv {like[0]}? tieconv --help lists the commands"
    elif re.fullmatch(_RULE, word):
        hint = f"to explain a rule: tieconv explain {word.upper()}"
    elif re.fullmatch(_MODEL, word) or os.path.exists(word):
        hint = f"give a command before the model, such as: tieconv inspect {path_word(word)}"
    else:
        hint = "tieconv --help lists the commands"
    return WrongUsage(f'unknown command "{shown(word)}"', hint)


_MESSAGE_LIMIT = 1900  # of the error and of its hint: 4 KB in all


def tell(message: str, hint: str) -> None:
    """Print the message and its hint to stderr."""
    colour = has_colour(sys.stderr)
    first, *rest = _lines(message[:_MESSAGE_LIMIT])
    if colour:
        first = first.replace("error", click.style("error", fg="red"), 1)
    echo("\n".join([first, *rest]), err=True, color=colour)
    if hint:
        echo(f"hint: {hint[:_MESSAGE_LIMIT]}", err=True)  # not wrapped, because it holds a command to copy


def _lines(message: str) -> list[str]:
    """Return the lines of the message: wrapped on a terminal, one line in a pipe."""
    if not sys.stderr.isatty():
        return [f"error: {message}"]
    import shutil

    from tieconv.reporters.text import wrapped

    return wrapped(message, "error: ", shutil.get_terminal_size().columns)
