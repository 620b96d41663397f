"""The layout that `onnxruntime_genai.Model` loads: a graph and `genai_config.json`."""

from __future__ import annotations

import json
from typing import Any

from tieconv.onnx.export.layouts.interface import Layout, Model
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.quantise.scheme import Scheme

_TYPES = {
    **{
        name: name
        for name in (
            "chatglm", "ernie4_5", "gemma", "gemma2", "gemma3_text", "granite", "internlm2", "llama", "mistral",
            "nemotron", "olmo", "phi", "phi3", "phimoe", "qwen2", "qwen3", "smollm3",
        )
    },
    "gpt_oss": "gptoss",
    "hunyuan_v1_dense": "hunyuandensev1",
}  # fmt: skip
"""The types of onnxruntime-genai for decoders with a cache of keys and values, by transformers' model types."""
_SEARCH: dict[str, Any] = {
    "diversity_penalty": 0.0, "do_sample": False, "length_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": 0,
    "num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1.0, "temperature": 1.0, "top_k": 50, "top_p": 1.0,
}  # fmt: skip
"""Settings of the search with their values for a model whose generation config does not set them."""


class GenAI(Layout):
    """`onnxruntime_genai` 0.18.0. Its own builder writes the same entries (`models/builders/base.py`)."""

    name = "genai"
    program = "onnxruntime-genai 0.18.0"
    kinds = frozenset({Kind.CACHED})
    renames = True
    reads_generation = True
    made = frozenset({"genai_config.json"})

    def check(self, model: Model, kind: Kind, precision: str, scheme: Scheme | None = None) -> None:
        super().check(model, kind, precision, scheme)
        if model.model_type == "gpt2":
            raise self.refused(model, f"{self.program} reads a layer's keys and values of gpt2 from one tensor")
        if model.model_type not in _TYPES:
            raise self.refused(model, f"{self.program} has no model type for {model.model_type}")
        if not model.whole("max_position_embeddings"):
            raise self.refused(model, "the config has no max_position_embeddings, which genai_config.json needs")

    def documents(self, model: Model, precision: str, kind: Kind, scheme: Scheme | None = None) -> dict[str, str]:
        document = {"model": self._model(model, precision), "search": _search(model)}
        return {"genai_config.json": json.dumps(document, indent=4) + "\n"}

    def _model(self, model: Model, precision: str) -> dict[str, Any]:
        heads = model.whole("num_attention_heads")
        tokens = {key: _token(model, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        first = tokens["eos_token_id"][0] if isinstance(tokens["eos_token_id"], list) else tokens["eos_token_id"]
        # genai has no empty entry: a model without padding pads with the token that ends a text.
        tokens["pad_token_id"] = first if tokens["pad_token_id"] is None else tokens["pad_token_id"]
        return {
            "type": _TYPES[model.model_type],
            **{key: token for key, token in tokens.items() if token is not None},
            "context_length": model.whole("max_position_embeddings"),
            "vocab_size": model.whole("vocab_size"),
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": self.graph(precision),
                "head_size": model.whole("head_dim") or model.whole("hidden_size") // heads,
                "hidden_size": model.whole("hidden_size"),
                "num_attention_heads": heads,
                "num_hidden_layers": model.whole("num_hidden_layers"),
                "num_key_value_heads": model.whole("num_key_value_heads") or heads,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "position_ids": "position_ids",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        }


def _token(model: Model, key: str) -> Any:
    """Return the token of the generation config, or else that of the config."""
    value = model.generation.get(key)
    return getattr(model.config, key, None) if value is None else value


def _search(model: Model) -> dict[str, Any]:
    settings = {key: model.generation[key] for key in _SEARCH if model.generation.get(key) is not None}
    return {
        **_SEARCH,
        **settings,
        "early_stopping": True,
        "max_length": model.whole("max_position_embeddings"),
        # The graph returns a new cache at each step.
        "past_present_share_buffer": False,
    }
