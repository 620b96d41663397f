"""`tieconv rules`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from tieconv.api.findings.rule_catalogue import select_rules
from tieconv.cli.commands.completion import complete_rules
from tieconv.cli.options import common_options, json_option
from tieconv.cli.screen import paint, width
from tieconv.cli.streams import document, echo

if TYPE_CHECKING:
    from tieconv.api import Rule


@click.command("rules", short_help="List the rules: code, level, name and summary.")
@click.argument("words", nargs=-1, metavar="[RULES]...", shell_complete=complete_rules)
@click.option("--select", multiple=True, metavar="RULES", shell_complete=complete_rules, help="Same as RULES.")
@json_option
@common_options
def command(words: tuple[str, ...], select: tuple[str, ...], as_json: bool) -> None:
    """List the rules: code, usual level, name and summary.

    RULES are codes or their first letters, such as TIE001 or TIE. The default is all rules. `tieconv explain RULE`
    explains one.
    """
    chosen = select_rules(words, select)
    if as_json:
        document(json.dumps({"schema": "tieconv.rules/1", "rules": list(map(_document, chosen))}, indent=2))
        return
    from tieconv.reporters.text import LEVEL_STYLES, wrapped

    longest = max(len(rule.name) for rule in chosen)
    for rule in chosen:
        level = str(rule.level)
        lead = f"{rule.code}  {level.ljust(7)}  {rule.name.ljust(longest)}  "
        first, *rest = wrapped(rule.summary, lead, width())
        echo(first.replace(level, paint(level, LEVEL_STYLES[level]), 1))
        for line in rest:
            echo(line)


def _document(rule: Rule) -> dict[str, str]:
    return {
        "code": rule.code,
        "name": rule.name,
        "level": str(rule.level),
        "summary": rule.summary,
        "documentation": rule.documentation,
    }
