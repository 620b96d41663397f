"""The command line: each command in its file, loaded when it is called."""

from __future__ import annotations

import importlib

import click

from tieconv.cli.errors import ErrorBoundary
from tieconv.version import VERSION

_COMMANDS = {
    "bias": "tieconv.cli.bias",
    "completion": "tieconv.cli.completion",
    "convert": "tieconv.cli.convert",
    "dedup": "tieconv.cli.dedup",
    "diff": "tieconv.cli.diff",
    "inspect": "tieconv.cli.inspect",
    "reindex": "tieconv.cli.reindex",
    "retie": "tieconv.cli.retie",
    "set-tie": "tieconv.cli.set_tie",
    "untie": "tieconv.cli.untie",
}


class LazyGroup(ErrorBoundary):
    """A group whose help lists the commands and whose call imports only the one that is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        module = _COMMANDS.get(cmd_name)
        if module is None:
            return None
        command = importlib.import_module(module).command
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, "--version", prog_name="tieconv")
def main() -> None:
    """Find, prove, untie and re-tie shared embedding and lm_head tensors in checkpoints.

    MODEL is a model directory, a .safetensors file or a shard index; left out, it is the current directory.
    """
