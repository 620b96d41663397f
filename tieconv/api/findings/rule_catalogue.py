"""Look up rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tieconv.gate import rule_selection
from tieconv.gate.rule_selection import ALL, Selection, selectors

if TYPE_CHECKING:
    from tieconv.checks.evidence import Rule


def rules() -> tuple[Rule, ...]:
    """Return every rule, in the order of the documentation."""
    return rule_selection.rules()


def find_rule(word: str) -> Rule:
    """Return the rule with this code or name. Raises `SettingsError`, which suggests similar rules."""
    return rule_selection.find_rule(word)


def select_rules(words: Sequence[str], select: Sequence[str] = ()) -> tuple[Rule, ...]:
    """Return the rules that codes or code prefixes select; without any, all rules. Raises `SettingsError`."""
    selection = Selection((*selectors(words, "RULES"), *selectors(select, "--select")) or (ALL,))
    return tuple(rule for rule in rules() if selection.runs(rule.code))
