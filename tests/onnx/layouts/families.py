"""The tiny models that each program of a layout generates with: those of `architectures`, and further families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tr

from tests.onnx.architectures import ARCHITECTURES
from tests.onnx.exported import _SIZES

_SIX = _SIZES | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}

FAMILIES: dict[str, Callable[[], Any]] = {
    **ARCHITECTURES,
    "gemma3": lambda: tr.Gemma3ForCausalLM(
        tr.Gemma3TextConfig(**_SIX, head_dim=8, sliding_window=8, query_pre_attn_scalar=8)
    ),
    "gpt-oss": lambda: tr.GptOssForCausalLM(
        tr.GptOssConfig(
            **_SIX, head_dim=8, sliding_window=8, num_local_experts=4, num_experts_per_tok=2, rope_parameters=None
        )
    ),
    "smollm3": lambda: tr.SmolLM3ForCausalLM(tr.SmolLM3Config(**_SIZES, pad_token_id=0)),
    "phi3": lambda: tr.Phi3ForCausalLM(tr.Phi3Config(**_SIZES, pad_token_id=0)),
    "olmo": lambda: tr.OlmoForCausalLM(tr.OlmoConfig(**_SIZES)),
    "stablelm": lambda: tr.StableLmForCausalLM(tr.StableLmConfig(**_SIZES)),
}
