"""The layout that optimum's `ORTModelForCausalLM`, `ORTModelForMaskedLM` and `ORTModelForSeq2SeqLM` load."""

from __future__ import annotations

from tieconv.onnx.export.layouts.interface import Layout, Model
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.quantise.scheme import Scheme

_HEAD_DIM = frozenset({"gemma", "gemma3_text", "gpt_oss", "nemotron"})
"""Model types whose `head_dim` optimum reads."""
_GROUPED = frozenset({
    "arcee", "cohere", "gemma", "gemma3_text", "glm", "granite", "gpt_oss", "helium", "mistral", "llama", "nemotron",
    "qwen2", "qwen3", "qwen3_moe", "smollm3", "stablelm",
})  # fmt: skip
"""Model types whose `num_key_value_heads` optimum reads. Others have as many as `num_attention_heads`."""
_SPECIAL = frozenset({"bloom", "deepseek_v3", "falcon", "gpt_bigcode"})
"""Model types whose cache optimum builds with a separate rule."""


class Optimum(Layout):
    """`optimum.onnxruntime.ORTModelForCausalLM` of optimum-onnx 0.1.0 (`modeling_decoder.py`)."""

    name = "optimum"
    program = "optimum-onnx 0.1.0"
    kinds = frozenset({Kind.CACHED, Kind.MASKED, Kind.PAIR})
    precisions = ("fp32", "fp16")
    data = "model.onnx_data"
    renames = True

    def cache_shape(self, model: Model) -> tuple[int, int] | None:
        heads = model.whole("num_attention_heads")
        width = (
            model.whole("head_dim") if model.model_type in _HEAD_DIM else model.whole("hidden_size") // max(heads, 1)
        )
        return (model.whole("num_key_value_heads") if model.model_type in _GROUPED else heads), width

    def empty_cache(self, model: Model) -> tuple[int, int] | None:
        return self.cache_shape(model)

    def check(self, model: Model, kind: Kind, precision: str, scheme: Scheme | None = None) -> None:
        super().check(model, kind, precision, scheme)
        if kind is Kind.PAIR and not (model.whole("num_attention_heads") and model.whole("hidden_size")):
            raise self.refused(model, f"{self.program} needs num_attention_heads and hidden_size of the decoder")
        if kind is Kind.CACHED and model.model_type in _SPECIAL:
            raise self.refused(model, f"{self.program} feeds {model.model_type} a cache of another form")
