"""Print an error to stderr: one sentence, then a hint with the next command."""

from __future__ import annotations

import sys

import click

from tieconv.cli.screen import has_colour
from tieconv.cli.streams import echo

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

    from tieconv.reporters.text.columns import wrapped

    return wrapped(message, "error: ", shutil.get_terminal_size().columns)
