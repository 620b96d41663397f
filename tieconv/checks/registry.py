"""All rules, in the order of their documentation."""

from __future__ import annotations

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import (
    adapters,
    bias_rules,
    cod001_tied_keys,
    flag,
    fmt001_reader_refuses,
    graph_rules,
    hed001_other_head,
    hostile_files,
    index_rules,
    loader_predictions,
    missing_tables,
    mtp001_missing_layers,
    num001_nan_in_tie,
    quantised,
    storage,
    stored_copies,
    tie012_guessed,
    trn001_trained_tensor_not_saved,
    voc001_rows,
)
from tieconv.checks.interface import Rule

RULES: tuple[Rule, ...] = (
    stored_copies.DIFFERENT_VALUES,
    stored_copies.REDUNDANT_COPY,
    missing_tables.MISSING_HEAD,
    stored_copies.COULD_BE_TIED,
    stored_copies.INVERTED_TIE,
    missing_tables.MISSING_PAIR,
    flag.VERSION_DECIDES,
    flag.LEVELS_DISAGREE,
    missing_tables.NEVER_TIED,
    stored_copies.SHAPES_DIFFER,
    missing_tables.MISSING_COPIES,
    tie012_guessed.RULE,
    flag.FLAG_TYPE,
    bias_rules.UNKNOWN_BIAS,
    bias_rules.HALF_A_BIAS_PAIR,
    bias_rules.BIAS_COPIES_DIFFER,
    bias_rules.BIAS_LENGTH,
    storage.DUPLICATES,
    storage.PLACEHOLDER,
    storage.STORAGE_SLACK,
    storage.PARTIAL_OVERLAP,
    storage.NOT_ONLY_WEIGHTS,
    num001_nan_in_tie.RULE,
    trn001_trained_tensor_not_saved.RULE,
    voc001_rows.RULE,
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
    hed001_other_head.RULE,
    hed001_other_head.PARAMETRISED,
    mtp001_missing_layers.RULE,
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
    fmt001_reader_refuses.RULE,
    hostile_files.SPECIAL_FILES,
    hostile_files.REPEATED_KEY,
    cod001_tied_keys.RULE,
    adapters.TARGETS_TIE,
    adapters.REPLACES_TIED,
    adapters.UNMERGED,
    adapters.ROWS_DIFFER,
    adapters.REPLACED_TOKENS,
    graph_rules.STORED_TWICE,
    graph_rules.LATENT_COPY,
    graph_rules.TIE_BROKEN,
    graph_rules.NAN_IN_HEAD,
    loader_predictions.RANDOM_HEAD,
    loader_predictions.DISCARDED_HEAD,
    loader_predictions.LOADER_REFUSES,
    loader_predictions.DROPPED_BIAS,
    loader_predictions.UNKNOWN_LOADER,
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
