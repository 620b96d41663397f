"""Measure every revision of a model, one after the other, and keep what an earlier run measured. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import hypot

from tieconv.analysis.alignment.compare import Untied
from tieconv.analysis.evolution.evolution_file import EvolutionFile
from tieconv.analysis.evolution.revision_figures import revision_figures
from tieconv.analysis.evolution.revision_names import Revision
from tieconv.analysis.evolution.revision_tables import OpenModel, RevisionTables, identity, opened_tables
from tieconv.checkpoint.results.analysis import Headline
from tieconv.checkpoint.results.evolution import Evolution, RevisionFigures
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.text import count, shown

_ROLES = {"E": "the input embedding", "U": "the head", "T": "the tied table"}


@record
class Request:
    """What to measure.

    ``embed`` and ``head`` are the names of the tables. ``untied`` are the tables to compare a tied table with, and
    ``against`` identifies them.
    """

    embed: str | None = None
    head: str | None = None
    exact: bool | None = None
    untied: Untied | None = None
    against: str = ""

    @property
    def asked(self) -> Mapping[str, object]:
        """The options that change a figure."""
        return {"embed": self.embed, "head": self.head, "exact": self.exact, "against": self.against}


class _Opened:
    """The revisions that are open: at most the first, the previous, and the current one."""

    def __init__(self, open_model: OpenModel, revisions: Sequence[Revision], request: Request) -> None:
        self._open, self._revisions, self._request = open_model, revisions, request
        self._held: dict[int, tuple[ExitStack, str, RevisionTables]] = {}

    def identity(self, number: int) -> str:
        """Return what identifies the content of a revision now. Reads no tensor."""
        if number in self._held:
            return self._held[number][1]
        with self._open(self._revisions[number].source) as (listing, _, revision):
            return identity(listing, revision)

    def tables(self, number: int, expected: str) -> RevisionTables:
        """Return the tables of a revision. Raises `UnreadableError` if its identity is not ``expected``."""
        if number not in self._held:
            with ExitStack() as stack:
                model = stack.enter_context(self._open(self._revisions[number].source))
                now = identity(model[0], model[2])
                if now != expected:
                    raise UnreadableError(
                        f"{shown(self._revisions[number].source)} changed while its tables were measured",
                        "run the command again",
                        "analyze.changed",
                    )
                tables = opened_tables(model, self._request.embed, self._request.head, tokens=number == 0)
                opened = stack.enter_context(tables)
                self._held[number] = stack.pop_all(), now, opened
        return self._held[number][2]

    def keep(self, *numbers: int) -> None:
        """Close all revisions but these."""
        for number in [held for held in self._held if held not in numbers]:
            self._held.pop(number)[0].close()


def evolve(
    model: str,
    revisions: Sequence[Revision],
    open_model: OpenModel,
    request: Request,
    file: EvolutionFile,
    done: Callable[[int, int], None] = lambda done, total: None,
) -> Evolution:
    """Measure the revisions of a model.

    A revision in ``file`` is measured again only if it, the first one or the previous one changed. Raises the errors of
    `opened_tables` and of `compare`.
    """
    opened = _Opened(open_model, revisions, request)
    figures: list[RevisionFigures] = []
    try:
        for number, revision in enumerate(revisions):
            known = (opened.identity(number), *(figures[before].identity for before in _earlier(number).values()))
            measured = file.known(revision.source, request.asked, known)
            if measured is None:
                measured = _measured(
                    opened, revision, number, [known[0], *(each.identity for each in figures)], request
                )
                file.add(measured, request.asked, known)
            figures.append(replace(measured, name=revision.name, step=revision.step))
            opened.keep(0, number)
            done(number + 1, len(revisions))
    finally:
        opened.keep()
    return Evolution(model, _headline(model, figures), tuple(figures))


def _earlier(number: int) -> dict[str, int]:
    """Return the revisions that revision ``number`` is compared with."""
    return {} if number == 0 else {"first": 0, "previous": number - 1}


def _measured(
    opened: _Opened, revision: Revision, number: int, identities: Sequence[str], request: Request
) -> RevisionFigures:
    """Measure a revision. ``identities`` are its own and those of the revisions before it."""
    own, *before = identities
    first = opened.tables(0, before[0] if before else own)
    earlier = {since: opened.tables(at, before[at]) for since, at in _earlier(number).items()}
    now = opened.tables(number, own)
    every = revision_figures(now, earlier, first.tokens, exact=request.exact, untied=request.untied)
    return RevisionFigures(
        revision.name,
        revision.source,
        revision.step,
        own,
        {role: table.record.name for role, table in now.tables.items()},
        tuple(measure for measure, _ in every),
        {measure.name: error for measure, error in every if error},
    )


def _headline(model: str, figures: Sequence[RevisionFigures]) -> Headline:
    """Return the question, the answer from the last revision, and its certainty."""
    final = figures[-1]
    question = f"How do the tables of {shown(model)} change over {count(len(figures), 'revision')}?"
    cosines = [(role, final.measure(f"cosine {role} to first")) for role in _ROLES]
    values = {role: measure.value for role, measure in cosines if measure is not None and measure.value is not None}
    if not values:
        return Headline(question, "The first and the last revision have no table in common.")
    errors = {role: final.errors.get(f"cosine {role} to first", 0.0) for role in values}
    parts = " and ".join(f"{_ROLES[role]} {value:.3f}" for role, value in values.items())
    answer = f"At {shown(final.name)}, the mean cosine of a row with itself at {shown(figures[0].name)} is: {parts}."
    if {"E", "U"} <= set(values):
        apart = values["E"] - values["U"]
        close = abs(apart) <= 3 * hypot(errors["E"], errors["U"])
        further = "The head moved further." if apart > 0 else "The input embedding moved further."
        answer += f" {'Both moved equally far.' if close else further}"
    rows = max(measure.n or 0 for _, measure in cosines if measure is not None)
    sure = f"measured on {rows:,} rows; the standard error is at most {max(errors.values()):.1g}"
    return Headline(question, answer, sure)
