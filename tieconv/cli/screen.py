"""The options of the screen: `-q`, `-v` and `--color`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from tieconv.cli.streams import echo
from tieconv.text import size

AUTO, ALWAYS, NEVER = "auto", "always", "never"

_STYLES: dict[str, dict[str, Any]] = {
    "heading": {"bold": True},
    "good": {"fg": "green"},
    "warning": {"fg": "yellow"},
    "error": {"fg": "red"},
    "quiet": {"dim": True},
}
_asked: dict[str, object] = {}
"""The values of `-q`, `-v` and `--color`. Errors are printed after Click's context has ended."""


def reset() -> None:
    """Forget the options of an earlier command of this process."""
    _asked.clear()


def set_option(context: click.Context, parameter: click.Parameter, value: object) -> None:
    """Store the value of `-q`, `-v` or `--color`, given before or after the command's name."""
    name = str(parameter.name)
    if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
        _asked[name] = value
    if name == "color":
        asked = _asked.get(name, AUTO)
        context.color = (True if _forced() else None) if asked == AUTO else asked == ALWAYS


def is_quiet() -> bool:
    """Return whether only results and errors are printed (`-q`)."""
    return bool(_asked.get("quiet"))


def is_verbose() -> bool:
    """Return whether each step is printed with its time (`-v`)."""
    return bool(_asked.get("verbose"))


def say(text: str) -> None:
    """Print a line to stderr, unless `-q` is given."""
    if not is_quiet():
        echo(text, err=True)


def has_colour(stream: IO[str] | None = None) -> bool:
    """Return whether to print text for ``stream`` (default: stdout) in colour.

    `--color` decides first, then `NO_COLOR`, then `FORCE_COLOR` and `CLICOLOR_FORCE`, then whether ``stream`` is a
    terminal.
    """
    asked = _asked.get("color")
    if asked in (ALWAYS, NEVER):
        return asked == ALWAYS
    if os.environ.get("NO_COLOR"):
        return False
    if _forced():
        return True
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def _forced() -> bool:
    """Return whether the environment requests colour in a pipe too."""
    if os.environ.get("NO_COLOR"):
        return False
    return any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE"))


def painter(stream: IO[str] | None = None) -> Callable[[str, str], str]:
    """Return ``paint(text, style)`` for ``stream``, which returns the text unchanged without colour."""
    colour = has_colour(stream)
    return lambda text, style: click.style(text, **_STYLES[style]) if colour else text


def paint(text: str, style: str) -> str:
    """Return ``text`` for stdout in a style: ``heading``, ``good``, ``warning``, ``error`` or ``quiet``."""
    return painter()(text, style)


def width(stream: IO[str] | None = None) -> int | None:
    """Return the columns of the terminal, or ``None`` if the stream is not a terminal."""
    if not (stream or sys.stdout).isatty():
        return None
    import shutil

    return max(shutil.get_terminal_size().columns, 40)


@contextmanager
def timed(step: str) -> Iterator[None]:
    """Print the time of ``step`` and the peak memory so far, if `-v` is given."""
    start = time.monotonic()
    yield
    if is_verbose():
        import resource

        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        echo(f"{step}: {time.monotonic() - start:.2f} s, peak memory {size(peak)}", err=True)
