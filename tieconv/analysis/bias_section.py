"""The section *Bias*: what the head's bias is made of, and what stripping it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tieconv.analysis.model.series import points
from tieconv.analysis.model.subject import Subject
from tieconv.analysis.model.tables import Array, Table, spans
from tieconv.analysis.relation.grams import GEMM, WIDEST
from tieconv.analysis.relation.linear_map import ENOUGH
from tieconv.analysis.rows.frequency import Line, by_frequency, line
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import BiasState, Inspection
from tieconv.checkpoint.json_values import stated_fields
from tieconv.checkpoint.results.analysis import Detail, Measure, Section
from tieconv.checkpoint.value_type import record
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.analysis.retie_cost.measured import OnText

TITLE = "Bias"
_BOUND = "KL bound, bias stripped"
_IMPLICIT = "implicit bias U·mean(h)"
_SERIES = {"bias": "bias", _IMPLICIT: "implicit_bias"}
FOLDS = 0.9
"""R² from which a bias is said to be what the head makes of one vector (adjusted), or word frequency."""


@record
class Explained:
    """b ≈ U·vector + k; ``left`` is the range of what remains."""

    vector: Array
    r2: float
    adjusted: float
    left: float


@record
class BiasDetail(Detail):
    """The vector c of b ≈ U·c + k (d,) where it explains the bias, and with a text the lines on log p by series."""

    fold_vector: tuple[float, ...] | None = None
    on_log_p: dict[str, Line] | None = None

    def to_dict(self) -> dict[str, object]:
        if self.on_log_p is None:
            return stated_fields(self)
        lines = {series: fitted.to_dict() for series, fitted in self.on_log_p.items()}
        return stated_fields(self) | {"on_log_p": lines}


def bias_section(subject: Subject, measured: OnText | None = None) -> Section:
    """For a model without a bias as well; with a text also what stands in for one."""
    section, explained = _stored(subject)
    if subject.bias is not None and _unknown(subject.evidence):
        section = replace(section, sentence=f"{section.sentence} {_unknown(subject.evidence)}")
    if measured is None:
        return section
    values_by_name = _by_token(subject, measured)
    lines = [line(name, values, measured.counts) for name, values in values_by_name.items()]
    series = by_frequency(
        {f"{_SERIES[name]}_at_log_p": values for name, values in values_by_name.items()}, measured.counts
    )
    return replace(
        section,
        sentence=" ".join(
            [section.sentence, *(_followed(fitted) for fitted in lines if fitted.r2 and fitted.r2 >= FOLDS)]
        ),
        measures=(*section.measures, *measured.bias, *(m for fitted in lines for m in fitted.measures)),
        series={**section.series, **series},
        detail=BiasDetail(_fold_vector(explained), {_SERIES[fitted.name]: fitted for fitted in lines}),
    )


def _followed(line: Line) -> str:
    return f"{line.r2:.0%} of the {line.name} is word frequency: {line.slope:.3g}·log p + {line.start:.3g}."


def _by_token(subject: Subject, measured: OnText) -> dict[str, Array]:
    """What may follow the frequency of tokens, (V,): the bias, and the implicit one, U·mean(h)."""
    table, bias, by_name = subject.output, subject.bias, {}
    if bias is not None and len(bias) == table.rows and np.isfinite(bias).all():
        by_name["bias"] = bias
    products = [table.values(*span) @ measured.hidden for span in spans(table.rows, table.width)]
    return by_name | {_IMPLICIT: np.concatenate(products)}


def _stored(subject: Subject) -> tuple[Section, Explained | None]:
    """What the weights alone say, and the vector of which the head makes the bias where one was looked for."""
    bias = subject.bias
    if bias is None:
        return Section(TITLE, _unread(subject.evidence), ()), None
    table = subject.output
    if len(bias) != table.rows:
        return Section(TITLE, f"The bias has {len(bias):,} entries and the head {table.rows:,} rows.", ()), None
    if not np.isfinite(bias).all():
        sentence, says = _not_finite(bias)
        return Section(TITLE, sentence, (Measure(_BOUND, None, unit="nats/token", says=says),)), None
    spread = float(bias.max() - bias.min())
    if spread == 0 and (bias[0] == 0 or not subject.withheld):
        values_text = "all zero" if bias[0] == 0 else f"{bias[0]:.4g} in every entry, which the softmax does not see"
        return Section(TITLE, f"The bias is {values_text}: stripping it changes nothing.", (_strip_bound(0.0),)), None
    judged = table.width <= WIDEST and table.rows >= ENOUGH * table.width + 2
    explained = explain(table, bias) if judged else None
    used = subject.used if subject.used is not None else np.ones(len(bias), bool)
    measures = (
        Measure("mean", float(bias.mean()), n=len(bias)),
        Measure("standard deviation", float(bias.std()), n=len(bias)),
        _strip_bound(spread, subject.withheld),
        _strip_estimate(bias[used]),
        *_fold_measures(explained, table),
    )
    series = {"bias": points(bias)}
    detail = BiasDetail(_fold_vector(explained))
    return Section(TITLE, _sentence(spread, explained), measures, series, detail), explained


def _unknown(evidence: Inspection) -> str:
    """Of a bias beside a head whose class has none: who reads it; empty where the class has one."""
    family, bias = evidence.family, evidence.head.output_bias
    if bias is None or family.output_biases or family.knowledge is not Knowledge.TABLE or family.named:
        return ""
    return f"{family.architecture} has no parameter {shown(bias.name)}: transformers leaves it out."


def _unread(evidence: Inspection) -> str:
    """Why there are no values: none belong there, none are stored, or those that are stored are no floats."""
    bias = evidence.head.output_bias
    if bias is not None and bias.state is not BiasState.ABSENT:
        return f"The bias {shown(bias.name)} is not stored as floats, so nothing is computed from it."
    if bias is not None and evidence.family.output_biases:
        return f"{shown(bias.name)} belongs to the class and is not stored: loaders start it with values of their own."
    return "The head has no bias."


def _not_finite(bias: Array) -> tuple[str, str]:
    """The sentence, and why there is no bound: −∞ masks a row, anything else leaves no probabilities at all."""
    masked, broken = np.isneginf(bias), ~(np.isfinite(bias) | np.isneginf(bias))
    if masked.all():
        return "Every entry of the bias is −∞: no row is left to predict.", "none: the model gives no numbers"
    if broken.any():
        number = int(np.count_nonzero(broken))
        entries = f"{number:,} {'entry of the bias is' if number == 1 else 'entries of the bias are'} NaN or +∞"
        return f"{entries}: the model gives no numbers with it.", "none: the model gives no numbers with it"
    number = int(np.count_nonzero(masked))
    entries = "entry of the bias is −∞ and masks its row" if number == 1 else "entries of the bias are −∞ and mask rows"
    back = "that row" if number == 1 else "those rows"
    sentence = f"{number:,} {entries}: without the bias {back} would come back."
    return sentence, "none: a masked row may take any probability once it comes back"


def _strip_bound(spread: float, withheld: str = "") -> Measure:
    """``withheld`` says why it is not known that the class adds the bias to its logits, and nothing after it."""
    if withheld:
        return Measure(_BOUND, None, unit="nats/token", says=f"none: {withheld}")
    says = "certified: holds for every input; the largest change of a log-probability is the range of the bias"
    return Measure(_BOUND, spread * spread / 8, unit="nats/token", says=says)


def _strip_estimate(bias: Array) -> Measure:
    says = "half its variance over tokens taken as equally likely; with --text over those that the model predicts"
    value = float(bias.var() / 2) if len(bias) else None
    return Measure("KL estimate, bias stripped", value, unit="nats/token", n=len(bias), says=says)


def explain(table: Table, bias: Array) -> Explained:
    """The least-squares vector c with b ≈ U·c + k, from one pass for the moments and one for what is left."""
    width, rows = table.width, table.rows
    total, sums, joint = np.zeros((width, width)), np.zeros(width), np.zeros(width)
    centred = bias - bias.mean()
    for start, stop in spans(rows, width, GEMM):
        block = np.nan_to_num(table.values(start, stop))
        total += block.T @ block
        sums += block.sum(0)
        joint += block.T @ centred[start:stop]
    mean = sums / rows
    solution = np.linalg.lstsq(total - rows * np.outer(mean, mean), joint, rcond=1e-12)[0]
    rest = np.empty(rows)
    for start, stop in spans(rows, width):
        rest[start:stop] = centred[start:stop] - np.nan_to_num(table.values(start, stop)) @ solution
    r2 = max(1 - float(rest.var() / bias.var()), 0.0)
    return Explained(solution, r2, 1 - (1 - r2) * (rows - 1) / (rows - width - 1), float(np.ptp(rest)))


def _fold_measures(explained: Explained | None, table: Table) -> tuple[Measure, ...]:
    name = "adjusted R², bias from U·c + k"
    if explained is None:
        return (Measure(name, None, n=table.rows, says="too few rows for each column: any bias would fit"),)
    bound = Measure(
        "KL bound, U·c + k in its place",
        explained.left * explained.left / 8,
        unit="nats/token",
        says="certified; c then adds to the shift of the last norm",
    )
    return (Measure(name, explained.adjusted, floor=0.0, ceiling=1.0, n=table.rows), bound)


def _fold_vector(explained: Explained | None) -> tuple[float, ...] | None:
    if explained is None or explained.adjusted < FOLDS:
        return None
    return tuple(float(value) for value in explained.vector)


def _sentence(spread: float, explained: Explained | None) -> str:
    most = spread * spread / 8
    start = f"The bias is trained: its range is {spread:.3g}, so without it the KL is at most {most:.2g} nats a token."
    if explained is None or explained.adjusted < FOLDS:
        return start
    share = f"{explained.adjusted:.0%} of it is what the head makes of one vector"
    return f"{start} {share}, which a norm with a shift could hold."
