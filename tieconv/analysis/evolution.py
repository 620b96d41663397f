"""Measure every revision of a model, one after the other, and keep what an earlier run measured. Imports numpy."""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from math import hypot, sqrt
from typing import Any

import numpy as np

from tieconv.analysis.alignment import Untied, numbered_table, token_table
from tieconv.analysis.alignment_measures import Compared, Pair, compare
from tieconv.analysis.subject import Tokens, open_tables, read_tokens
from tieconv.analysis.tables import Array, Table, lengths, spans
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.results.analysis import Evolution, Headline, Measure, RevisionFigures
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.errors import RefusedError, UnreadableError
from tieconv.formats import read_checkpoint
from tieconv.formats.strict_json import line_of, parse_line
from tieconv.inspection import inspect_checkpoint
from tieconv.sources import is_hub, is_object, is_remote
from tieconv.sources.local import FileSet, open_files
from tieconv.sources.ranged import RangedFiles
from tieconv.sources.temporary import room_for, temporary_directory
from tieconv.sources.user_files import LineFile, new_file
from tieconv.text import count, shown
from tieconv.version import VERSION

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
                    problem = f"{shown(self._revisions[number].source)} changed while its tables were measured"
                    raise UnreadableError(problem, "run the command again", "analyze.changed")
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
                own, *before = [known[0], *(each.identity for each in figures)]
                first = opened.tables(0, before[0] if before else own)
                earlier = {since: opened.tables(at, before[at]) for since, at in _earlier(number).items()}
                now = opened.tables(number, own)
                every = revision_figures(now, earlier, first.tokens, exact=request.exact, untied=request.untied)
                names = {role: table.record.name for role, table in now.tables.items()}
                errors = {measure.name: error for measure, error in every if error}
                measures = tuple(measure for measure, _ in every)
                measured = RevisionFigures(revision.name, revision.source, revision.step, own, names, measures, errors)
                file.add(measured, request.asked, known)
            figures.append(replace(measured, name=revision.name, step=revision.step))
            opened.keep(0, number)
            done(number + 1, len(revisions))
    finally:
        opened.keep()
    return Evolution(model, _headline(model, figures), tuple(figures))


def _earlier(number: int) -> dict[str, int]:
    return {} if number == 0 else {"first": 0, "previous": number - 1}


def _headline(model: str, figures: Sequence[RevisionFigures]) -> Headline:
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


Figured = tuple[Measure, float]
"""A measure and its standard error, 0 if it has none."""

_SINCE = {
    "first": "mean cosine of each row with itself in the first revision, columns not centred",
    "previous": "mean cosine of each row with itself in the previous revision, columns not centred",
}


def revision_figures(
    now: RevisionTables,
    earlier: dict[str, RevisionTables],
    tokens: Tokens | None,
    *,
    exact: bool | None = None,
    untied: Untied | None = None,
) -> list[Figured]:
    """Return the figures of a revision. ``earlier`` are the tables of the ``first`` and the ``previous`` revision.

    The figures are the cosines with earlier rows, the measures of `compare` for E and U, and the mean norm. A
    tied table is compared with the tables of ``untied`` instead. Rows without a token are left out if ``tokens`` are
    known. Samples, memory and errors are those of `compare`.
    """
    every: list[Figured] = []
    for since, before in earlier.items():
        for role, table in now.tables.items():
            every.append(_change(role, table, since, before.tables.get(role), _used(tokens, table.rows)))
    for compared in _compared(now, tokens, exact, untied):
        errors = compared.by_pair(lambda figure: figure.error or None)
        for measure in compared.measures():
            name, pair = measure.name.rsplit(" ", 1)
            every.append((measure, errors[pair].get(name, 0.0)))
    return [*every, *(_length(role, table, _used(tokens, table.rows)) for role, table in now.tables.items())]


def _used(tokens: Tokens | None, rows: int) -> Array | None:
    return tokens.used(rows) if tokens else None


def _change(role: str, table: Table, since: str, before: Table | None, used: Array | None) -> Figured:
    name = f"cosine {role} to {since}"
    if before is None or (before.rows, before.width) != (table.rows, table.width):
        return Measure(name, None, unit="cosine", says=f"the {since} revision has no such table of this shape"), 0.0
    change = row_change(before, table, used)
    if change is None:
        return Measure(name, None, unit="cosine", says="fewer than two rows have a direction"), 0.0
    cosine, floor, error, rows = change
    return Measure(name, cosine, floor, 1.0, rows, "cosine", _SINCE[since]), error


def _compared(
    now: RevisionTables, tokens: Tokens | None, exact: bool | None, untied: Untied | None
) -> Iterator[Compared]:
    if "U" in now.tables:
        tables = [
            numbered_table(f"table {role}", table, table.rows, _used(tokens, table.rows))
            for role, table in now.tables.items()
        ]
        yield compare(tables, {"E→U": (0, 1)}, exact=exact)
    elif untied is not None:
        tied = token_table("the tied table", now.tables["T"], tokens)
        pairs: dict[str, Pair] = {"E→T": (1, 0), "U→T": (2, 0)}
        yield compare([tied, untied.embedding, untied.head], pairs, exact=exact)


def _length(role: str, table: Table, used: Array | None) -> Figured:
    norms = lengths(table)
    norms = norms[np.isfinite(norms) if used is None else used & np.isfinite(norms)]
    rows, says = len(norms), "mean length (Euclidean norm) of the rows"
    mean, error = (float(norms.mean()), float(norms.std()) / sqrt(rows)) if rows else (None, 0.0)
    return Measure(f"mean norm {role}", mean, n=rows, says=says), error


# Open the tables of a revision. Tables of a remote model are fetched once, to a temporary directory.

OpenModel = Callable[[str], AbstractContextManager[tuple[Listing, RangedFiles | FileSet, str]]]
"""Opens a MODEL: its listing, its reader, and its commit or fingerprint, which is empty for local files."""


@record
class RevisionTables:
    """The tables of a revision by role: E and U of an untied model, T of a tied one.

    ``tokens`` are those of the tokenizer if it was read.
    """

    tables: dict[str, Table]
    tokens: Tokens | None = None


def identity(listing: Listing, revision: str) -> str:
    """Return what identifies the content of an open model: its commit, or a digest of its local files' state."""
    if revision:
        return revision
    digest = hashlib.sha256()
    for name in listing.entries:
        status = os.stat(os.path.join(listing.root, name))
        state = (name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        digest.update(repr(state).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@contextmanager
def opened_tables(
    model: tuple[Listing, RangedFiles | FileSet, str], embed: str | None, head: str | None, *, tokens: bool
) -> Iterator[RevisionTables]:
    """Yield the tables of an open model. Tables that a network holds are copied first.

    With ``tokens`` the tokenizer is read too. Raises `UnreadableError` as `open_tables` does.
    """
    listing, files, _ = model
    checkpoint = read_checkpoint(listing, files)
    evidence = inspect_checkpoint(checkpoint, files, Depth.HEADER, embed=embed, head=head)
    _, first, second = open_tables(evidence, files)
    tables = {"T": first} if second is None else {"E": first, "U": second}
    vocabulary = read_tokens(files, checkpoint.companions, checkpoint.config_values)[0] if tokens else None
    with ExitStack() as stack:
        if getattr(files, "costly", False):
            tables = stack.enter_context(_copied(tables, listing.source))
        yield RevisionTables(tables, vocabulary)


@contextmanager
def _copied(tables: dict[str, Table], source: str) -> Iterator[dict[str, Table]]:
    """Yield copies of the tables in a temporary directory, which is removed at the end."""
    needed = sum(table.rows * table.width * table.form.width for table in tables.values())
    with temporary_directory() as directory, open_files(directory) as files:
        with room_for(f"The tables of {shown(source)}", needed, "analyze.copy"):
            copies = {role: _copy(table, role, directory, files) for role, table in tables.items()}
        yield copies


def _copy(table: Table, role: str, directory: str, files: FileSet) -> Table:
    with new_file(os.path.join(directory, role)) as out:
        for start, stop in spans(table.rows, table.width):
            out.write(table.bits(start, stop).reshape(-1).view("u1").data)
        length = out.tell()
    return Table(files, replace(table.record, range=ByteRange(role, 0, length), stride=None, storage=None))


# Measure how far the rows of a table moved: the mean cosine of each row with its earlier self. Imports numpy.


def row_change(earlier: Table, now: Table, used: Array | None) -> tuple[float, float, float, int] | None:
    """Compare two tables of one shape row by row, not centred; ``None`` if fewer than two rows have a direction.

    Returns the mean cosine of rows with their earlier values, its floor, its standard error, and the number of rows.
    The floor is the mean cosine of a row with the earlier values of another row, over all pairs. ``used`` (rows,)
    chooses rows. A row of zeros, or with a number that is not finite, does not count.
    """
    cosines: list[Array] = []
    sums = np.zeros((2, now.width))
    for start, stop in spans(now.rows, now.width):
        first, second = (_units(table.singles(start, stop)) for table in (earlier, now))
        good = np.isfinite(first[:, 0]) & np.isfinite(second[:, 0])
        if used is not None:
            good &= used[start:stop]
        first, second = first[good], second[good]
        cosines.append(np.einsum("ij,ij->i", first, second).astype(np.float64))
        sums += first.sum(0, dtype=np.float64), second.sum(0, dtype=np.float64)
    values = np.concatenate(cosines)
    rows = len(values)
    if rows < 2:
        return None
    floor = (float(sums[0] @ sums[1]) - float(values.sum())) / (rows * (rows - 1))
    return float(values.mean()), floor, float(values.std()) / sqrt(rows), rows


def _units(rows: Array) -> Array:
    """Return the rows (n, d) with length 1, all NaN for a row without a direction."""
    with np.errstate(all="ignore"):
        scale = np.abs(rows).max(axis=1, keepdims=True)
        rows = rows / scale  # squares of very long or short rows leave the range of float32
        units: Array = rows / np.sqrt(np.einsum("ij,ij->i", rows, rows))[:, None]
    units[~np.isfinite(units).all(axis=1)] = np.nan
    return units


SCHEMA = "tieconv.evolution-run/1"

_NUMBERS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


class EvolutionFile:
    """The revisions that an earlier run measured, to which this run adds its own; nothing without a ``path``."""

    def __init__(self, path: str | None) -> None:
        self._file = LineFile(path, SCHEMA) if path else None
        self._known: dict[str, tuple[Mapping[str, Any], RevisionFigures]] = {}
        for key, figures in self._file.read(_parsed) if self._file else ():
            self._known[figures.source] = key, figures

    def known(self, source: str, asked: Mapping[str, object], identities: Sequence[str]) -> RevisionFigures | None:
        """Return what an earlier run measured of a revision, if options and identities are those of now.

        ``identities`` are of the revision and of those that it is compared with.
        """
        key, figures = self._known.get(source, (None, None))
        return replace(figures, reused=True) if figures and key == _key(asked, identities) else None

    def add(self, figures: RevisionFigures, asked: Mapping[str, object], identities: Sequence[str]) -> None:
        """Append a revision. Raises `DestinationError`."""
        if self._file is not None:
            self._file.append(line_of({"key": _key(asked, identities), "revision": figures.to_dict()}, SCHEMA))


def _key(asked: Mapping[str, object], identities: Sequence[str]) -> dict[str, object]:
    return {"tieconv": VERSION, "asked": dict(asked), "identities": list(identities)}


def _parsed(line: bytes) -> tuple[Mapping[str, Any], RevisionFigures]:
    entry = parse_line(line, SCHEMA)
    return entry["key"], _figures(entry["revision"])


def _figures(document: Mapping[str, Any]) -> RevisionFigures:
    """Return the record of an entry of ``revisions``. Raises one of `MALFORMED` for others."""
    name, source, own = (str(document[key]) for key in ("name", "source", "identity"))
    step = None if document["step"] is None else int(document["step"])
    tables = {str(role): str(table) for role, table in document["tables"].items()}
    errors = {str(entry["name"]): entry["standard_error"] for entry in document["measures"]}
    known = {measure: float(error) for measure, error in errors.items() if error is not None}
    return RevisionFigures(name, source, step, own, tables, tuple(map(_measure, document["measures"])), known)


def _measure(document: Mapping[str, Any]) -> Measure:
    value, floor, ceiling = (_number(document[key]) for key in ("value", "floor", "ceiling"))
    n = None if document["n"] is None else int(document["n"])
    return Measure(str(document["name"]), value, floor, ceiling, n, str(document["unit"]), str(document["says"]))


def _number(value: object) -> float | None:
    if value is None:
        return None
    return _NUMBERS[value] if isinstance(value, str) else float(value)  # type: ignore[arg-type]  # one of `MALFORMED`


# Find the models that a list of revisions names, and the training step of each.

_STEP = re.compile(r"(?:step|iter|checkpoint|ckpt)[^0-9]{0,2}(\d{1,15})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,15}(?!\d)")


@record
class Revision:
    """A revision as the user wrote it, its MODEL, and its training step if the name has a number."""

    name: str
    source: str
    step: int | None


def revisions(model: str, listed: str | Sequence[str]) -> tuple[Revision, ...]:
    """Return the revisions, in the order of their steps if every name has one.

    ``listed`` separates the names with commas or white space. A name is a revision of a model on the Hub. Otherwise it
    is a directory below MODEL, or a whole MODEL (``hf://…``, ``s3://…``, ``/…``).

    Raises `RefusedError` for fewer than two names, for a name twice, and for a MODEL that already has a revision.
    """
    names = re.split(r"[,\s]+", listed.strip(", \t\r\n")) if isinstance(listed, str) else list(listed)
    if len(names) < 2:
        problem = "a list of revisions needs two names or more"
        raise RefusedError(problem, "separate their names with commas: step1000,step2000")
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise RefusedError(f"the list of revisions has {shown(repeated)} twice", "name each revision once")
    listed_revisions = [Revision(name, _source(model, name), _step(name)) for name in names]
    steps = [revision.step for revision in listed_revisions if revision.step is not None]
    if len(set(steps)) == len(listed_revisions):
        return tuple(sorted(listed_revisions, key=lambda revision: revision.step or 0))
    return tuple(Revision(revision.name, revision.source, None) for revision in listed_revisions)


def _source(model: str, name: str) -> str:
    if is_remote(name) or os.path.isabs(name):
        return name
    if is_hub(model):
        from tieconv.sources.hub import RepoPath, parse

        path = parse(model)
        if path.revision is not None:
            hint = f"name the model without a revision: {shown(RepoPath(path.repo, None, path.path))}"
            raise RefusedError(f"{shown(model)} already names the revision {shown(path.revision)}", hint)
        return str(parse(str(RepoPath(path.repo, name, path.path))))
    if is_object(model):
        return f"{model.rstrip('/')}/{name}"
    return os.path.join(model, name)


def _step(name: str) -> int | None:
    """Return the number after a word such as "step" in the last part of a name, or its first number."""
    end = re.split(r"[/@]", name.rstrip("/"))[-1]
    match = _STEP.search(end)
    if match:
        return int(match[1])
    match = _NUMBER.search(end)
    return int(match[0]) if match else None
