"""`tieconv explain`."""

from __future__ import annotations

import click

from tieconv.api.findings.rule_catalogue import find_rule
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.options import common_options
from tieconv.cli.screen import has_colour, paint, width
from tieconv.cli.streams import echo

_WIDEST = 100
"""Columns beyond which a line of prose is hard to read."""


@click.command("explain", short_help="Explain a rule: what it reports, why it matters, and how to fix it.")
@click.argument("rule", shell_complete=complete_rules)
@common_options
def command(rule: str) -> None:
    """Explain RULE, a code or a name: what it reports, why it matters, an example, and how to fix it.

    A terminal shows the text rendered; a pipe gets its Markdown.
    """
    known_rule = find_rule(rule)
    echo(f"{paint(f'{known_rule.code} {known_rule.name}', 'heading')} (usually: {known_rule.level})\n")
    text = known_rule.documentation.strip()
    columns, colour = width(), has_colour()
    if columns or colour:
        from tieconv.cli.markdown import rendered

        text = rendered(text, min(columns or _WIDEST, _WIDEST), colour=colour)
    echo(text)
