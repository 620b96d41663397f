"""The section *Bias*: what the head's bias holds, and the cost of removing it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tieconv.analysis.relation_maps import ENOUGH, GEMM, WIDEST
from tieconv.analysis.rows_section import Line, by_frequency, line
from tieconv.analysis.subject import Subject
from tieconv.analysis.tables import Array, Table, points, spans
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.analysis import Measure, Section
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import record
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.analysis.retie_section import OnText

TITLE = "Bias"
_BOUND = "KL bound, bias stripped"
_IMPLICIT = "implicit bias U·mean(h)"
_SERIES = {"bias": "bias", _IMPLICIT: "implicit_bias"}
FOLDS = 0.9
"""R² from which the section says that one vector (adjusted R²) or word frequency explains a bias."""


@record
class Explained:
    """b ≈ U·vector + k. ``left`` is the range of the residual."""

    vector: Array
    r2: float
    adjusted: float
    left: float


def bias_section(subject: Subject, measured: OnText | None = None) -> Section:
    """Return the section, also for a model without a bias. A text adds the implicit bias."""
    section, explained = _stored(subject)
    if subject.bias is not None and _unknown(subject.evidence):
        section = replace(section, sentence=f"{section.sentence} {_unknown(subject.evidence)}")
    if measured is None:
        return section
    # The values that may follow the frequency of tokens, (V,): the bias and the implicit bias U·mean(h).
    table, bias, by_name = subject.output, subject.bias, {}
    if bias is not None and len(bias) == table.rows and np.isfinite(bias).all():
        by_name["bias"] = bias
    products = [table.values(*span) @ measured.hidden for span in spans(table.rows, table.width)]
    values_by_name = by_name | {_IMPLICIT: np.concatenate(products)}
    lines = [line(name, values, measured.counts) for name, values in values_by_name.items()]
    named = {f"{_SERIES[name]}_at_log_p": values for name, values in values_by_name.items()}
    series = {**section.series, **by_frequency(named, measured.counts)}
    followed = (_followed(fitted) for fitted in lines if fitted.r2 and fitted.r2 >= FOLDS)
    measures = (*section.measures, *measured.bias, *(m for fitted in lines for m in fitted.measures))
    detail = _detail(explained) | {"on_log_p": {_SERIES[fitted.name]: fitted for fitted in lines}}
    sentence = " ".join([section.sentence, *followed])
    return replace(section, sentence=sentence, measures=measures, series=series, detail=detail)


def _followed(line: Line) -> str:
    return f"Word frequency explains {line.r2:.0%} of the {line.name}: {line.slope:.3g}·log p + {line.start:.3g}."


def _stored(subject: Subject) -> tuple[Section, Explained | None]:
    """Return the section from the weights alone, and the vector that explains the bias if one was searched."""
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
        return Section(TITLE, f"The bias is {values_text}. Removing it changes nothing.", (_strip_bound(0.0),)), None
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
    return Section(TITLE, _sentence(spread, explained), measures, series, _detail(explained)), explained


def _unknown(evidence: Inspection) -> str:
    """Return a sentence about a stored bias that the class does not read, or an empty text."""
    family, bias = evidence.family, evidence.head.output_bias
    if bias is None or family.output_biases or family.knowledge is not Knowledge.TABLE or family.named:
        return ""
    return f"{family.architecture} has no parameter {shown(bias.name)}, so transformers ignores it."


def _unread(evidence: Inspection) -> str:
    """Return why there are no values: no bias, a bias that is not stored, or not as floats."""
    bias = evidence.head.output_bias
    if bias is not None and bias.state is not BiasState.ABSENT:
        return f"The bias {shown(bias.name)} is not stored as floats, so tieconv does not measure it."
    if bias is not None and evidence.family.output_biases:
        return f"The class has {shown(bias.name)}, but it is not stored. Loaders initialise it."
    return "The head has no bias."


def _not_finite(bias: Array) -> tuple[str, str]:
    """Return the sentence, and why there is no bound. −∞ masks a row; NaN and +∞ leave no probabilities."""
    masked, broken = np.isneginf(bias), ~(np.isfinite(bias) | np.isneginf(bias))
    if masked.all():
        return "Every entry of the bias is −∞, so the model can predict no token.", "no bound: every row is masked"
    if broken.any():
        number = int(np.count_nonzero(broken))
        entries = f"{number:,} {'entry of the bias is' if number == 1 else 'entries of the bias are'} NaN or +∞"
        return f"{entries}, so the model returns NaN.", "no bound: the model returns NaN"
    number = int(np.count_nonzero(masked))
    entries = "entry of the bias is −∞ and masks its row" if number == 1 else "entries of the bias are −∞ and mask rows"
    back = "that row" if number == 1 else "those rows"
    sentence = f"{number:,} {entries}. Without the bias the model can predict {back} again."
    return sentence, "no bound: without the bias a masked row may take any probability"


def _strip_bound(spread: float, withheld: str = "") -> Measure:
    """Return the bound, or with ``withheld`` the reason why tieconv does not know how the class uses the bias."""
    if withheld:
        return Measure(_BOUND, None, unit="nats/token", says=f"no bound: {withheld}")
    says = "proved for every input; the largest change of a log-probability is the range of the bias"
    return Measure(_BOUND, spread * spread / 8, unit="nats/token", says=says)


def _strip_estimate(bias: Array) -> Measure:
    says = "half the variance over equally likely tokens; --text measures it over predicted tokens"
    value = float(bias.var() / 2) if len(bias) else None
    return Measure("KL estimate, bias stripped", value, unit="nats/token", n=len(bias), says=says)


def explain(table: Table, bias: Array) -> Explained:
    """Return the least-squares vector c with b ≈ U·c + k: one pass for the moments, and one for the residual."""
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
        return (Measure(name, None, n=table.rows, says="too few rows for each column, so any bias would fit"),)
    most, says = explained.left * explained.left / 8, "proved; the shift of the last norm then includes c"
    bound = Measure("KL bound, U·c + k in its place", most, unit="nats/token", says=says)
    return (Measure(name, explained.adjusted, floor=0.0, ceiling=1.0, n=table.rows), bound)


def _detail(explained: Explained | None) -> dict[str, object]:
    """Return the vector c of b ≈ U·c + k (d,) if it explains the bias."""
    return {"fold_vector": explained.vector.tolist()} if explained and explained.adjusted >= FOLDS else {}


def _sentence(spread: float, explained: Explained | None) -> str:
    most = spread * spread / 8
    start = f"The bias varies by {spread:.3g}. Removing it has a KL of at most {most:.2g} nats a token."
    if explained is None or explained.adjusted < FOLDS:
        return start
    share = f"One vector through the head explains {explained.adjusted:.0%} of it"
    return f"{start} {share}, and the shift of a norm could hold that vector."
