"""The section *Re-tying*: may one table stand for both, and at what cost."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.cost import MAPPED, REFUSED, Costs, one_shape
from tieconv.analysis.relation import Related
from tieconv.analysis.subject import Subject
from tieconv.checkpoint.analysis import Kinship, Measure, Section
from tieconv.text import shell_word, shown

TITLE = "Re-tying"

SMALL = 1e-3
"""Nats a token below which a certified change is called harmless: a thousandth of what one more epoch may move."""


def one_table(subject: Subject) -> Section:
    """For a model that stores one table."""
    output = subject.evidence.head.output_head
    tied = output is not None and (output.tied_to or output.stored)
    what = "The model is tied: there is nothing to re-tie." if tied else "There is one table, so nothing to re-tie."
    return Section(TITLE, what, ())


def retie_section(subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...] = ()) -> Section:
    """May it, what does it cost, and what to run."""
    detail: dict[str, object] = {"certified": dict(costs.certified)}
    fold = fold_detail(subject, related)
    if fold:
        detail["fold"] = fold
    return Section(TITLE, verdict(subject, related, costs, measured), (*costs.measures, *measured), {}, detail)


def verdict(subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...] = ()) -> str:
    """One sentence: yes, at a cost, or no; and the next command."""
    source = shell_word(subject.evidence.checkpoint.source)
    kind = related.kind
    if kind is Kinship.BIT_EQUAL:
        return f"Yes, nothing is lost: tieconv retie {source} -o OUT."
    if kind in REFUSED:
        return f"No: {_refusal(kind)}."
    if not one_shape(subject):
        return f"No: {_refusal(Kinship.ROW_SUBSET)}."
    if kind in MAPPED:
        return (
            "No: a whole matrix stands between the tables, and a norm can hold only one factor for each column; undo "
            "the rotation of the body first."
        )
    if kind in (Kinship.SCALAR, Kinship.DIAGONAL):
        return _folded(subject, related)
    best = [measure for measure in measured if measure.name.startswith("KL measured") and measure.value is not None]
    if best:
        least = min(best, key=lambda measure: measure.value or 0.0)
        survivor = least.name.split(", ")[1].split()[0]
        return (
            f"At a cost: where the {survivor} survives, the probabilities move by {least.value:.2g} nats a token on "
            "the text."
        )
    return _by_bound(related, costs)


def _by_bound(related: Related, costs: Costs) -> str:
    if costs.certified.get("head") == 0.0:
        return (
            "Yes, where the head survives: no token has a row that differs, so no input that a tokenizer makes changes."
        )
    certified = costs.certified.get("embed")
    if certified is None:
        return "Not by the weights alone: measure it with --text FILE."
    if certified <= SMALL:
        return f"Yes, where the embedding survives: the KL is at most {certified:.2g} nats a token, whatever the input."
    estimate = costs.head.estimate if costs.head else float("nan")
    return (
        f"Not by the weights alone: the certified bound is {certified:.2g} nats a token, the estimate {estimate:.2g}; "
        "measure it with --text FILE."
    )


def _refusal(kind: Kinship) -> str:
    return {
        Kinship.INDEPENDENT: "independent tables have no common one, and what either knows would be lost",
        Kinship.ROW_SUBSET: "a tied matrix has one shape: pad or trim the vocabulary first",
        Kinship.ROW_PERMUTATION: "the ids of the two ends are not in the same order: renumber one side first",
        Kinship.UNKNOWN: "what the tables are to each other could not be told",
    }[kind]


def _folded(subject: Subject, related: Related) -> str:
    if fold_detail(subject, related) is None:
        return (
            "Not as it is: each column has a factor of its own, and no norm before the head is known that could take "
            "it."
        )
    assert subject.final is not None
    return (
        f"Yes, after a fold: give {shown(subject.final.norm)} the values of detail.fold (--json), store the embedding "
        "as the head, then tieconv retie."
    )


def fold_detail(subject: Subject, related: Related) -> dict[str, object] | None:
    """How the factors of the columns go into the last norm; ``None`` where they cannot.

    ``values`` are the norm's new weights: (d,), in the norm's own convention (1 + weight for Gemma). A shift that every
    row shares is dropped, which the softmax does not see; under a soft cap it would.
    """
    fit, final = related.fit, subject.final
    if related.kind not in (Kinship.SCALAR, Kinship.DIAGONAL) or fit is None or not one_shape(subject):
        return None
    if final is None or not final.norm:
        return None
    if final.capped and np.any(fit.shift):
        return None
    gains = final.gains * fit.gains
    values = gains - 1 if final.gain_key == "one_plus" else gains
    found: dict[str, object] = {"tensor": final.norm, "values": [float(value) for value in values]}
    if final.shift is not None:  # γ ⊙ x̂ + β: the factor is on both
        found |= {"bias_tensor": final.norm.removesuffix("weight") + "bias"}
        found["bias_values"] = [float(value) for value in final.shift * fit.gains]
    return found
