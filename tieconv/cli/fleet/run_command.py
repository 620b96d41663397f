"""Run a command in this process, and return what it answers instead of printing it."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout

import click

from tieconv.api import remove_temporary
from tieconv.cli.errors import ending
from tieconv.cli.usage import WrongUsage
from tieconv.text import shown

Answer = tuple[int, str, tuple[str, str] | None]
"""The exit code, the JSON document, and the message and hint if there is no answer."""


def run_command(arguments: Sequence[str]) -> Answer:
    """Run ``tieconv VERB --json`` with the arguments, the verb first."""
    output = io.StringIO()
    try:
        with redirect_stdout(output), redirect_stderr(io.StringIO()):
            code, failure = _ended(arguments)
    finally:
        remove_temporary()  # the copy of a model in an object store would stay until the worker ends
    document = output.getvalue()[max(output.getvalue().find("{"), 0) :]
    if document and not _is_json(document):
        return code, "", failure or ("the command printed no JSON document", _look(arguments))
    if code not in (0, 1) and failure is None:
        failure = f"the command ended with exit code {code}", _look(arguments)
    return code, document, failure


def _ended(arguments: Sequence[str]) -> tuple[int, tuple[str, str] | None]:
    """Return the exit code, and the message and hint of an error."""
    from tieconv.cli import main

    verb, *others = arguments
    try:
        with main.make_context("tieconv", [verb, "-q", "--json", *others]) as context:
            main.invoke(context)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None), None
    except click.exceptions.Exit as end:
        return end.exit_code, None
    except WrongUsage as error:
        return error.exit_code, (error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - every error belongs to its model
        message, hint, code = ending(error)
        return code, (message, hint)
    return 0, None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _look(arguments: Sequence[str]) -> str:
    return f"run it alone: tieconv {shown(' '.join(arguments), 1000)}"
