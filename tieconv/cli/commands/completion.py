"""`tieconv completion`."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from tieconv.cli.streams import echo


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    Save it where your shell looks for completions. For bash that is
    ~/.local/share/bash-completion/completions/tieconv.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are the shells that Click knows
    root = ctx.find_root().command
    script = kind(root, {}, "tieconv", "_TIECONV_COMPLETE").source()
    # Click's script cuts a completion at each comma; values and help texts hold commas.
    echo(script.replace('string split ","', 'string split --max 1 ","'))


def complete_rules(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem[str]]:
    """Complete the last of the rule codes in ``incomplete``, which commas separate."""
    from tieconv.api.findings.rule_catalogue import rules

    before, comma, word = incomplete.rpartition(",")
    return [
        CompletionItem(f"{before}{comma}{rule.code}", help=rule.summary)
        for rule in rules()
        if rule.code.startswith(word.upper())
    ]
