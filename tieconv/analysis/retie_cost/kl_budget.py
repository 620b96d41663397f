"""Check a re-tie against a budget of KL: by proof from the weights, or by a measurement on a text."""

from __future__ import annotations

from math import isnan
from typing import NoReturn

from tieconv.analysis import Findings, find
from tieconv.analysis.relation.section import sentence
from tieconv.analysis.retie_cost.cost import MAPPED, REFUSED, one_shape, scope
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.checkpoint.write_plan import RetieForecast
from tieconv.errors import RefusedError
from tieconv.sources.local.files import FileSet
from tieconv.text import command, count, shown


def check_kl_budget(
    evidence: Inspection, files: FileSet, forecast: RetieForecast, survivor: str, max_kl: float, text: str | None = None
) -> str:
    """Return one sentence that says why tying to ``survivor`` has a KL of at most ``max_kl`` nats a token.

    The bound is proved for every input or, with ``text``, measured: the upper end of the mean's 95 % interval. An
    estimate never counts. Raises `RefusedError` otherwise, and for independent tables with any budget.
    """
    findings = find(evidence, files, text, forecast)
    related, costs = findings.related, findings.costs
    if related is None or costs is None or costs.free:
        why = "the tables are equal" if related else "the model stores one table"
        if findings.subject.flip.taken_up:
            why = "the tied class applies the factor itself"
        return f"the probabilities do not change: {why}"
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
        return f"the KL is at most {certified:.3g} nats a token (limit {max_kl:g}), certified for {covered}"
    if text is None:
        why = f"the weights give no KL bound{_withheld(findings, survivor)} if the {table} survives"
        if certified is not None:
            why = f"the KL bound is {certified:.3g}, above {max_kl:g}, if the {table} survives"
        _refuse(findings, why, _measure(related.kind))
    effect = findings.measured.effects.get(f"{survivor} survives") if findings.measured else None
    worst = effect.worst if effect else None
    if effect is None or worst is None or not worst <= max_kl:  # no budget allows NaN
        why = f"tieconv could not measure the KL if the {table} survives"
        if worst is not None and not isnan(worst):
            why = f"the measured KL is up to {worst:.3g}, above {max_kl:g}, if the {table} survives"
        _refuse(
            findings,
            why,
            f"compare the survivors: {command('analyze', evidence.checkpoint.source, '--text FILE')}",
        )
    return (
        f"the KL is {effect.mean:.3g} ± {effect.error:.1g} nats a token (limit {max_kl:g}), measured over "
        f"{count(len(effect.kl), 'window')} of the text"
    )


def _withheld(findings: Findings, survivor: str) -> str:
    why = findings.subject.withheld
    return f" ({why})" if survivor == "embed" and why else ""


def _measure(kind: Kinship) -> str:
    if kind in (Kinship.SCALAR, Kinship.DIAGONAL):
        return "move the factors into the norm: use --fold-norm instead of --from and --max-kl"
    return "measure the KL on a text: add --text FILE"


def _leave_untied(evidence: Inspection) -> str:
    if not evidence.config.effective:
        return "the model is untied; nothing to change"
    return f"keep them untied with: {command('untie', evidence.checkpoint.source)}"


def _refuse(findings: Findings, why: str, hint: str) -> NoReturn:
    raise RefusedError(f"{shown(findings.subject.evidence.checkpoint.source)}: {why}", hint, "retie.cost")
