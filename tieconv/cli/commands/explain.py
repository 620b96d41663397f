"""`tieconv explain`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import click

from tieconv.api.findings.rule_catalogue import find_rule
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.options import common_options
from tieconv.cli.screen import paint, width
from tieconv.cli.streams import echo


@click.command("explain", short_help="Explain a rule: what it reports, why it matters, and how to fix it.")
@click.argument("rule", shell_complete=complete_rules)
@common_options
def command(rule: str) -> None:
    """Explain RULE, a code or a name: what it reports, why it matters, an example, and how to fix it."""
    known_rule = find_rule(rule)
    columns = width()
    echo(f"{paint(f'{known_rule.code} {known_rule.name}', 'heading')} (usually: {known_rule.level})\n")
    text = known_rule.help_text.strip()
    echo("\n".join(_lines(text, min(columns, 100))) if columns else text)


def _lines(text: str, columns: int) -> Iterator[str]:
    """Headings in bold, paragraphs filled, quoted output as it is."""
    for index, block in enumerate(_blocks(text)):
        if index:
            yield ""
        if block.startswith("## "):
            heading, _, block = block.partition("\n")
            yield paint(heading.removeprefix("## "), "heading")
        if block.startswith("    "):
            yield block
        elif block:
            yield textwrap.fill(" ".join(block.split()), columns, break_long_words=False, break_on_hyphens=False)


def _blocks(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block.strip()]
