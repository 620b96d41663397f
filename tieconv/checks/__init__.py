"""The rules of `inspect` and `check`. Each rule is a pure function over an inspection, in the file of its topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tieconv.architectures.effective_flag import (
    DERIVED_KEY,
    generation_without_row,
    odd_size,
    refused_config,
    tokens_without_row,
    undeclared_width,
    unfit_tensors,
)
from tieconv.architectures.stored_names import LEFT, missing_layers, surplus_layers, unexplained
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import OPENED, WEIGHTS_KEY, Checkpoint, Layout
from tieconv.checkpoint.quantised_matrix import LEAVES
from tieconv.checkpoint.tie_group import BiasState, Tie

if TYPE_CHECKING:
    from tieconv.checkpoint.finding import Finding
    from tieconv.checks.evidence import Rule

    RULES: tuple[Rule, ...]


EMA = ("ema.", "model_ema.", "ema_model.", "ema_state_dict.")
"""Prefixes of the average of weights (EMA) that trainers store beside the model."""


def run_checks(inspection: Inspection) -> tuple[Finding, ...]:
    """Return the findings of all rules, sorted by level and then by rule."""
    if not inspection.consumers and is_plain(inspection):
        return ()
    from tieconv.checks.registry import run_all

    return run_all(inspection)


def is_plain(inspection: Inspection) -> bool:
    """Return whether this is an ordinary tied model without findings, so that no rule needs to be loaded.

    The conditions are narrow on purpose. A test runs every rule on every such model of the tests.
    """
    family, bias = inspection.family, inspection.head.output_bias
    declared = inspection.config.declared and all(entry.value is True for entry in inspection.config.declared)
    return (
        family.knowledge is Knowledge.TABLE
        and family.tying is Tying.CAN
        and not family.output_biases
        and bool(declared)
        and _is_usual(inspection)
        and (bias is None or bias.state is BiasState.ABSENT)
        and all(map(_is_stored_once, inspection.ties))
        and not unexplained(inspection)
        and not odd_size(inspection)[1]
        and not refused_config(inspection)
        and not tokens_without_row(inspection)
        and not generation_without_row(inspection)
        and not any(missing_layers(inspection))
        and not any(surplus_layers(inspection))
        and not unfit_tensors(inspection)[1]
    )


def _is_usual(inspection: Inspection) -> bool:
    """Return whether the model is only weights, neither quantised nor adapted, with one vocabulary size."""
    checkpoint, embedding = inspection.checkpoint, inspection.head.input_embedding
    config = checkpoint.config_values
    return (
        checkpoint.format == "safetensors"
        and bool(inspection.config.model_type)
        and _is_found(checkpoint)
        and all(record.nbytes for record in checkpoint.tensors.values())
        and not (checkpoint.cautions or checkpoint.special or checkpoint.orphans or checkpoint.adapter)
        and "adapter_config.json" not in checkpoint.companions
        and not inspection.duplicates
        and not inspection.unusable
        and inspection.quantised is None
        and embedding is not None
        and embedding.shape[:1] == (config.get("vocab_size"),)
        and not any(undeclared_width(inspection, columns) for columns in embedding.shape[1:])
        and not _UNUSUAL & config.keys()
        and not any(isinstance(value, Mapping) and "vocab_size" in value for value in config.values())
        and not any(LEFT.search(name) or name.endswith(LEAVES) or name.startswith(EMA) for name in checkpoint.tensors)
    )


def _is_found(checkpoint: Checkpoint) -> bool:
    """Return whether the files have the names that every loader looks for, and an index that every loader reads."""
    index = checkpoint.index
    named = checkpoint.layout is Layout.FILE or checkpoint.entry in OPENED
    named = named and all(file.refused_format is None for file in checkpoint.files)
    return named and (index is None or isinstance(index.value.get("metadata"), Mapping))


_UNUSUAL = {DERIVED_KEY, WEIGHTS_KEY, "quantization_config", "num_nextn_predict_layers", "mtp_num_hidden_layers"}


def _is_stored_once(tie: Tie) -> bool:
    states = (member.state for member in tie.members if member.stored)
    return tie.declared and tie.canonical_stored and [*states] == [State.CANONICAL]
