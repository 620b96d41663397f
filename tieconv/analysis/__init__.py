"""Measure the embedding tables from the weights, and with a text also the model. Imports numpy: import it lazily."""

from __future__ import annotations

from dataclasses import replace
from typing import NoReturn

import numpy as np

from tieconv.analysis import bias_section, relation_section, retie_section, rows_section
from tieconv.analysis.relation import Related, relate_tables
from tieconv.analysis.retie_cost import MAPPED, REFUSED, Costs, costs, one_shape, scope
from tieconv.analysis.subject import Subject, gradients_section, open_subject
from tieconv.analysis.tables import Array, lengths
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.analysis import Analysis, Kinship, Section
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import RetieForecast
from tieconv.errors import RefusedError, UnreadableError
from tieconv.sources.local import FileSet
from tieconv.text import FILE, Hint, call, count, option, shown


@record
class Findings:
    """The relation of a model's tables and the cost of a re-tie. ``norms`` are ‖row‖ of each stored table.

    ``related`` and ``costs`` are ``None`` if the model has one table, ``measured`` and ``gradients`` without a text.
    """

    subject: Subject
    norms: tuple[Array, ...]
    related: Related | None
    costs: Costs | None
    measured: retie_section.OnText | None = None
    gradients: Section | None = None


@np.errstate(all="ignore")  # the report counts NaN and infinity
def find(
    evidence: Inspection, files: FileSet, text: str | None, forecast: RetieForecast, exact: bool | None = None
) -> Findings:
    """Measure one model. ``exact`` is that of `relate_tables`.

    Raises `UnreadableError` if there is no table of floats. With ``text`` it also raises it if the model cannot run,
    and `RefusedError` if the model has no token probabilities.
    """
    if text is not None and evidence.checkpoint.table:
        raise UnreadableError(
            f"{shown(evidence.checkpoint.source)} is a training checkpoint, and transformers runs only a saved model",
            evidence.checkpoint.read_only,
            "analyze.chunks",
        )
    subject = open_subject(evidence, files, forecast)
    related = relate_tables(subject.embed, subject.head, exact) if subject.head else None
    costs_found = costs(subject, related) if related else None
    norms = related.moments.norms if related else (lengths(subject.embed),)
    if text is None:
        return Findings(subject, norms, related, costs_found)
    reference = retie_section.load_model(subject, text)
    zero = norms[-1] == 0
    untied = related is not None and (related.kind is not Kinship.BIT_EQUAL or bool(subject.flip.third))
    may = untied and costs_found is not None and not costs_found.free and not subject.flip.barred
    measured = retie_section.on_text(reference, zero, retie_section.survivors(subject) if may else {})
    return Findings(subject, norms, related, costs_found, measured, gradients_section(reference, tied=not untied))


@np.errstate(all="ignore")
def report(findings: Findings, counts: str | None = None) -> Analysis:
    """Return the analysis of one model. ``counts`` is a file of token counts: see `read_counts` for its errors."""
    pair, subject, related = _pair(findings), findings.subject, findings.related
    broken = _defects(findings)
    if broken:
        pair = pair[0], replace(pair[1], sentence=f"{broken} {pair[1].sentence}")
    sections = [
        *pair,
        rows_section.rows_section(subject, findings.norms, related, findings.measured),
        bias_section.bias_section(subject, findings.measured),
        *([findings.gradients] if findings.gradients else []),
    ]
    if counts is not None:
        occurrences = rows_section.read_counts(counts, subject.output.rows)
        sections.append(rows_section.norm_frequency(findings.norms, occurrences))
    return Analysis(subject.evidence.checkpoint.source, tuple(sections), _kind(findings), pair[1].sentence)


def _defects(findings: Findings) -> str:
    """Return a sentence about each table that is all zeros, or that has NaN or infinity; empty for sound tables."""
    sentences = []
    for table, rows in zip((findings.subject.embed, findings.subject.output), findings.norms, strict=False):
        name, broken = shown(table.record.name), int(np.count_nonzero(~np.isfinite(rows)))
        if broken:
            sentences.append(f"{count(broken, 'row')} of {name} {'holds' if broken == 1 else 'hold'} NaN or infinity.")
        elif not rows.any():
            sentences.append(f"All {count(len(rows), 'row')} of {name} are zeros.")
    return " ".join([*sentences, "Restore the values from an earlier save."] if sentences else [])


def _kind(findings: Findings) -> str:
    if findings.related is not None:
        return str(findings.related.kind)
    output = findings.subject.evidence.head.output_head
    return str(Kinship.ALIAS if output is not None and (output.tied_to or output.stored) else Kinship.UNKNOWN)


def _pair(findings: Findings) -> tuple[Section, Section]:
    subject, related = findings.subject, findings.related
    if related is None or findings.costs is None:
        return relation_section.one_table(subject, findings.norms[0]), retie_section.one_table(subject)
    measured = findings.measured.retie if findings.measured else ()
    relation = relation_section.two_tables(subject, related)
    return relation, retie_section.retie_section(subject, related, findings.costs, measured)


# Check a re-tie against a budget of KL: by proof from the weights, or by a measurement on a text.


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
        _refuse(findings, relation_section.sentence(related).rstrip("."), _leave_untied(evidence))
    table = "embedding" if survivor == "embed" else survivor
    certified = costs.certified.get(survivor)
    if certified is not None and certified <= max_kl:
        covered = scope(costs.uncovered) if costs.uncovered else "every input"
        return (
            f"the outputs change by at most {certified:.3g} nats a token (KL, limit {max_kl:g}), proved for {covered}"
        )
    if text is None:
        withheld = f" ({findings.subject.withheld})" if survivor == "embed" and findings.subject.withheld else ""
        why = f"the weights give no KL bound{withheld} if the {table} survives"
        if certified is not None:
            why = f"the outputs may change by {certified:.3g} nats (KL), above {max_kl:g}, if the {table} survives"
        _refuse(findings, why, _measure(related.kind))
    effect = findings.measured.effects.get(f"{survivor} survives") if findings.measured else None
    worst = effect.worst if effect else None
    if effect is None or worst is None or not worst <= max_kl:  # no budget allows NaN
        why = f"tieconv could not measure the KL if the {table} survives"
        if worst is not None and not np.isnan(worst):
            why = f"the measured KL is up to {worst:.3g}, above {max_kl:g}, if the {table} survives"
        _refuse(findings, why, Hint("compare the survivors: ", call("analyze", evidence.checkpoint.source, text=FILE)))
    return (
        f"the outputs change by {effect.mean:.3g} ± {effect.error:.1g} nats a token (KL, limit {max_kl:g}), over "
        f"{count(len(effect.kl), 'window')} of the text"
    )


def _measure(kind: Kinship) -> str:
    if kind in (Kinship.SCALAR, Kinship.DIAGONAL):
        instead = Hint(option(fold_norm=True), " instead of ", option("survivor"), " and ", option("max_kl"))
        return Hint("move the factors into the norm: use ", instead)
    return Hint("measure the KL on a text: add ", option(text=FILE))


def _leave_untied(evidence: Inspection) -> str:
    if not evidence.config.effective:
        return "the model is untied; nothing to change"
    return Hint("keep them untied with: ", call("untie", evidence.checkpoint.source))


def _refuse(findings: Findings, why: str, hint: str) -> NoReturn:
    raise RefusedError(f"{shown(findings.subject.evidence.checkpoint.source)}: {why}", hint, "retie.cost")
