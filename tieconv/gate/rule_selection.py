"""Select rules by codes and prefixes. The longest selector that matches a rule decides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checks.evidence import Rule

ALL = "ALL"


@record
class Selection:
    """Selectors: a rule's code (`TIE001`), a prefix (`TIE`, `TIE00`), or `ALL`.

    A rule that no ``select`` covers does not run. The longest selector that covers a rule decides. If two have the same
    length, ``ignore`` decides.
    """

    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()

    def runs(self, code: str) -> bool:
        """Return whether findings of the rule appear in the report."""
        return longest(self.select, code) is not None

    def ignored_by(self, code: str) -> str | None:
        """Return the selector that ignores the rule, or ``None`` if the rule counts."""
        ignoring, selecting = longest(self.ignore, code), longest(self.select, code)
        if ignoring is None or selecting is None or _weight(ignoring) < _weight(selecting):
            return None
        return ignoring

    def codes(self) -> tuple[str, ...]:
        """Return the rules that run; empty if all run."""
        if ALL in self.select:
            return ()
        return tuple(rule.code for rule in rules() if self.runs(rule.code))


def longest(selectors: Iterable[str], code: str) -> str | None:
    """Return the most specific of the selectors that cover ``code``."""
    covering = [selector for selector in selectors if selector == ALL or code.startswith(selector)]
    return max(covering, key=_weight, default=None)


def selectors(words: Iterable[str], where: str) -> tuple[str, ...]:
    """Return the selectors in ``words``; commas separate several in one word. Raises `SettingsError`."""
    named = tuple(part.strip().upper() for word in words for part in word.split(","))
    codes = [rule.code for rule in rules()] if named else []
    for selector in named:
        if selector != ALL and not (selector and any(code.startswith(selector) for code in codes)):
            raise unknown(selector, where)
    return named


def _weight(selector: str) -> int:
    return 0 if selector == ALL else len(selector)


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
