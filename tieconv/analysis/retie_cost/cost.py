"""The cost of re-tying for each survivor: a certified bound if the weights alone prove one."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.certificate.measured_releases import RELEASES
from tieconv.analysis.model.series import ranges
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Array
from tieconv.analysis.relation.related import Related
from tieconv.analysis.retie_cost.bounds import Bound, Change, bound
from tieconv.checkpoint.results.analysis import Kinship, Measure
from tieconv.checkpoint.value_type import record
from tieconv.text import shown

FREE = frozenset({Kinship.ALIAS, Kinship.BIT_EQUAL})
"""Classes in which a re-tie changes nothing."""

REFUSED = frozenset(
    {Kinship.INDEPENDENT, Kinship.PARTLY_EQUAL, Kinship.UNKNOWN, Kinship.ROW_SUBSET, Kinship.ROW_PERMUTATION}
)
"""Classes in which one table cannot replace the other."""

MAPPED = frozenset({Kinship.ORTHOGONAL, Kinship.SPD, Kinship.LINEAR})
"""Classes in which a matrix that no norm can hold maps one table to the other."""

_NATS = "nats/token"

_LISTED = 8


@record
class Costs:
    """The cost of each survivor.

    ``certified`` holds the bound on the KL by survivor, ``None`` if the weights prove none. ``head`` is the change of
    the head if the embedding survives. ``free`` says that a re-tie changes nothing. ``uncovered`` lists, as text, the
    ids that the certificate of a surviving head does not cover.
    """

    certified: dict[str, float | None]
    head: Bound | None
    measures: tuple[Measure, ...]
    free: bool = False
    uncovered: str = ""


def costs(subject: Subject, related: Related) -> Costs:
    """Return the cost of each survivor. Reads both tables about six times if they differ and may be re-tied."""
    if subject.flip.taken_up:
        return _free("the tied class multiplies its logits by the factor itself")
    if subject.flip.barred:
        return Costs({}, None, ())
    third = subject.flip.third
    if related.kind in FREE and not third:
        return _free("the tables are equal")
    if related.kind in REFUSED | MAPPED or subject.head is None or not one_shape(subject):
        return Costs({}, None, ())
    if third:
        return _none(
            f"no bound from the weights: a re-tie would also replace {shown(third)}, which differs; measure with --text"
        )
    head_bound = _head_change(subject, related)
    rows, why = _unread(subject, related)
    certified = {
        "embed": head_bound.kl if head_bound and head_bound.finite else None,
        "head": None if why else 0.0,
        "mean": None,
    }
    head = _unread_measure(why, rows)
    mean = Measure("KL bound, mean survives", None, unit=_NATS, says=_input(""))
    uncovered = "" if why else shown_ranges(rows)
    return Costs(
        certified, head_bound, (*_embed_measures(head_bound, subject.withheld), head, mean), uncovered=uncovered
    )


def one_shape(subject: Subject) -> bool:
    """Return whether both tables have the same number of rows, as a tied table must."""
    return subject.output.rows == subject.embed.rows


def _free(says: str) -> Costs:
    survivors = ("embed", "head", "mean")
    measures = tuple(Measure(f"KL bound, {name} survives", 0.0, unit=_NATS, says=says) for name in survivors)
    return Costs(dict.fromkeys(survivors, 0.0), None, measures, free=True)


def _none(says: str) -> Costs:
    measures = tuple(Measure(f"KL bound, {name} survives", None, unit=_NATS, says=says) for name in ("embed", "head"))
    return Costs({"embed": None, "head": None}, None, measures)


def _head_change(subject: Subject, related: Related) -> Bound | None:
    if subject.final is None or subject.head is None:
        return None
    used = subject.used
    if used is not None:  # a zero row has the logit 0, so it has a probability even if no token uses it
        used = used | (related.moments.norms[1] == 0)
    return bound(Change(subject.embed, subject.head, subject.final), used)


def _unread(subject: Subject, related: Related) -> tuple[Array, str]:
    """Return the rows that differ, and why an input may read one of them; empty if no input does.

    Between two types a row also differs if it is equal only after rounding.
    """
    moments = related.moments
    rows = np.flatnonzero(moments.unequal | (moments.distances != 0) if moments.cast else moments.unequal)
    tokens = subject.tokens
    if tokens is None:
        return rows, subject.unlisted or "tieconv does not know which ids have a token"
    if tokens.used(subject.output.rows)[rows].any():
        return rows, "some of these rows have a token"
    if tokens.possible(subject.output.rows)[rows].any():
        return rows, "transformers may give these ids to tokens that the vocabulary lacks"
    fed = sorted(subject.fed & set(map(int, rows)))
    if fed:
        return rows, f"the model reads the id {fed[0]} with every text"
    return rows, subject.unfed or tokens.undecided


def _embed_measures(head_bound: Bound | None, withheld: str) -> tuple[Measure, ...]:
    if head_bound is None:
        why = f"no bound: {withheld}; measure with --text"
        return (Measure("KL bound, embed survives", None, unit=_NATS, says=why),)
    if not head_bound.finite:
        why = "no bound: a table or the last norm holds NaN or infinity"
        return (Measure("KL bound, embed survives", None, unit=_NATS, says=why),)
    return (
        Measure("KL bound, embed survives", head_bound.kl, unit=_NATS, says="certified for every input"),
        Measure(
            "log-probability bound, embed survives",
            head_bound.log_p,
            unit="nats",
            says="certified for every input and token",
        ),
        Measure(
            "KL estimate, embed survives",
            head_bound.estimate,
            unit=_NATS,
            says="for random hidden states and equally likely tokens. Right for rounding; up to 10 times too low if "
            "the head was trained further",
        ),
    )


def _unread_measure(why: str, rows: Array) -> Measure:
    name = "KL bound, head survives"
    if why:
        return Measure(name, None, unit=_NATS, says=_input(why))
    return Measure(name, 0.0, n=len(rows), unit=_NATS, says=f"certified for {scope(shown_ranges(rows))}")


def _input(why: str) -> str:
    reason = f" ({why})" if why else ""
    return f"no bound from the weights: input rows change{reason}, and so does every layer; measure with --text"


def scope(uncovered: str) -> str:
    """Name the inputs that no change of the input rows ``uncovered`` affects."""
    releases = f"{', '.join(RELEASES[:-1])} and {RELEASES[-1]}"
    return (
        f"every text that this model's tokenizer files encode (transformers {releases}). It does not cover ids that "
        f"you pass, generate or add later: {uncovered}"
    )


def shown_ranges(rows: Array) -> str:
    """Return row numbers as text, at most eight ranges: ``3, 148-159``."""
    listed = ranges(rows, len(rows))
    texts = [f"{first}" if first + 1 == end else f"{first}-{end - 1}" for first, end in listed[:_LISTED]]
    return ", ".join(texts) + (f" and {len(listed) - _LISTED:,} more ranges" if len(listed) > _LISTED else "")
