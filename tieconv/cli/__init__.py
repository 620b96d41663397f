"""The command line. A file has the commands of one subject, and is imported when one of them runs."""

from __future__ import annotations

import atexit
import gc
import importlib

import click

from tieconv.cli.errors import ErrorBoundary, no_command
from tieconv.cli.options import screen_options
from tieconv.cli.screen import escaped_libraries
from tieconv.version import VERSION

# Imports make many objects and no garbage. Collecting garbage meanwhile takes 5 % of a short command.
gc.set_threshold(50_000)
# At exit Python searches every object for garbage several times, which takes 15 % of a short command.
atexit.register(gc.freeze)

SECTIONS = {
    "Look": {
        "inspect": ("inspect", "Show what MODEL stores, what is tied, and what to run next."),
        "check": ("check", "Apply the rules to models, and exit with 1 on a finding. A gate for CI."),
        "diff": ("inspect", "Compare the models A and B tensor by tensor."),
        "analyze": ("analyze", "Measure how the head of MODEL relates to its embedding, and whether they can be tied."),
        "explain": ("rules", "Explain a rule, or the message of another program."),
        "rules": ("rules", "List the rules: code, level, name and summary."),
    },
    "Repair": {
        "retie": ("write", "Tie the head: drop the redundant copy and set the config to tied."),
        "untie": ("write", "Untie the head: store it, and every other tied name, as a separate tensor."),
        "bias": ("write", "Add, remove, unify or resize the head bias."),
        "set-tie": ("write", "Write tie_word_embeddings in the config. No tensor changes."),
        "resize": ("write", "Make config, embedding, head and head bias agree on the vocabulary size."),
        "dedup": ("write", "Store byte-identical tensors once. Copies that a loader needs stay."),
        "reindex": ("write", "Rebuild the shard index from the headers of the shards."),
        "convert": ("write", "Convert the model to another format or shard size."),
        "push": ("inspect", "Open a pull request on the Hub with the files that differ."),
    },
    "ONNX": {
        "export": ("graphs", "Export MODEL to ONNX with each tied matrix stored once, and measure parity."),
        "parity": ("graphs", "Measure whether the graph ONNX computes what the checkpoint MODEL computes."),
    },
    "More": {
        "fleet": ("fleet", "Run a command on thousands of models, and report what is new."),
        "demo": ("analyze", "Train a small model tied and untied, and show what tying changes."),
        "completion": ("rules", "Print the completion script for SHELL."),
    },
}
"""The sections of the help, with the module and the line of each command. Listing them imports no command."""
COMMANDS = {name: command for section in SECTIONS.values() for name, command in section.items()}


class LazyGroup(ErrorBoundary):
    """List the commands without importing them, and import the one that runs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as Click does, and give an unknown command a hint."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise no_command(args[0], COMMANDS)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Invoke as Click does, with the output of libraries escaped."""
        with escaped_libraries():
            return super().invoke(ctx)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tieconv.cli.{COMMANDS[cmd_name][0]}")
        command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        assert isinstance(command, click.Command)
        return command


_START = """Start with `tieconv inspect MODEL`. It prints the command to run next. `tieconv explain RULE` explains a
finding. Repairs print a plan, and write with -o OUT or --in-place. Exit codes: 0 fine, 1 a finding or a difference,
2 an error or a refusal."""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=_START)
@screen_options
@click.version_option(VERSION, "--version", prog_name="tieconv")
def main() -> None:
    """Find, prove, untie and re-tie shared embedding and lm_head tensors in checkpoints.

    MODEL is a model directory, a weight file (.safetensors, .bin, .pt, .gguf), a shard index,
    hf://org/name[@revision], or s3://bucket/prefix (gs://, az://). The default is the current directory. inspect,
    check, dedup and untie also take an ONNX graph or a directory of graphs.
    """
