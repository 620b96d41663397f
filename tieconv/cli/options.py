"""Options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tieconv.cli.screen import ALWAYS, AUTO, NEVER, set_option

F = TypeVar("F", bound=Callable[..., Any])

_SCREEN: dict[str, Any] = {"expose_value": False, "callback": set_option, "is_eager": True}

MODEL_PATH = click.Path(readable=False)
"""What may not be read is told by what reads it, with the file and the next step, and the other models go on."""


def model_argument(function: F) -> F:
    """`MODEL`, the current directory where it is left out."""
    return click.argument("model", default=".", type=MODEL_PATH, callback=_not_in_place)(function)


def _not_in_place(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Of the model and `--in-place` whichever is read second: nothing is fetched that could not be written."""
    params = {**context.params, parameter.name: value}
    if not params.get("in_place"):
        return value
    from tieconv.api import is_hub  # a list of commands needs no interface

    if is_hub(str(params.get("model", ""))):
        raise click.UsageError("--in-place changes local models: write with -o OUT, then `tieconv push OUT hf://…`")
    return value


def name_options(function: F) -> F:
    """`--embed` and `--head`, for architectures that no table knows."""
    function = click.option(
        "--head", metavar="NAME", help="The output embedding's tensor name, for an unknown architecture."
    )(function)
    return click.option(
        "--embed", metavar="NAME", help="The input embedding's tensor name, for an unknown architecture."
    )(function)


def json_option(function: F) -> F:
    """`--json`."""
    return click.option("as_json", "--json", is_flag=True, help="Print one JSON document.")(function)


def choice_option(name: str, *choices: str, help: str) -> Callable[[F], F]:
    """One of ``choices``, the first where it is left out."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=help)


def write_options(function: F) -> F:
    """Where and how a writing command writes."""
    options = [
        click.option("-o", "--output", type=click.Path(), metavar="OUT", help="Write to OUT, which must not exist."),
        click.option("--in-place", is_flag=True, callback=_not_in_place, help="Replace the model itself."),
        click.option("--overwrite", is_flag=True, help="Replace OUT if it exists and is a model."),
        click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
        click.option(
            "--drop-other-formats",
            is_flag=True,
            help="Where two formats lie side by side, work on the one that loaders prefer and leave out the other.",
        ),
        click.option(
            "--hardlink", is_flag=True, help="Hard-link unchanged files: both directories then hold the same files."
        ),
        choice_option(
            "--verify",
            "full",
            "structure",
            help="structure: do not compare byte ranges that the kernel copied or shared.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def bias_option(function: F) -> F:
    """`--bias`."""
    return choice_option(
        "--bias",
        "keep",
        "zero",
        "strip",
        help="zero: the head ends with a bias, all zero where there was none; strip: an all-zero bias goes.",
    )(function)


def screen_options(function: F) -> F:
    """`-q`, `-v` and `--color`; `tieconv` takes them before the command's name, each command after it."""
    options = [
        click.option("-q", "--quiet", is_flag=True, help="Print the result and errors only.", **_SCREEN),
        click.option("-v", "--verbose", is_flag=True, help="Print the time and memory of each step.", **_SCREEN),
        click.option(
            "--color",
            type=click.Choice([AUTO, ALWAYS, NEVER]),
            default=AUTO,
            help="Colour the output. auto: on a terminal; NO_COLOR and FORCE_COLOR are honoured.  [default: auto]",
            **_SCREEN,
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def common_options(function: F) -> F:
    """The screen's options and `--traceback`, which is taken out of the arguments before any command sees it."""
    traceback = click.option("--traceback", is_flag=True, expose_value=False, help="Show a traceback on an error.")
    return screen_options(traceback(function))
