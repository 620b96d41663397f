"""The section *Re-tying*: may one table stand for both, and at what cost."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.subject import Subject
from tieconv.analysis.relation.related import Related
from tieconv.analysis.retie_cost.cost import MAPPED, REFUSED, Costs, one_shape, scope
from tieconv.analysis.retie_cost.folded_norm import ExactFold, FoldedNorm, folded_norm
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import Detail, Kinship, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.text import count, shell_word, shown

TITLE = "Re-tying"

SMALL = 1e-3
"""Nats a token below which a certified change is called harmless: a thousandth of what one more epoch may move."""


Answer = tuple[str, str]
"""A sentence, and how sure it is."""
STORED = "certain, one table is stored"
EVERY_BYTE = "proved, every byte was compared"
EVERY_ROW = "measured, every row was compared"
WITHIN_ROUNDING = "fitted, and what is left is within rounding"
BY_SHAPE = "certain, the shapes differ"
BY_CLASS = "certain, it follows from the class and the config"
CERTIFIED = "proved, the bound holds for every input"
ON_TEXT = "measured on the text given, and another text can differ"
UNDECIDED = "open, the weights alone do not decide it"


@record
class RetieDetail(Detail):
    """The certified KL bounds by the table that survives, and the last norm that would take a head's factors."""

    certified: dict[str, float | None]
    fold: FoldedNorm | None = None

    def to_dict(self) -> dict[str, object]:
        return stated_fields(self) | ({"fold": self.fold.to_dict()} if self.fold else {})


def one_table(subject: Subject) -> Section:
    """For a model that stores one table."""
    output = subject.evidence.head.output_head
    if output is None or not (output.tied_to or output.stored):
        return Section(TITLE, "There is one table, so nothing to re-tie.", (), certainty=STORED)
    if output.tied_to or not subject.forecast.sets_flag or output.name == subject.embed.record.name:
        return Section(TITLE, "The model is tied: there is nothing to re-tie.", (), certainty=STORED)
    return Section(TITLE, _under_two_names(subject), (), certainty=STORED)


def _under_two_names(subject: Subject) -> str:
    """For one stored tensor that a flag of the config calls two."""
    names = (
        f"{shown(subject.embed.record.name)} and its other name are one tensor, and the config says that they are two"
    )
    if subject.flip.barred or subject.flip.third:
        return f"No: {names}: {subject.flip.reason if subject.flip.barred else shown(subject.flip.third) + ' differs'}."
    return f"Yes, nothing is lost: {names}: {_command(subject)}.{_before(subject)}"


def _command(subject: Subject, options: str = "") -> str:
    return f"tieconv retie {shell_word(subject.evidence.checkpoint.source)}{options} -o OUT"


def _before(subject: Subject) -> str:
    return f" Before that, {subject.forecast.before}." if subject.forecast.before else ""


def retie_section(subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...] = ()) -> Section:
    """May it, what does it cost, and what to run."""
    fold = folded_norm(subject, related)
    answer, certainty = verdict(subject, related, costs, measured, fold)
    detail = RetieDetail(dict(costs.certified), fold)
    return Section(TITLE, answer, (*costs.measures, *measured), {}, detail, certainty)


def verdict(
    subject: Subject,
    related: Related,
    costs: Costs,
    measured: tuple[Measure, ...] = (),
    fold: FoldedNorm | None = None,
) -> Answer:
    """One sentence (yes, at a cost, or no; the next command, with what must be done before it), and how sure it is."""
    answer, certainty = _verdict(subject, related, costs, measured, fold)
    return (answer + _before(subject) if "tieconv retie" in answer else answer), certainty


def _verdict(
    subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...], fold: FoldedNorm | None
) -> Answer:
    source = shell_word(subject.evidence.checkpoint.source)
    kind = related.kind
    if subject.flip.barred and kind not in REFUSED:
        return f"No: {subject.flip.reason}.", BY_CLASS
    if subject.flip.taken_up:
        return f"Yes, nothing is lost: the tied class applies that factor itself: {_command(subject)}.", BY_CLASS
    if kind is Kinship.BIT_EQUAL and not subject.flip.third:
        return f"Yes, nothing is lost: {_command(subject)}.", EVERY_BYTE
    if kind in REFUSED:
        return f"No: {_refusal(kind)}.", UNDECIDED if kind is Kinship.UNKNOWN else EVERY_ROW
    if not one_shape(subject):
        return f"No: {_refusal(Kinship.ROW_SUBSET)}.", BY_SHAPE
    if kind in MAPPED:
        return (
            "No: a whole matrix stands between the tables, and a norm can hold only one factor for each column; undo "
            "the rotation of the body first.",
            WITHIN_ROUNDING,
        )
    on_text = _on_text(source, measured)
    if subject.flip.third:
        return (on_text, ON_TEXT) if on_text else (_third(subject), UNDECIDED)
    if kind in (Kinship.SCALAR, Kinship.DIAGONAL):
        return _folded(subject, related, fold), EVERY_BYTE if isinstance(fold, ExactFold) else WITHIN_ROUNDING
    certain = _certainly(costs)
    if certain:
        return certain, CERTIFIED
    return (on_text, ON_TEXT) if on_text else (_not_yet(related, costs, subject.withheld), UNDECIDED)


def _third(subject: Subject) -> str:
    names = f"{shown(subject.flip.third)} differs from {shown(subject.embed.record.name)}"
    return f"Not by the weights alone: {names}, and would be replaced as well; measure it with --text FILE."


def _on_text(source: str, measured: tuple[Measure, ...]) -> str:
    """By the survivor that costs the least on the text; empty where nothing was measured."""
    best = [measure for measure in measured if measure.name.startswith("KL measured") and measure.value is not None]
    if not best:
        return ""
    least = min(best, key=lambda measure: measure.value or 0.0)
    survivor = least.name.split(", ")[1].split()[0]
    return (
        f"At a cost: where the {survivor} survives, the probabilities move by {least.value:.2g} nats a token on "
        f"the text; tieconv retie {source} --survivor {survivor} --max-kl X --text FILE -o OUT writes it where X "
        "allows that."
    )


def _certainly(costs: Costs) -> str:
    """Where the weights alone are proof enough; empty where they are not."""
    if costs.certified.get("head") == 0.0:
        return f"Yes, where the head survives: the KL is 0 for {scope(costs.uncovered)}."
    certified = costs.certified.get("embed")
    if certified is not None and certified <= SMALL:
        return f"Yes, where the embedding survives: the KL is at most {certified:.2g} nats a token, whatever the input."
    return ""


def _not_yet(related: Related, costs: Costs, withheld: str) -> str:
    broken = int(np.count_nonzero(~related.moments.finite))
    if broken:
        return f"No: {count(broken, 'row')} of the tables {'holds' if broken == 1 else 'hold'} NaN or infinity."
    certified = costs.certified.get("embed")
    if certified is None:
        return f"Not by the weights alone{f' ({withheld})' if withheld else ''}: measure it with --text FILE."
    estimate = costs.head.estimate if costs.head else float("nan")
    return (
        f"Not by the weights alone: the certified bound is {certified:.2g} nats a token, the estimate {estimate:.2g}; "
        "measure it with --text FILE."
    )


def _refusal(kind: Kinship) -> str:
    return {
        Kinship.INDEPENDENT: "independent tables have no common one, and what either knows would be lost",
        Kinship.PARTLY_EQUAL: "the rows or columns that differ have no common values, and what either knows would be "
        "lost",
        Kinship.ROW_SUBSET: "a tied matrix has one shape: pad or trim the vocabulary first",
        Kinship.ROW_PERMUTATION: "the ids of the two ends are not in the same order: renumber one side first",
        Kinship.UNKNOWN: "what the tables are to each other could not be told",
    }[kind]


def _folded(subject: Subject, related: Related, fold: FoldedNorm | None) -> str:
    if fold is None:
        factors = "the head has one factor" if related.kind is Kinship.SCALAR else "each column has a factor of its own"
        final, known = subject.final, "no norm before the head is known that could take it"
        capped = final is not None and bool(final.norm)  # what is left to stand in the way
        why = "the soft cap of the logits sees the vector that was added to every row" if capped else known
        return f"Not as it is: {factors}, and {why}."
    if isinstance(fold, ExactFold):
        return f"Yes, exactly: the factors go back into the last norm: {_command(subject, ' --fold-norm')}."
    return (
        f"Yes, after a fold by hand, to within rounding: give {shown(fold.tensor)} the values of detail.fold "
        f"(--json), store the embedding as the head, then tieconv retie; no command does it, since {fold.reason}."
    )
