"""Turn every error into one sentence, one hint and an exit code."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import Any, NoReturn

import click

from tieconv.cli.screen import reset
from tieconv.cli.streams import echo
from tieconv.cli.usage import tell, translating_usage_errors
from tieconv.errors import TieconvError, require_posix
from tieconv.text import shown

_BUG_HINT = "this is a bug in tieconv; run again with --traceback and report the output"
_SYSTEM_HINT = "check the path, its permissions and the disk"


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
        except Exception as error:  # noqa: BLE001 - the last resort: a bug is reported in one sentence too
            if wanted:
                _trace(error)
            _stop(*ending(error))


def ending(error: Exception) -> tuple[str, str, int]:
    """Return the sentence, the hint and the exit code of an error."""
    if isinstance(error, TieconvError):
        return error.message, error.command_hint, error.exit_code
    if isinstance(error, MemoryError):
        return "out of memory", "close other programs; if it happens again, report it as a bug", 2
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
    """Replace streams that the caller closed, so that no file gets their descriptors."""
    if sys.stderr is None:
        while os.open(os.devnull, os.O_RDWR) < 2:
            continue
        sys.stderr = os.fdopen(2, "w", encoding="utf-8")
    if sys.stdout is None:
        _stop("standard output is closed", "redirect it: > FILE, or > /dev/null", 2)


def _print_anything() -> None:
    """Print characters that the terminal's encoding lacks as escapes instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _stop(message: str, hint: str, code: int) -> NoReturn:
    tell(message, hint)
    sys.exit(code)
