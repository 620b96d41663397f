"""The layout that transformers.js loads: `onnx/model.onnx`, and a config with `transformers.js_config`."""

from __future__ import annotations

import json
from typing import Any

from tieconv.onnx.export.layouts.interface import STEM, Layout, Model
from tieconv.onnx.parity.encoder_decoder.pair_files import DECODER, ENCODER
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.quantise.scheme import Scheme

_GROUPED = frozenset({
    "afmoe", "apertus", "arcee", "cohere", "cohere2", "gpt_oss", "granite", "llama", "mistral", "mobilellm", "nanochat",
    "olmo", "olmo2", "olmo3", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3_moe", "smollm3", "starcoder2", "ernie4_5",
    "exaone", "gemma", "gemma2", "gemma3_text", "glm", "helium", "hunyuan_v1_dense", "ministral", "ministral3", "qwen3",
    "solar_open", "vaultgemma",
})  # fmt: skip
"""Decoders with a cache of `num_key_value_heads` and `head_dim` (or hidden size / heads)."""
_HEAD_DIM = frozenset({
    "ernie4_5", "gemma", "gemma2", "gemma3_text", "glm", "helium", "hunyuan_v1_dense", "ministral", "ministral3",
    "qwen3", "solar_open", "vaultgemma",
})  # fmt: skip
"""Those of them that need `head_dim` in the config."""
_WHOLE = frozenset({"codegen", "gpt2", "gpt_neox", "gptj", "jais", "opt", "stablelm"})
"""Decoders with a cache of as many heads as `num_attention_heads`."""
_PAIRS = frozenset({
    "bart", "blenderbot", "blenderbot-small", "longt5", "m2m_100", "marian", "mbart", "mt5", "t5",
    "vision-encoder-decoder", "whisper",
})  # fmt: skip
"""Encoder-decoders. transformers.js reads the shape of their caches from the graph."""
_MASKED = frozenset({
    "albert", "bert", "camembert", "convbert", "deberta", "deberta-v2", "distilbert", "electra", "esm", "mobilebert",
    "modernbert", "mpnet", "roberta", "roformer", "squeezebert", "xlm", "xlm-roberta",
})  # fmt: skip


_DTYPES: dict[tuple[str, Scheme | None], tuple[str, str]] = {
    ("fp32", None): ("fp32", ""),
    ("fp16", None): ("fp16", "_fp16"),
    ("fp32", Scheme.INT8): ("q8", "_quantized"),
    ("fp32", Scheme.DYNAMIC): ("q8", "_quantized"),
    ("fp32", Scheme.INT4): ("q4", "_q4"),
}
"""The values of `dtype` and the suffixes of their files (`src/utils/dtypes.js`), by precision and scheme."""


class TransformersJS(Layout):
    """`@huggingface/transformers` 4.3.1 (`src/configs.js`, `src/models/registry.js`, `src/models/session.js`)."""

    name = "transformers.js"
    program = "transformers.js 4.3.1"
    kinds = frozenset({Kind.CACHED, Kind.MASKED, Kind.PAIR})
    precisions = ("fp32", "fp16")
    renames = True
    batch_axis = "batch_size"
    made = frozenset({"config.json"})

    def graph(self, precision: str, stem: str = STEM, scheme: Scheme | None = None) -> str:
        return f"onnx/{_name(precision, stem, scheme)}.onnx"

    def data_of(self, precision: str, stem: str = STEM, scheme: Scheme | None = None) -> str:
        # The browser loads a data file for one graph, by the graph's name.
        return f"{_name(precision, stem, scheme)}.onnx_data"

    def check(self, model: Model, kind: Kind, precision: str, scheme: Scheme | None = None) -> None:
        super().check(model, kind, precision, scheme)
        types = {Kind.MASKED: _MASKED, Kind.PAIR: _PAIRS}.get(kind, _GROUPED | _WHOLE)
        if model.model_type not in types:
            raise self.refused(model, f"the layout {self.name} does not support the model type {model.model_type}")
        decoder = model.values.get("decoder")
        inner = str(decoder.get("model_type", "")) if isinstance(decoder, dict) else ""
        if inner and inner not in _PAIRS | {"trocr"}:
            raise self.refused(model, f"{self.program} feeds a decoder of type {inner} no cache of the encoder")

    def cache_shape(self, model: Model) -> tuple[int, int] | None:
        # transformers.js reads the file, and not the defaults of transformers' class.
        heads = _entry(model, "num_attention_heads", "n_head")
        width = _entry(model, "head_dim") if model.model_type not in _WHOLE else 0
        if model.model_type not in _HEAD_DIM:
            width = width or _entry(model, "hidden_size", "n_embd") // max(heads, 1)
        return (heads if model.model_type in _WHOLE else _entry(model, "num_key_value_heads")), width

    def documents(self, model: Model, precision: str, kind: Kind, scheme: Scheme | None = None) -> dict[str, str]:
        stems = (ENCODER, DECODER) if kind is Kind.PAIR else (STEM,)
        dtype, _ = _DTYPES[precision, scheme]
        settings: dict[str, Any] = {
            "dtype": dtype,
            "use_external_data_format": {f"{_name(precision, stem, scheme)}.onnx": 1 for stem in stems},
        }
        if precision == "fp16":
            settings["kv_cache_dtype"] = {dtype: "float16"}
        return {"config.json": json.dumps({**model.values, "transformers.js_config": settings}, indent=2) + "\n"}


def _name(precision: str, stem: str, scheme: Scheme | None) -> str:
    """Return the name of a graph, to which transformers.js adds a suffix for its type."""
    return f"{stem}{_DTYPES[precision, scheme][1]}"


def _entry(model: Model, *names: str) -> int:
    """Return the first of these entries of `config.json` that is a positive integer; 0 if none is."""
    entries = (model.values.get(name) for name in names)
    return next((value for value in entries if isinstance(value, int) and value > 0), 0)
