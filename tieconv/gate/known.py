"""Find rules by code or name, and suggest similar rules for an unknown word."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieconv.errors import SettingsError
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checks.interface import Rule


def rules() -> tuple[Rule, ...]:
    """Return every rule, in the order of the documentation."""
    from tieconv.checks.registry import RULES  # forty modules that a run without rules need not import

    return RULES


def find_rule(word: str) -> Rule:
    """Return the rule with this code or name. Raises `SettingsError` with similar rules."""
    for rule in rules():
        if word.upper() == rule.code or word.lower() == rule.name:
            return rule
    raise unknown(word)


def unknown(word: str, where: str = "") -> SettingsError:
    """Return the error for a word that is neither a rule's code nor its name."""
    prefix = f"{where}: " if where else ""
    return SettingsError(f"{prefix}{shown(word, 60) or 'an empty word'} is not a rule", _meant(word), "rule.unknown")


def close(word: str, words: Iterable[str]) -> list[str]:
    """Return the ``words`` that are most similar to ``word``, at most three."""
    from difflib import get_close_matches

    return get_close_matches(word[:60], list(words), 3, 0.6)


def _meant(word: str) -> str:
    named = {rule.name: rule for rule in rules()}
    coded = {rule.code: rule for rule in rules()}
    likely = [coded[code] for code in (*_spelled(word.upper(), coded), *close(word.upper(), coded))]
    likely += [named[name] for name in close(word.lower(), named)]
    likely += [rule for name, rule in named.items() if len(word) > 2 and word.lower() in name]
    if not likely:
        return "list all rules with: tieconv rules"
    unique = dict.fromkeys(f"{rule.code} ({rule.name})" for rule in likely)
    return f"did you mean {' or '.join(list(unique)[:3])}? List all rules with: tieconv rules"


def _spelled(word: str, codes: Iterable[str]) -> list[str]:
    """Return the codes with the letters and the number of ``word``, then those that start like it."""
    letters, number = word.rstrip("0123456789"), word[len(word.rstrip("0123456789")) :]
    same = [code for code in codes if number and code == f"{letters}{int(number[:9]):03d}"]
    return same + [code for code in codes if word and code.startswith(word) and code not in same]
