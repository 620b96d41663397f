"""Which rules count: codes and prefixes, of which the longest that fits decides."""

from __future__ import annotations

from collections.abc import Iterable

from tieconv.checkpoint.value_type import record
from tieconv.gate.known import rules, unknown

ALL = "ALL"


@record
class Selection:
    """Selectors: a rule's code (`TIE001`), its start (`TIE`, `TIE00`), or `ALL`.

    What no ``select`` covers does not run. Of the selectors that cover a rule the longest decides, and ``ignore``
    where two are equally long.
    """

    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()

    def runs(self, code: str) -> bool:
        """Whether findings of the rule are in the report at all."""
        return longest(self.select, code) is not None

    def ignored_by(self, code: str) -> str | None:
        """The selector by which the rule is ignored; ``None`` where it counts."""
        ignoring, selecting = longest(self.ignore, code), longest(self.select, code)
        if ignoring is None or selecting is None or _weight(ignoring) < _weight(selecting):
            return None
        return ignoring

    def codes(self) -> tuple[str, ...]:
        """The rules that run, empty where all do."""
        if ALL in self.select:
            return ()
        return tuple(rule.code for rule in rules() if self.runs(rule.code))


def longest(selectors: Iterable[str], code: str) -> str | None:
    """The most specific of the selectors that cover ``code``."""
    covering = [selector for selector in selectors if selector == ALL or code.startswith(selector)]
    return max(covering, key=_weight, default=None)


def selectors(words: Iterable[str], where: str) -> tuple[str, ...]:
    """The selectors in ``words``, each of which may hold several, with commas. Raises `SettingsError`."""
    named = tuple(part.strip().upper() for word in words for part in word.split(","))
    codes = [rule.code for rule in rules()] if named else []
    for selector in named:
        if selector != ALL and not (selector and any(code.startswith(selector) for code in codes)):
            raise unknown(selector, where)
    return named


def _weight(selector: str) -> int:
    return 0 if selector == ALL else len(selector)
