"""May a re-tie go ahead within a budget of change? By proof from the weights, or by a measurement on a text."""

from __future__ import annotations

from math import isnan
from typing import NoReturn

from tieconv.analysis import Findings, find
from tieconv.analysis.relation.sentences import sentence
from tieconv.analysis.retie_cost.cost import MAPPED, REFUSED, one_shape, scope
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.write_plan.retie_forecast import RetieForecast
from tieconv.errors import RefusedError
from tieconv.sources.local.files import FileSet
from tieconv.text import command, count, shown


def check_kl_budget(
    evidence: Inspection, files: FileSet, forecast: RetieForecast, survivor: str, max_kl: float, text: str | None = None
) -> str:
    """Why tying to ``survivor`` may be said to move the probabilities by at most ``max_kl`` nats a token: one sentence.

    Proved for every input, or, with ``text``, measured: the upper end of the mean's 95 % interval. An estimate never
    counts. Raises `RefusedError` otherwise, whatever the budget for tables that are independent.
    """
    findings = find(evidence, files, text, forecast)
    related, costs = findings.related, findings.costs
    if related is None or costs is None or costs.free:
        why = "the tied class applies the factor itself" if findings.subject.flip.taken_up else "there is one table"
        return f"the probabilities do not move: {why}"
    if findings.subject.flip.barred:
        _refuse(findings, findings.subject.flip.reason, _leave_untied(evidence))
    if not one_shape(findings.subject):
        _refuse(findings, "the two tables have different numbers of rows", "pad or trim the vocabulary first")
    if related.kind in REFUSED | MAPPED:
        _refuse(findings, sentence(related).rstrip("."), _leave_untied(evidence))
    table = "embedding" if survivor == "embed" else survivor
    certified = costs.certified.get(survivor)
    if certified is not None and certified <= max_kl:
        covered = scope(costs.uncovered) if costs.uncovered else "every input"
        return f"the KL is at most {certified:.3g} nats a token, of {max_kl:g} allowed: certified for {covered}"
    if text is None:
        unknown = f"cannot be bounded{_withheld(findings, survivor)}"
        known = unknown if certified is None else f"is bounded by {certified:.3g}, not {max_kl:g},"
        _refuse(findings, f"the KL where the {table} survives {known} from the weights alone", _measure(related.kind))
    effect = findings.measured.effects.get(f"{survivor} survives") if findings.measured else None
    worst = effect.worst if effect else None
    if effect is None or worst is None or not worst <= max_kl:  # a NaN is within no budget
        known = f"was measured as up to {worst:.3g}, more than {max_kl:g}"
        result = "could not be measured" if worst is None or isnan(worst) else known
        _refuse(
            findings,
            f"the KL where the {table} survives {result}",
            f"compare the survivors: {command('analyze', evidence.checkpoint.source, '--text FILE')}",
        )
    return (
        f"the KL is {effect.mean:.3g} ± {effect.error:.1g} nats a token, of {max_kl:g} allowed: measured over "
        f"{count(len(effect.kl), 'window')} of the text"
    )


def _withheld(findings: Findings, survivor: str) -> str:
    why = findings.subject.withheld
    return f" ({why})" if survivor == "embed" and why else ""


def _measure(kind: Kinship) -> str:
    if kind in (Kinship.SCALAR, Kinship.DIAGONAL):
        return "put the factors into the norm: --fold-norm in place of --from and --max-kl"
    return "measure it on a text: add --text FILE"


def _leave_untied(evidence: Inspection) -> str:
    if not evidence.config.effective:
        return "the model is untied: nothing to change"
    return f"keep them untied with: {command('untie', evidence.checkpoint.source)}"


def _refuse(findings: Findings, why: str, hint: str) -> NoReturn:
    raise RefusedError(f"{shown(findings.subject.evidence.checkpoint.source)}: {why}", hint, "retie.cost")
