"""The command line: each command in its file, loaded when it is called."""

from __future__ import annotations

import atexit
import gc
import importlib

import click

from tieconv.cli.errors import ErrorBoundary
from tieconv.cli.options import screen_options
from tieconv.cli.streams import escaped_libraries
from tieconv.cli.usage import as_options, no_command
from tieconv.version import VERSION

# Importing makes thousands of objects and no garbage: collecting meanwhile costs a twentieth of a short command.
gc.set_threshold(50_000)
# At exit Python searches every object for garbage several times, a sixth of a short command. It all goes anyway.
atexit.register(gc.freeze)

COMMANDS = {
    "analyze": "What the embedding and the head of MODEL are to each other, and whether they may be tied.",
    "bias": "Add, remove, unify or resize the head bias; the tie stays as it is.",
    "check": "The gate for CI: rules over models, exit 1 on a finding.",
    "completion": "Print the completion script for SHELL.",
    "convert": "Store the model in another format, or in shards of another size.",
    "demo": "Train a toy tied and untied, and show what tying does to its table.",
    "dedup": "Store every byte-identical group once, as far as loaders restore the rest.",
    "diff": "What differs between the models A and B, tensor by tensor, ties and layout seen through.",
    "explain": "What a rule reports, why it matters, an example, and how to fix it.",
    "export": "Export MODEL as ONNX, each tied matrix stored once on disk and in a session, and measure it.",
    "inspect": "What MODEL stores, what is tied, what it costs, and what to run next.",
    "parity": "How far the graph ONNX agrees with the checkpoint MODEL, measured.",
    "push": "Open a pull request on the Hub with exactly the files that differ.",
    "reindex": "Rebuild the shard index from the headers of the shards.",
    "resize": "Make config, embedding, head and head bias agree on the size of the vocabulary.",
    "retie": "Drop the redundant copy, keep the canonical name, set the config to tied.",
    "rules": "List the rules: code, level, name, and what each reports.",
    "set-tie": "Write the tie flag at every level of the config; no tensor changes.",
    "untie": "Write the head, and every other tied name, as a tensor of its own.",
}
"""Each command, in the module of its name, and its line in the help: listing them imports none of them."""


class LazyGroup(ErrorBoundary):
    """A group whose help lists the commands and whose call imports only the one that is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As Click; `help` and `version` are the options, and an unknown command gets a hint."""
        args = as_options(args, COMMANDS)
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise no_command(args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """As Click, with whatever libraries print escaped."""
        with escaped_libraries():
            return super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"tieconv.cli.commands.{cmd_name.replace('-', '_')}").command
        assert isinstance(command, click.Command)
        return command


_START = """Start with `tieconv inspect MODEL`: it names the command to run next. `tieconv COMMAND --help` says what a
command takes, `tieconv explain RULE` what a finding means."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_START)
@screen_options
@click.version_option(VERSION, "--version", prog_name="tieconv")
def main() -> None:
    """Find, prove, untie and re-tie shared embedding and lm_head tensors in checkpoints.

    MODEL is a model directory, a weight file (.safetensors, .bin, .pt, .gguf), a shard index or hf://org/name[@revision],
    for inspect, check, dedup and untie also an ONNX graph or a directory of them; left out, it is the current
    directory.
    """
