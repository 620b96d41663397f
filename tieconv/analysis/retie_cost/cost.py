"""What re-tying costs by survivor: certified where the weights alone can say, else left to a measurement."""

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
"""Classes in which nothing changes, whoever survives."""

REFUSED = frozenset(
    {Kinship.INDEPENDENT, Kinship.PARTLY_EQUAL, Kinship.UNKNOWN, Kinship.ROW_SUBSET, Kinship.ROW_PERMUTATION}
)
"""Classes in which one table cannot stand for the other."""

MAPPED = frozenset({Kinship.ORTHOGONAL, Kinship.SPD, Kinship.LINEAR})
"""Classes in which a matrix that no norm can hold stands between the two."""

_NATS = "nats/token"

_LISTED = 8


@record
class Costs:
    """``certified`` bounds on the KL by survivor, ``None`` where the weights cannot say; ``head`` is the change of the
    head where the embedding survives. ``free`` where a re-tie changes nothing. ``uncovered`` are the ids, as text, that
    the certificate of a surviving head says nothing about.
    """

    certified: dict[str, float | None]
    head: Bound | None
    measures: tuple[Measure, ...]
    free: bool = False
    uncovered: str = ""


def costs(subject: Subject, related: Related) -> Costs:
    """The cost of each survivor. Reads both tables some six times where they differ and may be re-tied."""
    if subject.flip.taken_up:
        return _free("the tied class multiplies its logits by that factor itself")
    if subject.flip.barred:
        return Costs({}, None, ())
    third = subject.flip.third
    if related.kind in FREE and not third:
        return _free("the tables are equal")
    if related.kind in REFUSED | MAPPED or subject.head is None or not one_shape(subject):
        return Costs({}, None, ())
    if third:
        return _none(
            f"none from the weights: {shown(third)} differs as well, and would be replaced; measure it with --text"
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
    """Whether both tables have as many rows, as a tied one must."""
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
    if used is not None:  # a zero row has the logit 0, and so a probability that training never took from it
        used = used | (related.moments.norms[1] == 0)
    return bound(Change(subject.embed, subject.head, subject.final), used)


def _unread(subject: Subject, related: Related) -> tuple[Array, str]:
    """(the rows that differ, why an input may read one): the second is empty where no text becomes one of their ids.

    Of two types a row that is equal once it is rounded differs all the same.
    """
    moments = related.moments
    rows = np.flatnonzero(moments.unequal | (moments.distances != 0) if moments.cast else moments.unequal)
    tokens = subject.tokens
    if tokens is None:
        return rows, subject.unlisted or "which ids have a token is not known"
    if tokens.used(subject.output.rows)[rows].any():
        return rows, "the input rows of tokens change"
    if tokens.possible(subject.output.rows)[rows].any():
        return rows, "transformers may give these ids to tokens that the vocabulary lacks"
    fed = sorted(subject.fed & set(map(int, rows)))
    if fed:
        return rows, f"the model reads the id {fed[0]} whatever the text"
    return rows, subject.unfed or tokens.undecided


def _embed_measures(head_bound: Bound | None, withheld: str) -> tuple[Measure, ...]:
    if head_bound is None:
        why = f"{withheld}: measure it with --text"
        return (Measure("KL bound, embed survives", None, unit=_NATS, says=why),)
    if not head_bound.finite:
        why = "none: a row of a table, or the last norm, holds NaN or infinity"
        return (Measure("KL bound, embed survives", None, unit=_NATS, says=why),)
    return (
        Measure("KL bound, embed survives", head_bound.kl, unit=_NATS, says="certified: holds for every input"),
        Measure("log-probability bound, embed survives", head_bound.log_p, unit="nats", says="certified, any token"),
        Measure(
            "KL estimate, embed survives",
            head_bound.estimate,
            unit=_NATS,
            says="for hidden states without a preferred direction and tokens alike: right for rounding, "
            "up to 10 times too low for a head that was trained on",
        ),
    )


def _unread_measure(why: str, rows: Array) -> Measure:
    name = "KL bound, head survives"
    if why:
        return Measure(name, None, unit=_NATS, says=_input(why))
    return Measure(name, 0.0, n=len(rows), unit=_NATS, says=f"certified for {scope(shown_ranges(rows))}")


def _input(why: str) -> str:
    reason = f" ({why})" if why else ""
    return f"none from the weights: input rows change, and with them every layer{reason}; measure it with --text"


def scope(uncovered: str) -> str:
    """The inputs for which a change of input rows alone, those of ``uncovered``, moves nothing."""
    releases = f"{', '.join(RELEASES[:-1])} and {RELEASES[-1]}"
    return (
        f"every text that the tokenizer files here make into ids (transformers {releases}), not for these ids where "
        f"they are given, generated or added later: {uncovered}"
    )


def shown_ranges(rows: Array) -> str:
    """Row numbers as ranges, the first eight: 3, 148-159."""
    listed = ranges(rows, len(rows))
    texts = [f"{first}" if first + 1 == end else f"{first}-{end - 1}" for first, end in listed[:_LISTED]]
    return ", ".join(texts) + (f" and {len(listed) - _LISTED:,} more ranges" if len(listed) > _LISTED else "")
