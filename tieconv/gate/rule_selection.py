"""Select rules by codes and prefixes. The longest selector that matches a rule decides."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.value_type import record
from tieconv.gate.known import rules, unknown

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
