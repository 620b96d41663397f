"""All rules, in the order of their documentation."""

from __future__ import annotations

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import adapters, bias_rules, graph_rules, heads, index_rules, loader_rules, quantised, storage, ties
from tieconv.checks.evidence import Rule

RULES: tuple[Rule, ...] = (
    ties.different_values,
    ties.redundant_copy,
    heads.missing_head,
    ties.could_be_tied,
    ties.inverted_tie,
    heads.missing_pair,
    ties.version_decides,
    ties.levels_disagree,
    heads.never_tied,
    ties.shapes_differ,
    heads.missing_copies,
    heads.guessed,
    ties.flag_type,
    bias_rules.unknown_bias,
    bias_rules.half_a_bias_pair,
    bias_rules.bias_copies_differ,
    bias_rules.bias_length,
    storage.duplicates,
    storage.placeholder,
    storage.storage_slack,
    storage.partial_overlap,
    storage.not_only_weights,
    ties.nan_in_tie,
    heads.not_saved,
    heads.rows,
    quantised.quantised_head,
    quantised.codes_without_scales,
    quantised.scales_without_codes,
    quantised.part_shapes,
    quantised.missing_zero_points,
    quantised.quantised_tables_differ,
    quantised.quantised_copy,
    quantised.codes_left_out,
    quantised.float_head_listed,
    quantised.codes_not_loaded,
    heads.other_head,
    heads.parametrised,
    heads.missing_layers,
    index_rules.absent_tensor,
    index_rules.unindexed_tensor,
    index_rules.repeated_tensor,
    index_rules.total_size,
    index_rules.orphan_file,
    index_rules.no_index,
    index_rules.two_layouts,
    index_rules.one_shard,
    index_rules.two_formats,
    index_rules.name_not_sought,
    index_rules.no_metadata,
    index_rules.no_format,
    index_rules.reader_refuses,
    index_rules.special_files,
    index_rules.repeated_key,
    loader_rules.tied_keys,
    adapters.targets_tie,
    adapters.replaces_tied,
    adapters.unmerged,
    adapters.rows_differ,
    adapters.replaced_tokens,
    graph_rules.stored_twice,
    graph_rules.latent_copy,
    graph_rules.tie_broken,
    graph_rules.nan_in_head,
    loader_rules.random_head,
    loader_rules.discarded_head,
    loader_rules.loader_refuses,
    loader_rules.dropped_bias,
    loader_rules.unknown_loader,
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
