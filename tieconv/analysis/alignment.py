"""Compare a tied table with the two tables of an untied model, to see which role it has.

The measures are those of Lopardo et al. 2026 (arXiv 2603.26663), each with its chance floor. A second untied model
gives ceilings: how well another seed reproduces the same role. The verdict uses neighbours, pair similarities and the
norm profile. Fitted maps are only reported: for unrelated tables their mean cosine is not 0. Input tables are also
less reproducible than output tables. Imports numpy: import it lazily.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from tieconv.analysis import Findings
from tieconv.analysis.alignment_measures import Compared, Figure, Figures, Pair, ceiling, compare, plane
from tieconv.analysis.relation import Related, equal_tables
from tieconv.analysis.retie_cost import MAPPED
from tieconv.analysis.subject import Subject, Tokens, open_subject
from tieconv.analysis.tables import Table as StoredTable
from tieconv.analysis.token_tables import FEWEST, Array, Table, has_direction, token_bytes
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.results.analysis import POINTS, Analysis, Headline, Kinship, Section
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.formats import read_checkpoint
from tieconv.inspection import inspect_checkpoint
from tieconv.sources.local import locate, open_files
from tieconv.text import Hint, call, option, shown

ALIGNMENT = "Alignment"

_PAIRS: dict[str, Pair] = {"E→U": (1, 2), "E→T": (1, 0), "U→T": (2, 0)}
_CEILINGS = {"E→T": "E→E'", "U→T": "U→U'"}
_NORMS = {"T": "tied_norm", "E": "embed_norm", "U": "head_norm"}


@record
class Untied:
    """The input and the output table of an untied model."""

    embedding: Table
    head: Table


def align(tied: Table, untied: Untied, second: Untied | None = None, *, exact: bool | None = None) -> Section:
    """Compare the tied table T with the input table E and the output table U of ``untied``.

    ``second``, an untied model of another seed, gives the ceilings. Tables of different widths get only the
    least-squares map. Samples, memory and errors are those of `compare`.
    """
    tables = [tied, untied.embedding, untied.head, *((second.embedding, second.head) if second else ())]
    pairs = dict(_PAIRS) | ({"E→E'": (1, 3), "U→U'": (2, 4)} if second else {})
    compared = compare(tables, pairs, exact=exact)
    contests = tuple(_contest(name, compared.figures) for name in ("knn", "rsa", "norms"))
    shape, sentence = verdict(contests)
    section = _section(ALIGNMENT, sentence, compared, ("T", "E", "U", "E'", "U'"), certainty(shape, contests))
    role = {"shape": shape, "joined_by": compared.joined.by, "evidence": contests}
    return replace(section, detail={**section.detail, **role})


def _section(title: str, sentence: str, compared: Compared, letters: Sequence[str], certainty: str) -> Section:
    """Return the section of compared tables. ``detail`` has figures for each measure of each pair of tables."""
    joined = compared.joined
    tables = {letter: table.name for letter, table in zip(letters, joined.tables, strict=False)}
    places = np.linspace(0, joined.count - 1, min(POINTS, joined.count)).astype(int)
    norms = {letter: view.norms[places].tolist() for letter, view in zip(letters, compared.views, strict=False)}
    series = {name: tuple(norms[letter]) for letter, name in _NORMS.items() if letter in norms}
    detail = {
        "tables": tables,
        "tokens": joined.count,
        "left_out": joined.dropped,
        "neighbours": compared.views[0].neighbours.shape[1],
        "gaussian_floor": compared.by_pair(lambda figure: figure.formula),
        "standard_error": compared.by_pair(lambda figure: figure.error or None),
    }
    legend = "; ".join(f"{letter}: {name}" for letter, name in tables.items())
    return Section(title, sentence, tuple(compared.measures(_CEILINGS)), series, detail, certainty, legend)


def _contest(name: str, figures: Figures) -> Contest:
    sides = []
    for pair in ("E→T", "U→T"):
        figure, top = figures[pair][name], ceiling(figures, _CEILINGS[pair], name)
        assert figure.value is not None
        sides.append((figure.value, figure.floor, figure.error, top))
    return Contest(name, *sides)


# Decide from three measures whether a tied table behaves as an output table or as an input table.

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
        if abs(difference) <= _ERRORS * np.hypot(self._error(self.head), self._error(self.embedding)):
            return "neither"
        return "output" if difference > 0 else "input"

    def to_dict(self) -> dict[str, object]:
        """One entry of the section's ``evidence``."""
        scores = {"input": self._score(self.embedding), "output": self._score(self.head)}
        return {"measure": self.measure, **scores, "of_ceiling": self._relative, "winner": self.winner}

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
    """Return how sure the verdict ``shape`` is; empty where the measures decide nothing."""
    if shape not in ("output", "input"):
        return ""
    agree = sum(contest.winner == shape for contest in contests)
    by = f"each by more than {_ERRORS:g} standard errors"
    if agree == len(contests):
        return f"all {agree} measures agree, {by}"
    return f"{agree} of {len(contests)} measures agree, {by}, and none contradicts"


def _votes(won: dict[str, list[str]]) -> list[str]:
    return [
        f"{_and([_WORDS[name] for name in names])} {'favours' if names == ['norms'] else 'favour'} the {_role(side)}"
        for side, names in won.items()
        if names
    ]


def _role(side: str) -> str:
    return "head" if side == "output" else "input embedding"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# Compare the input embedding E and the head U of one untied model by the measures of the alignment.


PAIR = "E→U"

WORK = 10**11
"""The most products of a Gram matrix, V·d², that are computed without being asked for: some ten seconds."""

OPEN = MAPPED | {Kinship.DRIFT, Kinship.PARTLY_EQUAL, Kinship.INDEPENDENT, Kinship.UNKNOWN}
"""Relations that do not answer the question."""

_FEWEST = 32
_MEASURE_WORDS = {
    "procrustes": "the rows after the best rotation",
    "least squares": "the rows after the best linear map",
    "cka": "the similarities of all tokens (CKA)",
    "knn": "the nearest tokens",
    "rsa": "the similarities of random pairs (RSA)",
    "norms": "the row lengths",
}


def wanted(subject: Subject, related: Related, similarity: bool | None) -> bool:
    """Return whether to compare the tables. Without an answer of the user, long or broken ones are not compared."""
    rows, norms = related.moments.rows, related.moments.norms
    if rows < _FEWEST or similarity is not None:
        return rows >= _FEWEST and similarity is True
    tokens = np.ones(rows, bool) if subject.used is None else subject.used[:rows]
    directed = tokens & has_direction(norms[0][:rows]) & has_direction(norms[1][:rows])
    enough = int(np.count_nonzero(directed)) >= FEWEST
    return enough and related.kind in OPEN and rows * subject.embed.width**2 <= WORK


def own_tables(subject: Subject, *, exact: bool | None = None) -> Section:
    """Compare the two tables of an untied model, row by row. Rows without a token are left out if they are known.

    Samples, memory and errors are those of `compare`.
    """
    assert subject.head is not None
    rows = min(subject.embed.rows, subject.head.rows)
    tables = [
        numbered_table("input embedding", subject.embed, rows, subject.used),
        numbered_table("output embedding", subject.head, rows, subject.used),
    ]
    compared = compare(tables, {PAIR: (0, 1)}, exact=exact)
    sure = "measured; chance is the floor of each figure, with the tokens of one table permuted"
    return _section("Similarity", _similarity_sentence(compared), compared, "EU", sure)


def numbered_table(name: str, stored: StoredTable, rows: int, used: Array | None) -> Table:
    """Return the first ``rows`` rows of a table. The rows marked in ``used`` are tokens, named by their number."""
    tokens = None if used is None else [int(row) if used[row] else None for row in range(rows)]
    return Table(name, rows, stored.width, stored.pick_singles, tokens)


def _similarity_sentence(compared: Compared) -> str:
    """Return the sentence: what the tables share above chance, and the two figures that are cited most."""
    row = compared.figures[PAIR]
    above = [words for name, words in _MEASURE_WORDS.items() if _above(row[name], compared.joined.count)]
    knn, turned = row["knn"], row["procrustes"]
    assert knn.value is not None and turned.value is not None
    figures = (
        f"They share {knn.value:.2%} of a token's nearest tokens (chance {knn.floor:.2%}). After the best rotation "
        f"the mean cosine is {turned.value:.3f} (chance {turned.floor:.3f})."
    )
    if not above:
        return f"The two tables agree no more than chance. {figures}"
    return f"The two tables agree more than chance in {_and(above)}. {figures}"


def _above(figure: Figure, tokens: int) -> bool:
    """Return whether a figure is above its floor by three standard errors of the figure and of the permutation."""
    error = float(np.hypot(figure.error, 1 / np.sqrt(tokens)))
    return figure.value is not None and figure.value - figure.floor > 3 * error


# Align the tables of models: `tieconv analyze TIED --against UNTIED --second UNTIED2`. Imports numpy.


@contextmanager
def opened(path: str | Path) -> Iterator[Subject]:
    """Yield the model of a path while its files are open. Raises `UnreadableError` as `analyze` does."""
    listing = locate(str(path))
    with open_files(listing.root) as files:
        checkpoint = read_checkpoint(listing, files)
        yield open_subject(inspect_checkpoint(checkpoint, files, Depth.HEADER), files)


def extended(
    analysis: Analysis,
    findings: Findings,
    against: str | Path | None = None,
    second: str | Path | None = None,
    *,
    maps: bool = False,
    exact: bool | None = None,
    similarity: bool | None = None,
) -> Analysis:
    """Return the analysis with an alignment if ``against`` names an untied model, and with maps if ``maps`` is set.

    The two tables of an untied model are compared with each other too: see `wanted` for ``similarity``. Raises the
    errors of `align_models` and `opened`, and `RefusedError` for a ``second`` without ``against``.
    """
    if second is not None and against is None:
        command = call("analyze", Hint("TIED"), against=Hint("UNTIED"), second=Hint("UNTIED2"))
        raise RefusedError("--second needs --against", Hint("name the untied model: ", command))
    sections = list(analysis.sections)
    related = findings.related
    if related is not None and wanted(findings.subject, related, similarity):
        sections.append(own_tables(findings.subject, exact=exact))
    if against is not None:
        with ExitStack() as stack:
            untied, second_model = (stack.enter_context(opened(path)) if path else None for path in (against, second))
            assert untied is not None
            aligned = align_models(findings.subject, untied, second_model, exact=exact)
            sections.append(aligned)
            question = f"Which table of {shown(_source(untied))} does the tied table resemble?"
            analysis = replace(analysis, answered=Headline(question, aligned.sentence, aligned.certainty))
    if maps:
        sections += _maps(findings)
    return replace(analysis, sections=tuple(sections))


def _maps(findings: Findings) -> Iterator[Section]:
    """Yield the map of each table that has at least three rows with a direction."""
    subject = findings.subject
    for stored, role in ((subject.embed, "input embedding"), (subject.head, "output embedding")):
        if stored is not None:
            table = Table(role, stored.rows, stored.width, stored.pick_singles)
            # Values by row that colour the map: the difference of the two tables, and the frequency
            # in the text.
            colours: dict[str, Array] = {}
            if findings.related is not None and findings.related.moments.unequal.any():
                colours["difference of the two rows"] = _filled(findings.related.moments.distances, stored.rows)
            if findings.measured is not None:
                colours["log10(1 + times in the text)"] = _filled(np.log10(1 + findings.measured.counts), stored.rows)
            marks = [values > 0 for values in colours.values()]
            section = plane(table, colours, f"Map: {role}", np.logical_or.reduce(marks) if marks else None)
            if section is not None:
                yield section


def _filled(values: Array, rows: int) -> Array:
    """Return the values of the first ``rows`` rows, with 0 for rows without a value."""
    whole = np.zeros(rows)
    shared = min(rows, len(values))
    whole[:shared] = np.nan_to_num(values[:shared], posinf=0.0)
    return whole


def align_models(
    tied: Subject, untied: Subject, second: Subject | None = None, *, exact: bool | None = None
) -> Section:
    """Return the alignment of the tables of models, matched by the text of their tokens.

    Raises `RefusedError` if ``tied`` has two different tables, if a reference is tied, or if no tokens match.
    """
    if tied.head is not None and not equal_tables(tied.embed, tied.head):
        problem = f"{shown(_source(tied))} has two tables that differ, but alignment needs a tied table"
        raise RefusedError(problem, Hint("see how they relate: ", call("analyze", _source(tied))))
    if second is not None:
        for mine, theirs in ((untied.embed, second.embed), (untied.output, second.output)):
            if mine.width == theirs.width and mine.rows == theirs.rows and equal_tables(mine, theirs):
                problem = (
                    f"{shown(_source(second))} and {shown(_source(untied))} have the same {shown(mine.record.name)}"
                )
                hint = Hint("name another untied model with ", option("second"), ", or omit ", option("second"))
                raise RefusedError(f"{problem}, but the ceilings need a model of another seed", hint)
    references = [untied_tables(model) for model in (untied, second) if model is not None]
    tied_table, ceilings = table_of(tied, tied.embed, "tied table"), references[1] if second is not None else None
    return align(tied_table, references[0], ceilings, exact=exact)


def table_of(subject: Subject, stored: StoredTable, role: str) -> Table:
    """Return a stored table, (rows, width), with the tokens of its rows."""
    return token_table(f"{role} of {shown(_source(subject))}", stored, subject.tokens)


def token_table(name: str, stored: StoredTable, tokens: Tokens | None) -> Table:
    """Return a stored table whose rows are named by the text of their tokens."""
    text = token_bytes(tokens.text, stored.rows) if tokens else None
    return Table(name, stored.rows, stored.width, stored.pick_singles, text)


def untied_tables(subject: Subject) -> Untied:
    """Return both tables of an untied model. Raises `RefusedError` if it has one table."""
    if subject.head is None or equal_tables(subject.embed, subject.head):
        problem = "stores one table" if subject.head is None else "has two equal tables"
        hint = Hint("name an untied model: ", call("analyze", Hint("TIED"), against=Hint("UNTIED")))
        raise RefusedError(f"{shown(_source(subject))} {problem}, but a reference must be untied", hint)
    return Untied(
        table_of(subject, subject.embed, "input embedding"), table_of(subject, subject.head, "output embedding")
    )


def _source(subject: Subject) -> str:
    return subject.evidence.checkpoint.source
