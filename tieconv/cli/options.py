"""Options that several commands share, each defined once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tieconv.cli.screen import ALWAYS, AUTO, NEVER, set_option

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

_SCREEN: dict[str, Any] = {"expose_value": False, "callback": set_option, "is_eager": True}

MODEL_PATH = click.Path(readable=False)
"""Click does not test whether the path can be read. The reader reports that, with the file and a hint."""


class WholeGroup(click.Group):
    """List the commands with whole sentences, as `tieconv --help` does."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(200)) for name, command in self.commands.items()])


def model_argument(function: F) -> F:
    """Add the argument `MODEL`. The default is the current directory."""
    return click.argument("model", default=".", type=MODEL_PATH, callback=_not_in_place)(function)


def _not_in_place(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    params = {**context.params, parameter.name: value}
    if not params.get("in_place"):
        return value
    from tieconv.api import is_remote  # not needed to list the commands

    source = str(params.get("model", ""))
    if is_remote(source):
        then = "run `tieconv push OUT hf://…`" if source.startswith("hf://") else "copy OUT to the object store"
        raise click.UsageError(f"--in-place needs a local model; write with -o OUT, then {then}")
    return value


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return the decorator that adds several options, in this order."""

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def choice_option(name: str, *choices: str, help: str) -> Callable[[F], F]:
    """Return an option with ``choices``. The first is the default."""
    return click.option(name, type=click.Choice(choices), default=choices[0], show_default=True, help=help)


def complete_rules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete the last of the rule codes in ``incomplete``, which commas separate."""
    from click.shell_completion import CompletionItem  # only a completion needs it

    from tieconv.api.check import rules

    before, comma, word = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{rule.code}", help=rule.summary)
        for rule in rules()
        if rule.code.startswith(word.upper())
    ]


def rules_option(name: str, help: str) -> Callable[[F], F]:
    """Return an option with codes of rules, which can be repeated."""
    return click.option(name, multiple=True, metavar="RULES", shell_complete=complete_rules, help=help)


def path_option(*names: str, help: str, metavar: str = "FILE", **more: Any) -> Callable[[F], F]:
    """Return an option with a path. The command reports a path that cannot be used."""
    return click.option(*names, type=click.Path(), metavar=metavar, help=help, **more)


name_options = together(
    click.option("--embed", metavar="NAME", help="Tensor name of the input embedding, for an unknown architecture."),
    click.option("--head", metavar="NAME", help="Tensor name of the output head, for an unknown architecture."),
)
base_option = path_option("--base", metavar="DIR", help="The base model of an adapter.")
json_option = click.option("as_json", "--json", is_flag=True, help="Print one JSON document.")
depth_option = click.option(
    "--depth",
    type=click.Choice(["header", "candidates", "full"]),
    help="How much to read; see `tieconv inspect --help`.  [default: candidates]",
)
# Several are one list: Click would keep only the last, and the gate would not judge the others.
loader_option = click.option(
    "consumers",
    "--for",
    multiple=True,
    metavar="SPEC",
    callback=lambda context, option, values: ",".join(values) if values else None,
    help='Also predict what these loaders do with the model, such as "vllm,transformers>=4.57".',
)
jobs_option = click.option(
    "-j", "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N", help="Number of processes."
)
device_option = click.option(
    "--device",
    type=click.IntRange(0),
    metavar="N",
    help="Run on the GPU with this number, as nvidia-smi counts. Implies --provider cuda.",
)


def on_device(provider: str, device: int | None) -> str:
    """Return the provider with its device: ``cuda:1``. Raises `click.UsageError` for a device of the CPU."""
    if device is None:
        return provider
    if provider == "cpu":
        raise click.UsageError("--device needs --provider cuda")
    return f"cuda:{device}"


write_options = together(
    model_argument,
    path_option("-o", "--output", metavar="OUT", help="Write to OUT, which must not exist."),
    click.option("--in-place", is_flag=True, callback=_not_in_place, help="Replace MODEL."),
    click.option("--overwrite", is_flag=True, help="Replace OUT if it is a model and holds no other files."),
    click.option("--dry-run", is_flag=True, help="Print the plan and write nothing."),
    click.option(
        "--drop-other-formats",
        is_flag=True,
        help="If MODEL stores two formats, write only the one that loaders prefer.",
    ),
    click.option(
        "--hardlink",
        is_flag=True,
        help="Hard-link unchanged files instead of copying them. A later change affects both directories.",
    ),
    choice_option(
        "--verify", "full", "structure", help="structure: do not compare the bytes of ranges that the kernel copied."
    ),
)
"""MODEL, and the options that say where and how a command writes."""
screen_options = together(
    click.option("-q", "--quiet", is_flag=True, help="Print only the result and errors.", **_SCREEN),
    click.option("-v", "--verbose", is_flag=True, help="Print the time and memory of each step.", **_SCREEN),
    click.option(
        "--color",
        type=click.Choice([AUTO, ALWAYS, NEVER]),
        default=AUTO,
        help="Use colours. auto: on a terminal, unless NO_COLOR is set.  [default: auto]",
        **_SCREEN,
    ),
)
"""Options that may precede or follow the command's name."""
common_options = together(
    screen_options, click.option("--traceback", is_flag=True, expose_value=False, help="Show a traceback on an error.")
)
"""Options of every command. `ErrorBoundary` reads the last."""
