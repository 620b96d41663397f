"""The rules, in the order of their documentation, and running them all."""

from __future__ import annotations

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks import (
    bia001_unknown_bias,
    bia002_half_a_bias_pair,
    bia003_bias_copies_differ,
    bia004_bias_length,
    cod001_tied_keys,
    con001_random_head,
    con002_discarded_head,
    con003_loader_refuses,
    con004_dropped_bias,
    con005_unknown_loader,
    hed001_other_head,
    idx001_absent_tensor,
    idx002_unindexed_tensor,
    idx003_repeated_tensor,
    idx004_total_size,
    idx005_orphan_file,
    idx006_no_index,
    idx007_two_layouts,
    idx008_one_shard,
    idx009_two_formats,
    idx010_name_not_sought,
    idx011_no_metadata,
    idx012_no_format,
    mtp001_missing_layers,
    num001_nan_in_tie,
    onx001_stored_twice,
    onx002_latent_copy,
    onx003_tie_broken,
    onx004_nan_in_head,
    pef001_adapter_targets_tie,
    pef002_adapter_replaces_tied,
    pef003_unmerged_adapter,
    qnt001_quantised_head,
    sec001_special_files,
    sec002_repeated_key,
    sto001_duplicates,
    sto002_placeholder,
    sto003_storage_slack,
    sto004_partial_overlap,
    sto005_not_only_weights,
    tie001_different_values,
    tie002_redundant_copy,
    tie003_missing_head,
    tie004_could_be_tied,
    tie005_inverted_tie,
    tie006_missing_pair,
    tie007_version_decides,
    tie008_levels_disagree,
    tie009_never_tied,
    tie010_shapes_differ,
    tie011_missing_copies,
    tie012_guessed,
    tie013_flag_type,
    voc001_rows,
)
from tieconv.checks.interface import Rule

RULES: tuple[Rule, ...] = (
    tie001_different_values.RULE,
    tie002_redundant_copy.RULE,
    tie003_missing_head.RULE,
    tie004_could_be_tied.RULE,
    tie005_inverted_tie.RULE,
    tie006_missing_pair.RULE,
    tie007_version_decides.RULE,
    tie008_levels_disagree.RULE,
    tie009_never_tied.RULE,
    tie010_shapes_differ.RULE,
    tie011_missing_copies.RULE,
    tie012_guessed.RULE,
    tie013_flag_type.RULE,
    bia001_unknown_bias.RULE,
    bia002_half_a_bias_pair.RULE,
    bia003_bias_copies_differ.RULE,
    bia004_bias_length.RULE,
    sto001_duplicates.RULE,
    sto002_placeholder.RULE,
    sto003_storage_slack.RULE,
    sto004_partial_overlap.RULE,
    sto005_not_only_weights.RULE,
    num001_nan_in_tie.RULE,
    voc001_rows.RULE,
    qnt001_quantised_head.RULE,
    hed001_other_head.RULE,
    mtp001_missing_layers.RULE,
    idx001_absent_tensor.RULE,
    idx002_unindexed_tensor.RULE,
    idx003_repeated_tensor.RULE,
    idx004_total_size.RULE,
    idx005_orphan_file.RULE,
    idx006_no_index.RULE,
    idx007_two_layouts.RULE,
    idx008_one_shard.RULE,
    idx009_two_formats.RULE,
    idx010_name_not_sought.RULE,
    idx011_no_metadata.RULE,
    idx012_no_format.RULE,
    sec001_special_files.RULE,
    sec002_repeated_key.RULE,
    cod001_tied_keys.RULE,
    pef001_adapter_targets_tie.RULE,
    pef002_adapter_replaces_tied.RULE,
    pef003_unmerged_adapter.RULE,
    onx001_stored_twice.RULE,
    onx002_latent_copy.RULE,
    onx003_tie_broken.RULE,
    onx004_nan_in_head.RULE,
    con001_random_head.RULE,
    con002_discarded_head.RULE,
    con003_loader_refuses.RULE,
    con004_dropped_bias.RULE,
    con005_unknown_loader.RULE,
)
"""In the order of the documentation."""

_OF_GRAPHS = ("ONX", "SEC")
"""Rules that apply to ONNX graphs: most others are about what loaders of checkpoints do with names."""

_ORDER = {Level.ERROR: 0, Level.WARNING: 1, Level.NOTE: 2}


def run_all(inspection: Inspection) -> tuple[Finding, ...]:
    """What all rules find, the worst first, then by rule."""
    graphs = bool(inspection.checkpoint.graphs)
    rules = [rule for rule in RULES if not graphs or rule.code.startswith(_OF_GRAPHS)]
    found = [finding for rule in rules for finding in rule.find(inspection)]
    return tuple(sorted(found, key=lambda finding: (_ORDER[finding.level], finding.rule)))
