"""`tieconv completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from tieconv.cli.streams import echo


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    Put it where your shell looks; for bash that is
    ~/.local/share/bash-completion/completions/tieconv.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are the shells that Click knows
    root = ctx.find_root().command
    echo(kind(root, {}, "tieconv", "_TIECONV_COMPLETE").source())
