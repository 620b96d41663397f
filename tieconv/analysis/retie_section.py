"""The section *Re-tying*: whether one table can replace both, and at what cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan, sqrt
from typing import Any

import numpy as np

from tieconv.analysis.norm_fold import FoldedNorm, folded_norm
from tieconv.analysis.relation import Related
from tieconv.analysis.retie_cost import MAPPED, REFUSED, Costs, one_shape, scope
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Array, Table, spans
from tieconv.checkpoint.results.analysis import Kinship, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.execute.arithmetic import floats, midpoints, rounded
from tieconv.reference.windows import Apart, load_apart, parameter
from tieconv.text import Hint, call, count, option, shell_word, shown

TITLE = "Re-tying"

SMALL = 1e-3
"""Nats a token up to which the verdict calls a certified change harmless."""

Answer = tuple[str, str]
"""A sentence, and how sure it is; empty where nothing was decided."""
STORED = "certain, because the model stores one table"
EVERY_BYTE = "proved by comparing every byte"
EVERY_ROW = "measured on every row"
WITHIN_ROUNDING = "fitted, with a residual within rounding"
BY_CLASS = "certain, because it follows from the class and the config"
ON_TEXT = "measured on the given text; another text can differ"

_OPEN = "The weights alone do not decide."
_MEASURE = "Measure the change on a text with --text FILE."


def one_table(subject: Subject) -> Section:
    """Return the section of a model that stores one table."""
    output = subject.evidence.head.output_head
    if output is None and not subject.evidence.family.trusted:
        return Section(TITLE, "Not known: the model stores one table.", ())
    if output is None:
        return Section(TITLE, "The model stores one table. Nothing to re-tie.", (), certainty=STORED)
    if not (output.tied_to or output.stored):
        source = shell_word(subject.evidence.checkpoint.source)
        return Section(TITLE, f"Not known: {shown(output.name)} is not stored. Run: tieconv inspect {source}.", ())
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
    detail = {"certified": costs.certified} | ({"fold": fold} if fold else {})
    return Section(TITLE, answer, (*costs.measures, *measured), {}, detail, certainty)


def verdict(
    subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...] = (), fold: FoldedNorm | None = None
) -> Answer:
    """Return the answer (yes, at a cost, or no) with the next command, and how sure it is."""
    answer, certainty = _verdict(subject, related, costs, measured, fold)
    return (answer + _before(subject) if "tieconv retie" in answer else answer), certainty


def _measured(related: Related) -> str:
    """Return how sure a refusal is. A sample may have decided that no linear map, or no nearest row, is close."""
    sampled = [f"linear maps on {related.linear.rows:,}"] if related.linear and related.linear.interval else []
    sampled += (
        [f"nearest rows on {related.asked:,}"] if related.retrieval and related.asked < related.moments.count else []
    )
    return f"{EVERY_ROW}, but {' and '.join(sampled)} sampled rows" if sampled else EVERY_ROW


def _verdict(
    subject: Subject, related: Related, costs: Costs, measured: tuple[Measure, ...], fold: FoldedNorm | None
) -> Answer:
    source = shell_word(subject.evidence.checkpoint.source)
    kind = related.kind
    if subject.flip.barred and not subject.evidence.family.trusted:
        return f"Not known: {subject.flip.reason}.", ""
    if subject.flip.barred and kind not in REFUSED:
        return f"No: {subject.flip.reason}.", BY_CLASS
    if subject.flip.taken_up:
        text = f"Yes, nothing is lost. The tied class applies the factor itself. Run: {_command(subject)}."
        return text, BY_CLASS
    if kind is Kinship.BIT_EQUAL and not subject.flip.third:
        return f"Yes, nothing is lost. Run: {_command(subject)}.", EVERY_BYTE
    if _embedding_has_every_row(subject, related):
        command = _command(subject, " --from embed --force")
        return f"Yes, nothing is lost. The embedding stores all rows of the head. Run: {command}.", EVERY_BYTE
    if kind in REFUSED:
        return f"No: {_refusal(kind)}.", "" if kind is Kinship.UNKNOWN else _measured(related)
    if not one_shape(subject):
        return f"No: {_refusal(Kinship.ROW_SUBSET)}.", "certain, because the shapes differ"
    if kind in MAPPED:
        return (
            "No: a full matrix maps one table to the other, but a norm holds only one factor for each column. Undo the "
            "rotation of the model first.",
            WITHIN_ROUNDING,
        )
    on_text = _on_text(source, measured)
    if subject.flip.third:
        names = f"{shown(subject.flip.third)} differs from {shown(subject.embed.record.name)}"
        why = f"{_OPEN} {names}, and a re-tie would replace it too. {_MEASURE}"
        return (on_text, ON_TEXT) if on_text else (why, "")
    if kind in (Kinship.SCALAR, Kinship.DIAGONAL):
        return _folded(subject, related, fold), EVERY_BYTE if fold and fold.exact else WITHIN_ROUNDING
    certain = _certainly(costs)
    if certain:
        return certain, "proved for every input"
    return (on_text, ON_TEXT) if on_text else (_not_yet(related, costs, subject.withheld), "")


def _on_text(source: str, measured: tuple[Measure, ...]) -> str:
    """Return the answer for the survivor that costs the least on the text, or an empty text without a measurement."""
    named = ((measure.value, measure.name) for measure in measured if measure.name.startswith("KL measured"))
    best = [(value, name) for value, name in named if value is not None]
    if not best:
        return ""
    least, name = min(best)
    survivor = name.split(", ")[1].split()[0]
    return (
        f"At a cost: if the {survivor} survives, the outputs change by {least:.2g} nats a token on the text "
        "(KL divergence). Choose a limit X and run: "
        f"tieconv retie {source} --survivor {survivor} --max-kl X --text FILE -o OUT."
    )


def _certainly(costs: Costs) -> str:
    """Return the answer that the weights alone prove, or an empty text."""
    if costs.certified.get("head") == 0.0:
        return f"Yes, if the head survives: the KL is 0 for {scope(costs.uncovered)}."
    certified = costs.certified.get("embed")
    if certified is not None and certified <= SMALL:
        return f"Yes, if the embedding survives: the KL divergence is at most {certified:.2g} nats a token."
    return ""


def _not_yet(related: Related, costs: Costs, withheld: str) -> str:
    if not related.moments.finite.all():
        return "No: NaN and infinity have no distance, so the change cannot be bounded."
    certified = costs.certified.get("embed")
    if certified is None:
        return f"{_OPEN}{f' No bound is known: {withheld}.' if withheld else ''} {_MEASURE}"
    estimate = costs.head.estimate if costs.head else float("nan")
    return (
        f"{_OPEN} If the embedding survives, the outputs change by about {estimate:.2g} nats a token (KL), "
        f"at most {certified:.2g}. {_MEASURE}"
    )


def _embedding_has_every_row(subject: Subject, related: Related) -> bool:
    """Return whether the head of a tied model equals the first rows of a longer embedding, byte for byte."""
    tie, shorter = subject.evidence.word_tie, subject.output.rows < subject.embed.rows
    if tie is None or not tie.declared or subject.flip.barred or related.moments.cast:
        return False
    return related.kind is Kinship.ROW_SUBSET and shorter and bool(related.figures.get("prefix"))


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
    if fold.exact:
        return f"Yes, exactly: the last norm can hold the factors. Run: {_command(subject, ' --fold-norm')}."
    return (
        f"Yes, to within rounding, after you edit the model. Give {shown(fold.tensor)} the values of detail.fold "
        "(--json). Store the embedding as the head. Then run tieconv retie. No command does this, because "
        f"{fold.reason}."
    )


# Measure on a text the cost of each survivor and of removing the bias, and the mean hidden state.

SURVIVORS = ("embed", "head", "mean")
_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""The 97.5 % quantile of Student's t by degrees of freedom, from 1. The last one is used for more."""


@dataclass(slots=True)
class Effect:
    """Window means of the effect of a change: KL(p ‖ p') in nats, top-1 agreement, change of the loss in nats."""

    kl: list[float] = field(default_factory=list)
    top1: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)

    def add(self, before: Any, after: Any, target: Any) -> None:
        finite = before.isfinite()  # a token that a bias masks with −∞ has no probability to lose
        terms = (before.exp() * (before - after)).where(finite, before.new_zeros(()))
        self.kl.append(float(terms.sum(-1).mean().clamp(min=0)))  # below 0 is rounding
        self.top1.append(float((before.argmax(-1) == after.argmax(-1)).float().mean()))
        change = before.gather(-1, target[:, None]) - after.gather(-1, target[:, None])
        self.loss.append(float(change.mean()))

    @property
    def mean(self) -> float:
        """The mean KL, in nats a token."""
        return float(np.mean(self.kl))

    @property
    def error(self) -> float:
        """Standard error of the mean KL over windows, because tokens inside a window are not independent."""
        return float(np.std(self.kl, ddof=1) / sqrt(len(self.kl))) if len(self.kl) > 1 else float("inf")

    @property
    def worst(self) -> float:
        """The upper end of the mean KL's 95 % interval, which is wide for few windows."""
        freedom = min(max(len(self.kl) - 1, 1), len(_STUDENT))
        return self.mean + _STUDENT[freedom - 1] * self.error

    def _loss(self, name: str, predicted: int) -> Measure:
        change: float | None = float(np.mean(self.loss))
        says = ""
        if not np.isfinite(self.loss).all():
            change, says = None, "a token of the text has no probability, for example because a bias of −∞ masks it"
        return Measure(f"change of the loss, {name}", change, n=predicted, unit="nats/token", says=says)

    def measures(self, name: str, predicted: int) -> tuple[Measure, ...]:
        """Return the means over the windows. The standard error is that of the window means."""
        if isnan(self.mean):
            says = "the model then returns logits that are NaN or infinite"
            return (Measure(f"KL measured, {name}", None, n=predicted, unit="nats/token", says=says),)
        says = f"± {self.error:.1g} over {count(len(self.kl), 'window')}"
        return (
            Measure(f"KL measured, {name}", self.mean, n=predicted, unit="nats/token", says=says),
            Measure(f"top-1 agreement, {name}", float(np.mean(self.top1)), ceiling=1.0, n=predicted),
            self._loss(name, predicted),
        )


@record
class OnText:
    """The results on a text: ``effects`` of each change by name, and ``zero_mass``, the probability of the zero rows.

    ``hidden`` is the mean input of the head (d,), and ``counts`` the frequency of each token in the text (V,).
    """

    effects: dict[str, Effect]
    zero_mass: float
    hidden: Array
    counts: Array
    predicted: int

    @property
    def retie(self) -> tuple[Measure, ...]:
        """The figures of each survivor."""
        names = (f"{survivor} survives" for survivor in SURVIVORS)
        return tuple(m for name in names if name in self.effects for m in self._measures(name))

    @property
    def bias(self) -> tuple[Measure, ...]:
        """The figures of a model without its bias, or none if it has no bias."""
        return self._measures("bias stripped") if "bias stripped" in self.effects else ()

    def _measures(self, name: str) -> tuple[Measure, ...]:
        return self.effects[name].measures(name, self.predicted)


def load_model(subject: Subject, text: str) -> Apart:
    """Return the model with its two stored tables, and the text. Raises the errors of `load_apart`."""
    tables = tuple(table.values(0, table.rows) for table in (subject.embed, subject.output))
    evidence = subject.evidence
    tie = evidence.word_tie
    names = tuple(member.name for member in tie.members) if tie else ()
    return load_apart(evidence.checkpoint.root, evidence.family.architecture, (tables[0], tables[1]), text, names)


def survivors(subject: Subject) -> dict[str, Array | None]:
    """Return the tables that may replace both, for `on_text`: none if the shapes differ, and no mean of three."""
    embed, head = subject.embed, subject.head
    if head is None or (head.rows, head.width) != (embed.rows, embed.width):
        return {}
    ends: dict[str, Array | None] = {"embed": None, "head": None}
    return ends if subject.flip.third else ends | {"mean": _mean(embed, head)}


def _mean(embed: Table, head: Table) -> Array:
    """Return the mean as `retie` writes it, (V, d) float32. For tables of two types it is not rounded."""
    means = np.empty((embed.rows, embed.width), "f4")
    kind = embed.record.dtype if embed.record.dtype == head.record.dtype else None
    for start, stop in spans(embed.rows, embed.width):
        values = midpoints(embed.values(start, stop), head.values(start, stop))
        means[start:stop] = floats(rounded(values, kind), kind).reshape(values.shape) if kind else values
    return means


def on_text(reference: Apart, zero: Array, survivors: Mapping[str, Array | None]) -> OnText:
    """Run the text through the model without changes and with each change.

    ``zero`` marks the rows of zeros (V,). ``survivors`` are the tables that may replace both, with ``None`` for a
    stored table; empty if none may.
    """
    torch = reference.torch
    changes = {f"{name} survives": _swap(reference, name, table) for name, table in survivors.items()}
    places = ((reference.model.get_output_embeddings(), "bias"), (reference.model, "final_logits_bias"))
    held = next(((module, name) for module, name in places if getattr(module, name, None) is not None), None)
    if held is not None:
        changes["bias stripped"] = lambda: _without_bias(*held)
    effects = {name: Effect() for name in changes}
    marked = torch.from_numpy(np.flatnonzero(zero))
    mass: list[float] = []
    hidden: list[Any] = []
    with torch.no_grad(), _listening(reference, hidden):
        for window in reference.windows:
            log_p = reference.log_probabilities(window)
            if bool(log_p.isnan().any()):
                problem = "the model returns logits that are NaN or infinite on this text"
                hint = "see which rows of the tables are not finite: ", call("analyze"), ", without ", option("text")
                raise RefusedError(f"{problem}, so tieconv cannot measure it", Hint(*hint), "analyze.not-finite")
            before = log_p
            hidden[-1] = hidden[-1][reference.places(window)].mean(0)
            mass.append(float(before[:, marked].exp().sum(-1).mean()))
            for name, change in changes.items():
                with change():
                    effects[name].add(before, reference.log_probabilities(window), reference.targets(window))
                hidden.pop()
    mean_hidden = torch.stack(hidden).mean(0).numpy().astype("f8")
    return OnText(effects, float(np.mean(mass)), mean_hidden, reference.counts.numpy(), reference.predicted)


def _swap(reference: Apart, name: str, values: Array | None) -> Callable[[], Any]:
    table = {"embed": reference.embed, "head": reference.head}[name] if values is None else parameter(values)
    return lambda: reference.tables(table, table)


@contextmanager
def _without_bias(module: Any, name: str) -> Iterator[None]:
    bias = getattr(module, name)
    setattr(module, name, bias.new_zeros(bias.shape) if name in module._buffers else None)
    try:
        yield
    finally:
        setattr(module, name, bias)


@contextmanager
def _listening(reference: Apart, heard: list[Any]) -> Iterator[None]:
    module = reference.model.get_output_embeddings()
    hook = module.register_forward_pre_hook(lambda _, inputs: heard.append(inputs[0].reshape(-1, inputs[0].shape[-1])))
    try:
        yield
    finally:
        hook.remove()
