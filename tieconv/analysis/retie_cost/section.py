"""The section *Re-tying*: whether one table can replace both, and at what cost."""

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
"""Nats a token up to which the verdict calls a certified change harmless."""


Answer = tuple[str, str]
"""A sentence, and how sure it is."""
STORED = "certain, because the model stores one table"
EVERY_BYTE = "proved by comparing every byte"
EVERY_ROW = "measured on every row"
WITHIN_ROUNDING = "fitted, with a residual within rounding"
BY_SHAPE = "certain, because the shapes differ"
BY_CLASS = "certain, because it follows from the class and the config"
CERTIFIED = "proved for every input"
ON_TEXT = "measured on the given text; another text can differ"
UNDECIDED = "undecided, because the weights alone do not give the answer"


_OPEN = "Undecided from the weights alone."
_MEASURE = "Measure the cost with --text FILE."


@record
class RetieDetail(Detail):
    """The certified KL bound of each surviving table, and the last norm with the factors of the head."""

    certified: dict[str, float | None]
    fold: FoldedNorm | None = None

    def to_dict(self) -> dict[str, object]:
        return stated_fields(self) | ({"fold": self.fold.to_dict()} if self.fold else {})


def one_table(subject: Subject) -> Section:
    """Return the section of a model that stores one table."""
    output = subject.evidence.head.output_head
    if output is None or not (output.tied_to or output.stored):
        return Section(TITLE, "The model stores one table. Nothing to re-tie.", (), certainty=STORED)
    if output.tied_to or not subject.forecast.sets_flag or output.name == subject.embed.record.name:
        return Section(TITLE, "The model is tied. Nothing to re-tie.", (), certainty=STORED)
    return Section(TITLE, _under_two_names(subject), (), certainty=STORED)


def _under_two_names(subject: Subject) -> str:
    """Return the sentence for one stored tensor that the config declares untied."""
    names = f"{shown(subject.embed.record.name)} has two names, and the config declares them untied."
    if subject.flip.barred or subject.flip.third:
        why = subject.flip.reason if subject.flip.barred else f"{shown(subject.flip.third)} differs"
        return f"No: {why}. {names}"
    return f"Yes, nothing is lost. {names} Run: {_command(subject)}.{_before(subject)}"


def _command(subject: Subject, options: str = "") -> str:
    return f"tieconv retie {shell_word(subject.evidence.checkpoint.source)}{options} -o OUT"


def _before(subject: Subject) -> str:
    return f" Before that, {subject.forecast.before}." if subject.forecast.before else ""


def retie_section(subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...] = ()) -> Section:
    """Return the section of two tables: whether a re-tie is possible, its cost, and the next command."""
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
    """Return the answer (yes, at a cost, or no) with the next command, and how sure it is."""
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
        text = f"Yes, nothing is lost. The tied class applies the factor itself. Run: {_command(subject)}."
        return text, BY_CLASS
    if kind is Kinship.BIT_EQUAL and not subject.flip.third:
        return f"Yes, nothing is lost. Run: {_command(subject)}.", EVERY_BYTE
    if kind in REFUSED:
        return f"No: {_refusal(kind)}.", UNDECIDED if kind is Kinship.UNKNOWN else EVERY_ROW
    if not one_shape(subject):
        return f"No: {_refusal(Kinship.ROW_SUBSET)}.", BY_SHAPE
    if kind in MAPPED:
        return (
            "No: a full matrix maps one table to the other, but a norm holds only one factor for each column. Undo the "
            "rotation of the model first.",
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
    return f"{_OPEN} {names}, and a re-tie would replace it too. {_MEASURE}"


def _on_text(source: str, measured: tuple[Measure, ...]) -> str:
    """Return the answer for the survivor that costs the least on the text, or an empty text without a measurement."""
    best = [measure for measure in measured if measure.name.startswith("KL measured") and measure.value is not None]
    if not best:
        return ""
    least = min(best, key=lambda measure: measure.value or 0.0)
    survivor = least.name.split(", ")[1].split()[0]
    return (
        f"At a cost: if the {survivor} survives, the KL is {least.value:.2g} nats a token on the text. To write it, "
        f"choose X and run: tieconv retie {source} --survivor {survivor} --max-kl X --text FILE -o OUT."
    )


def _certainly(costs: Costs) -> str:
    """Return the answer that the weights alone prove, or an empty text."""
    if costs.certified.get("head") == 0.0:
        return f"Yes, if the head survives: the KL is 0 for {scope(costs.uncovered)}."
    certified = costs.certified.get("embed")
    if certified is not None and certified <= SMALL:
        return f"Yes, if the embedding survives: the KL is at most {certified:.2g} nats a token for every input."
    return ""


def _not_yet(related: Related, costs: Costs, withheld: str) -> str:
    broken = int(np.count_nonzero(~related.moments.finite))
    if broken:
        return f"No: {count(broken, 'row')} of the tables {'holds' if broken == 1 else 'hold'} NaN or infinity."
    certified = costs.certified.get("embed")
    if certified is None:
        return f"{_OPEN}{f' No bound is known: {withheld}.' if withheld else ''} {_MEASURE}"
    estimate = costs.head.estimate if costs.head else float("nan")
    return (
        f"{_OPEN} If the embedding survives, the certified KL bound is {certified:.2g} nats a token, the estimate "
        f"{estimate:.2g}. {_MEASURE}"
    )


def _refusal(kind: Kinship) -> str:
    return {
        Kinship.INDEPENDENT: "the tables are independent, so the values of one would be lost",
        Kinship.PARTLY_EQUAL: "some rows or columns are independent, so the values of one table would be lost",
        Kinship.ROW_SUBSET: "a tied matrix has one shape. Pad or trim the vocabulary first",
        Kinship.ROW_PERMUTATION: "the tables order the token ids differently. Renumber one of them first",
        Kinship.UNKNOWN: "the relation of the tables is unknown",
    }[kind]


def _folded(subject: Subject, related: Related, fold: FoldedNorm | None) -> str:
    if fold is None:
        factors = "the head has a factor" if related.kind is Kinship.SCALAR else "each column of the head has a factor"
        final, known = subject.final, "tieconv knows no norm before the head that can hold it"
        capped = final is not None and bool(final.norm)  # then only the cap prevents the fold
        why = "the soft cap of the logits sees the vector added to every row" if capped else known
        return f"Not in this form: {factors}, and {why}."
    if isinstance(fold, ExactFold):
        return f"Yes, exactly: the last norm can hold the factors. Run: {_command(subject, ' --fold-norm')}."
    return (
        f"Yes, to within rounding, after you edit the model. Give {shown(fold.tensor)} the values of detail.fold "
        "(--json). Store the embedding as the head. Then run tieconv retie. No command does this, because "
        f"{fold.reason}."
    )
