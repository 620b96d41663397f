"""Split a model of PEFT into its base model and its adapter, as `save_pretrained` of PEFT does."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from tieconv.checkpoint.model_files import Adapter
from tieconv.checks.adapters import WRAPPER, part_of
from tieconv.formats.peft import adapter_of
from tieconv.live.live_tensors import LiveTensor, capture_state

_REPLACED = ".modules_to_save."
_LAYERS = (".base_layer.", ".original_module.")
_DELTAS = (".trainable_tokens_", ".token_adapter.")


def base_tensors(model: Any) -> tuple[LiveTensor, ...]:
    """Return the tensors of the base model under their names without PEFT's layers."""
    state = model.state_dict(keep_vars=True)
    tensors = capture_state(model, state)
    return tuple(replace(tensor, name=name) for tensor in tensors if (name := _base_name(tensor.name)))


def _base_name(name: str) -> str:
    """Return a parameter's name in the base model; empty for a part of the adapter."""
    if part_of(name) or _REPLACED in name or any(word in name for word in _DELTAS):
        return ""
    for layer in _LAYERS:
        name = name.replace(layer, ".")
    return name.removeprefix(WRAPPER)


def adapter_tensors(model: Any) -> tuple[LiveTensor, ...]:
    """Return the tensors that PEFT saves for the active adapter, under their names in the file."""
    from peft import get_peft_model_state_dict

    base = model.get_base_model()
    tables = (base.get_input_embeddings(), base.get_output_embeddings())
    with warnings.catch_warnings():  # PEFT reports what it adds to the file; the names show it
        warnings.simplefilter("ignore")
        state = get_peft_model_state_dict(
            model,
            state_dict=model.state_dict(keep_vars=True),
            adapter_name=model.active_adapter,
            save_embedding_layers=any(hasattr(table, "base_layer") for table in tables),
        )
    return capture_state(model, state)


def adapter(model: Any) -> Adapter:
    """Return the config of the active adapter."""
    config = model.peft_config[model.active_adapter].to_dict()
    values = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    return adapter_of({**values, "peft_type": str(getattr(values.get("peft_type"), "value", values.get("peft_type")))})
