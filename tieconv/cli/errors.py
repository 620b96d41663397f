"""Errors to one sentence, one hint and an exit code, in one place."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from tieconv.cli.failure import tell
from tieconv.cli.screen import reset
from tieconv.cli.streams import echo
from tieconv.cli.usage import translating_usage_errors
from tieconv.errors import TieconvError, require_posix
from tieconv.text import shown

_BUG_HINT = "this is a fault of tieconv: report it with the output of --traceback"
_SYSTEM_HINT = "check the path, its permissions and the disk"


class ErrorBoundary(click.Group):
    """A group that turns every failure below it into a sentence, and shows a traceback only on request."""

    def invoke(self, ctx: click.Context) -> Any:
        """As Click, which ends both of these with 1: that is an answer of `check` and `diff`."""
        try:
            with translating_usage_errors(ctx):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            from tieconv.api import anything_waits  # pools of threads: nothing that every start should load

            echo("interrupted", err=True)
            if anything_waits():  # for a server that is silent; else the interpreter would wait for it as well
                sys.stdout.flush()
                os._exit(130)
            sys.exit(130)
        except BrokenPipeError:
            # The reader went away (`| head`): quietly, and without a second error from the closing flush.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """As Click, with its usage errors told."""
        with translating_usage_errors(None):
            return super().make_context(*args, **kwargs)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        _have_streams()
        _print_anything()
        reset()
        argv = list(kwargs.get("args") or (args[0] if args and args[0] is not None else sys.argv[1:]))
        wanted = "--traceback" in argv
        if wanted:
            kwargs["args"] = [word for word in argv if word != "--traceback"]
            args = args[1:]
        try:
            require_posix()
            return super().main(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the last resort: a bug is told as one too
            if wanted:
                _trace(error)
            _stop(*_ending(error))


def _ending(error: Exception) -> tuple[str, str, int]:
    """The sentence, the hint and the exit code of an error."""
    if isinstance(error, TieconvError):
        return error.message, error.command_hint, error.exit_code
    if isinstance(error, MemoryError):
        return "out of memory", "close other programs, or report this: memory is meant to be bounded", 2
    if isinstance(error, OSError):
        where = shown(error.filename or "a file or standard output")
        return f"{where}: {(error.strerror or str(error)).lower()}", _SYSTEM_HINT, 2
    return f"unexpected {type(error).__name__}: {shown(error)}", _BUG_HINT, 2


def _trace(error: Exception) -> None:
    """Print the traceback, which may quote a file."""
    import traceback

    for part in traceback.format_exception(error):
        for line in part.splitlines():
            echo(shown(line, 1000), err=True)


def _have_streams() -> None:
    """Make up for streams that the caller closed: no file may get their numbers, and a result needs a place."""
    if sys.stderr is None:
        while os.open(os.devnull, os.O_RDWR) < 2:
            continue
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
    if sys.stdout is None:
        _stop("standard output is closed", "send it somewhere: > FILE, or > /dev/null", 2)


def _print_anything() -> None:
    """A character that the terminal's encoding lacks is printed as an escape instead of stopping the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop(message: str, hint: str, code: int) -> NoReturn:
    tell(message, hint)
    sys.exit(code)
