"""Decide from three measures whether a tied table behaves as an output table or as an input table."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from tieconv.checkpoint.value_type import record

_WORDS = {"knn": "neighbours", "rsa": "pair similarities", "norms": "the norm profile"}
_ERRORS = 3.0
"""Standard errors that a difference must exceed to count."""

Side = tuple[float, float, float, float | None]
"""(value, chance floor, standard error, ceiling or ``None``) of the tied table against one role."""


@record
class Contest:
    """One measure of T against the input table and against the output table."""

    measure: str
    embedding: Side
    head: Side

    @property
    def winner(self) -> str:
        """``output`` or ``input``, or ``neither`` if both are at chance or too close to each other."""
        best = max(self.embedding, self.head, key=lambda side: side[0])
        if best[0] - best[1] <= _ERRORS * best[2]:
            return "neither"
        difference = self._score(self.head) - self._score(self.embedding)
        if abs(difference) <= _ERRORS * hypot(self._error(self.head), self._error(self.embedding)):
            return "neither"
        return "output" if difference > 0 else "input"

    def to_dict(self) -> dict[str, object]:
        """One entry of the section's ``evidence``."""
        return {
            "measure": self.measure,
            "input": self._score(self.embedding),
            "output": self._score(self.head),
            "of_ceiling": self._relative,
            "winner": self.winner,
        }

    @property
    def _relative(self) -> bool:
        """Whether both ceilings are far enough above chance to divide by."""
        return all(top is not None and top - floor > 6 * error for _, floor, error, top in (self.embedding, self.head))

    def _score(self, side: Side) -> float:
        """Return the value above chance, as a share of the ceiling above chance if that is known."""
        return (side[0] - side[1]) / self._scale(side)

    def _error(self, side: Side) -> float:
        return side[2] / self._scale(side)

    def _scale(self, side: Side) -> float:
        _, floor, _, top = side
        return top - floor if self._relative and top is not None else 1.0


def verdict(contests: Sequence[Contest]) -> tuple[str, str]:
    """Return ``output``, ``input``, ``mixed`` or ``none``, and the sentence that says it."""
    won = {side: [c.measure for c in contests if c.winner == side] for side in ("output", "input")}
    if not won["output"] and not won["input"]:
        return "none", (
            "The measures do not show which role the tied table has. It is at chance against both tables, or equally "
            "far from both."
        )
    for side, opposite in (("output", "input"), ("input", "output")):
        if len(won[side]) >= 2 and not won[opposite]:
            return side, (
                f"The tied table is {side}-shaped. It agrees more with the untied {_role(side)} than with the untied "
                f"{_role(opposite)} in {_and([_WORDS[name] for name in won[side]])}."
            )
    if not (won["output"] and won["input"]):
        return "mixed", f"The measures do not decide: {_votes(won)[0]}. The others favour neither role."
    return "mixed", "The measures do not agree on one role: " + "; ".join(_votes(won)) + "."


def certainty(shape: str, contests: Sequence[Contest]) -> str:
    """Return how sure the verdict ``shape`` is."""
    if shape not in ("output", "input"):
        return "undecided, because the measures do not give the answer"
    agree = sum(contest.winner == shape for contest in contests)
    by = f"each by more than {_ERRORS:g} standard errors"
    if agree == len(contests):
        return f"all {agree} measures agree, {by}"
    return f"{agree} of {len(contests)} measures agree, {by}, and none contradicts"


def _votes(won: dict[str, list[str]]) -> list[str]:
    return [
        f"{_and([_WORDS[name] for name in names])} {_verb(names)} the {_role(side)}"
        for side, names in won.items()
        if names
    ]


def _verb(names: list[str]) -> str:
    return "favours" if names == ["norms"] else "favour"


def _role(side: str) -> str:
    return "head" if side == "output" else "input embedding"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
