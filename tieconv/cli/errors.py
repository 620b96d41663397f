"""Turn every error, also of a wrong command line, into one sentence, one hint and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import pairwise
from typing import Any

import click

from tieconv.cli.screen import document, echo, has_colour, has_document, reset
from tieconv.errors import explained
from tieconv.text import close, path_word, shown
from tieconv.version import VERSION

# Report wrong command lines like other errors: one sentence, and a hint with the next command.


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
        if "unexpected extra argument" in sentence:
            meant += _OF_TWO_MODELS.get(str(error.ctx and error.ctx.info_name), "")
        if error.ctx and isinstance(error, click.MissingParameter) and error.param and error.param.name == "runs":
            # The last source is probably meant as the directory of results.
            words = [*map(path_word, error.ctx.params.get("sources", ()))]
            runs = words.pop() if len(words) > 1 else "RUNS"
            meant += f"name a directory of results: {' '.join((error.ctx.command_path, *words))} -o {runs}; "
        raise WrongUsage(
            shown(f"{sentence[:1].lower()}{sentence[1:]}", _LIMIT), meant + _usage(error.ctx, context)
        ) from None


_OF_TWO_MODELS = {
    "analyze": "to compare two models: tieconv analyze TIED --against UNTIED; ",
    "inspect": "to compare two models: tieconv diff A B; ",
}
"""How to name a second model, for commands that take one."""


def _usage(failed: click.Context | None, context: click.Context | None) -> str:
    if failed is not None:
        path = failed.command_path
        words = " ".join((path, *failed.command.collect_usage_pieces(failed)))
        return f"usage: {words}; more with: {path} --help"
    path = " ".join(filter(None, (context.command_path, context.invoked_subcommand))) if context else "tieconv"
    return f"{path} --help lists the options"


_SAME = {
    "info": "inspect", "show": "inspect", "ls": "inspect", "list": "inspect", "describe": "inspect", "print": "inspect",
    "lint": "check", "verify": "check", "validate": "check", "test": "check", "scan": "check", "fix": "check --fix",
    "repair": "check --fix", "doctor": "check",
    "tie": "retie", "merge": "retie", "clone": "untie", "deduplicate": "dedup", "compare": "diff", "upload": "push",
    "index": "reindex", "strip": "bias strip", "rule": "explain",
}  # fmt: skip
"""Names of commands in other tools, and the command of tieconv."""


def no_command(word: str, commands: Iterable[str]) -> WrongUsage:
    """Return the error for an unknown command. Its hint is a similar command, or one for a rule or a model."""
    like = close(word, commands)
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
    if not sys.stderr.isatty():
        return [f"error: {message}"]
    import shutil

    from tieconv.reporters.text import wrapped

    return wrapped(message, "error: ", shutil.get_terminal_size().columns)


# Turn every error into one sentence, one hint and an exit code.


class ErrorBoundary(click.Group):
    """Turn every error of a command into one sentence. Show a traceback only with `--traceback`."""

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as Click does. On Ctrl-C or a closed pipe do not exit with 1, an answer of `check`."""
        try:
            with translating_usage_errors(ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            from tieconv.api import anything_waits, remove_temporary  # most commands need neither

            echo("interrupted", err=True)
            if anything_waits():  # a thread waits for a silent server; do not wait for the thread
                sys.stdout.flush()
                remove_temporary(every_thread=True)
                os._exit(130)
            sys.exit(130)
        except BrokenPipeError:
            # The reader closed the pipe (`| head`). Avoid a second error when stdout is flushed at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Make the context as Click does, and translate its usage errors."""
        with translating_usage_errors(None):
            return super().make_context(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _have_streams()
        for stream in (sys.stdout, sys.stderr):  # what the encoding lacks is printed as escapes
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        reset()
        argv = list(kwargs.get("args") or (args[0] if args and args[0] is not None else sys.argv[1:]))
        wanted = "--traceback" in argv
        if wanted:
            kwargs["args"] = [word for word in argv if word != "--traceback"]
            args = args[1:]
        try:
            return super().main(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the last resort: a bug is reported in one sentence too
            if wanted:
                import traceback

                for part in traceback.format_exception(error):
                    for line in part.splitlines():
                        echo(shown(line, 1000), err=True)
            sentence, hint = explained(error)
            tell(sentence, hint)
            as_json = {"--json", "--format=json"} & {*argv} or ("--format", "json") in pairwise(argv)
            if as_json and not has_document():
                import json

                facts = {"error": sentence, "hint": hint, "code": getattr(error, "code", type(error).__name__)}
                document(json.dumps({"schema": "tieconv.error/1", "tieconv": VERSION, **facts}, indent=2))
            sys.exit(getattr(error, "exit_code", 2))


def _have_streams() -> None:
    """Replace streams that the caller closed, so that no file gets their descriptors."""
    if sys.stderr is None:
        while os.open(os.devnull, os.O_RDWR) < 2:
            continue
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
    if sys.stdout is None:
        tell("standard output is closed", "redirect it: > FILE, or > /dev/null")
        sys.exit(2)
