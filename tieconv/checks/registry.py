"""All rules, in the order of their documentation."""

from __future__ import annotations

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import adapters, bias_rules, graph_rules, heads, index_rules, loader_rules, quantised, storage, ties
from tieconv.checks.evidence import Rule

RULES: tuple[Rule, ...] = (
    ties.DIFFERENT_VALUES,
    ties.REDUNDANT_COPY,
    heads.MISSING_HEAD,
    ties.COULD_BE_TIED,
    ties.INVERTED_TIE,
    heads.MISSING_PAIR,
    ties.VERSION_DECIDES,
    ties.LEVELS_DISAGREE,
    heads.NEVER_TIED,
    ties.SHAPES_DIFFER,
    heads.MISSING_COPIES,
    heads.GUESSED,
    ties.FLAG_TYPE,
    bias_rules.UNKNOWN_BIAS,
    bias_rules.HALF_A_BIAS_PAIR,
    bias_rules.BIAS_COPIES_DIFFER,
    bias_rules.BIAS_LENGTH,
    storage.DUPLICATES,
    storage.PLACEHOLDER,
    storage.STORAGE_SLACK,
    storage.PARTIAL_OVERLAP,
    storage.NOT_ONLY_WEIGHTS,
    ties.NAN_IN_TIE,
    heads.NOT_SAVED,
    heads.ROWS,
    quantised.QUANTISED_HEAD,
    quantised.CODES_WITHOUT_SCALES,
    quantised.SCALES_WITHOUT_CODES,
    quantised.PART_SHAPES,
    quantised.MISSING_ZERO_POINTS,
    quantised.QUANTISED_TABLES_DIFFER,
    quantised.QUANTISED_COPY,
    quantised.CODES_LEFT_OUT,
    quantised.FLOAT_HEAD_LISTED,
    quantised.CODES_NOT_LOADED,
    heads.OTHER_HEAD,
    heads.PARAMETRISED,
    heads.MISSING_LAYERS,
    index_rules.ABSENT_TENSOR,
    index_rules.UNINDEXED_TENSOR,
    index_rules.REPEATED_TENSOR,
    index_rules.TOTAL_SIZE,
    index_rules.ORPHAN_FILE,
    index_rules.NO_INDEX,
    index_rules.TWO_LAYOUTS,
    index_rules.ONE_SHARD,
    index_rules.TWO_FORMATS,
    index_rules.NAME_NOT_SOUGHT,
    index_rules.NO_METADATA,
    index_rules.NO_FORMAT,
    index_rules.READER_REFUSES,
    index_rules.SPECIAL_FILES,
    index_rules.REPEATED_KEY,
    loader_rules.TIED_KEYS,
    adapters.TARGETS_TIE,
    adapters.REPLACES_TIED,
    adapters.UNMERGED,
    adapters.ROWS_DIFFER,
    adapters.REPLACED_TOKENS,
    graph_rules.STORED_TWICE,
    graph_rules.LATENT_COPY,
    graph_rules.TIE_BROKEN,
    graph_rules.NAN_IN_HEAD,
    loader_rules.RANDOM_HEAD,
    loader_rules.DISCARDED_HEAD,
    loader_rules.LOADER_REFUSES,
    loader_rules.DROPPED_BIAS,
    loader_rules.UNKNOWN_LOADER,
)
"""All rules, in the order of the documentation."""

_OF_GRAPHS = ("ONX", "SEC", "FMT")
"""Rules that apply to ONNX graphs. Most others are about the names that checkpoint loaders read."""

_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}


def run_all(inspection: Inspection) -> tuple[Finding, ...]:
    """Return the findings of all rules, sorted by level and then by rule."""
    graphs = bool(inspection.checkpoint.graphs)
    rules = [rule for rule in RULES if not graphs or rule.code.startswith(_OF_GRAPHS)]
    findings = [finding for rule in rules for finding in rule.find(inspection)]
    return tuple(sorted(findings, key=lambda finding: (_ORDER[finding.level], finding.rule)))
