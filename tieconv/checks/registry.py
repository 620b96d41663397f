"""All rules, in the order of their documentation."""

from __future__ import annotations

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import adapters, bias_rules, graph_rules, heads, index_rules, loader_rules, quantised, storage, ties
from tieconv.checks.evidence import Rule

_TOPICS = (adapters, bias_rules, graph_rules, heads, index_rules, loader_rules, quantised, storage, ties)
_CODES = "TIE BIA STO NUM TRN VOC QNT HED MTP IDX FMT SEC COD PEF ONX CON"
"""The prefixes of the codes, in the order of the documentation."""

RULES: tuple[Rule, ...] = tuple(
    sorted(
        (value for topic in _TOPICS for value in vars(topic).values() if isinstance(value, Rule)),
        key=lambda entry: (_CODES.index(entry.code[:3]), entry.code),
    )
)
"""All rules, in the order of the documentation."""

TITLES = {rule.code: f"{rule.code} {rule.name}" for rule in RULES}
"""Each rule as reports name it: ``TIE001 different-values``."""

_OF_GRAPHS = ("ONX", "SEC", "FMT")
"""Rules that apply to ONNX graphs. Most others are about the names that checkpoint loaders read."""

_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}


def run_all(inspection: Inspection) -> tuple[Finding, ...]:
    """Return the findings of all rules, sorted by level and then by rule."""
    graphs = bool(inspection.checkpoint.graphs)
    rules = [rule for rule in RULES if not graphs or rule.code.startswith(_OF_GRAPHS)]
    findings = [finding for rule in rules for finding in rule.find(inspection)]
    if all(finding.level is Level.NOTE for finding in findings):
        findings += heads.unjudged(inspection)
    return tuple(sorted(findings, key=lambda finding: (_ORDER[finding.level], finding.rule)))
