"""`tieconv rules`."""

from __future__ import annotations

import json

import click

from tieconv.checks.interface import Rule
from tieconv.cli.options import json_option, paint, traceback_option, width
from tieconv.cli.streams import document, echo
from tieconv.gate.known import rules
from tieconv.gate.selection import ALL, Selection, selectors

_STYLES = {"error": "error", "warning": "warning", "note": "quiet"}


@click.command("rules", short_help="List the rules: code, level, name, and what each reports.")
@click.option("--select", multiple=True, metavar="RULES", help="Only these: TIE001, TIE, or ALL; with commas.")
@json_option
@traceback_option
def command(select: tuple[str, ...], as_json: bool) -> None:
    """Code, name and usual level of each rule, and what it reports.

    `tieconv explain RULE` says more about one.
    """
    selection = Selection(selectors(select, "--select") or (ALL,))
    chosen = [rule for rule in rules() if selection.runs(rule.code)]
    if as_json:
        document(json.dumps({"schema": "tieconv.rules/1", "rules": list(map(_document, chosen))}, indent=2))
        return
    from tieconv.reporters.layout import wrapped

    longest = max(len(rule.name) for rule in chosen)
    for rule in chosen:
        level = str(rule.level)
        lead = f"{rule.code}  {level.ljust(7)}  {rule.name.ljust(longest)}  "
        first, *rest = wrapped(summary(rule), lead, width())
        echo(first.replace(level, paint(level, _STYLES[level]), 1))
        for line in rest:
            echo(line)


def summary(rule: Rule) -> str:
    """What the rule reports, in one line."""
    return rule.documentation.partition("\n")[0].rstrip(".")


def _document(rule: Rule) -> dict[str, str]:
    return {
        "code": rule.code,
        "name": rule.name,
        "level": str(rule.level),
        "summary": summary(rule),
        "documentation": rule.told,
    }
