"""What re-tying costs by survivor: certified where the weights alone can say, else left to a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tieconv.analysis.bounds import Bound, Change, bound
from tieconv.analysis.relation import Related
from tieconv.analysis.subject import Subject
from tieconv.checkpoint.analysis import Kinship, Measure
from tieconv.text import shown

FREE = frozenset({Kinship.ALIAS, Kinship.BIT_EQUAL})
"""Classes in which nothing changes, whoever survives."""

REFUSED = frozenset({Kinship.INDEPENDENT, Kinship.UNKNOWN, Kinship.ROW_SUBSET, Kinship.ROW_PERMUTATION})
"""Classes in which one table cannot stand for the other."""

MAPPED = frozenset({Kinship.ORTHOGONAL, Kinship.SPD, Kinship.LINEAR})
"""Classes in which a matrix that no norm can hold stands between the two."""

_NATS = "nats/token"

_IDS = ("_token_id", "_token_index")
"""How the keys of a config end that name an id: of the start, of padding, of a picture's place."""


@dataclass(frozen=True, slots=True)
class Costs:
    """``certified`` bounds on the KL by survivor, ``None`` where the weights cannot say; ``head`` is the change of the
    head where the embedding survives. ``free`` where a re-tie changes nothing.
    """

    certified: dict[str, float | None]
    head: Bound | None
    measures: tuple[Measure, ...]
    free: bool = False


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
    found = _head_change(subject, related)
    unseen = _unseen(subject, related)
    certified = {"embed": found.kl if found and found.finite else None, "head": 0.0 if unseen else None, "mean": None}
    return Costs(certified, found, (*_embed_measures(found), _input_measure("head", unseen), _input_measure("mean", 0)))


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


def _unseen(subject: Subject, related: Related) -> int:
    """The rows that differ, where none of them has a token: then no input reads one.

    Of two types a row that is equal once it is rounded differs all the same.
    """
    moments = related.moments
    rows = np.flatnonzero(moments.unequal | (moments.apart != 0) if moments.cast else moments.unequal)
    used = subject.used
    if used is None or used[rows].any():
        return 0
    return 0 if fed_ids(subject.evidence.checkpoint.config_values) & set(map(int, rows)) else len(rows)


def fed_ids(config: object) -> set[int]:
    """The ids that a config has the model read whatever the text, such as what a decoder starts with."""
    found: set[int] = set()
    entries = config.items() if isinstance(config, Mapping) else ()
    for key, value in entries:
        if str(key).endswith(_IDS):
            values = value if isinstance(value, list) else [value]
            found |= {one for one in values if isinstance(one, int) and not isinstance(one, bool)}
        found |= fed_ids(value)
    return found


def _embed_measures(found: Bound | None) -> tuple[Measure, ...]:
    if found is None:
        why = "what stands between the last norm and the logits of this class is not known: measure it with --text"
        return (Measure("KL bound, embed survives", None, unit=_NATS, says=why),)
    if not found.finite:
        why = "none: a row of a table, or the last norm, holds NaN or infinity"
        return (Measure("KL bound, embed survives", None, unit=_NATS, says=why),)
    return (
        Measure("KL bound, embed survives", found.kl, unit=_NATS, says="certified: holds for every input"),
        Measure("log-probability bound, embed survives", found.log_p, unit="nats", says="certified, any token"),
        Measure(
            "KL estimate, embed survives",
            found.estimate,
            unit=_NATS,
            says="for hidden states without a preferred direction and tokens alike: right for rounding, "
            "up to 10 times too low for a head that was trained on",
        ),
    )


def _input_measure(survivor: str, unseen: int) -> Measure:
    name = f"KL bound, {survivor} survives"
    if unseen:
        says = "certified for every input that the tokenizer can make: no token has a row that differs"
        return Measure(name, 0.0, n=unseen, unit=_NATS, says=says)
    says = "none from the weights: the input rows change, and through them every layer; measure it with --text"
    return Measure(name, None, unit=_NATS, says=says)
