"""The architectures that `export` is measured on: those of `exported`, and more kinds of heads, biases and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as tr

from tests.onnx.exported import _ENCODER, _SIZES, MODELS, ROWS, STD, WIDTH

_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}

ARCHITECTURES: dict[str, Callable[[], Any]] = {
    **MODELS,
    "phi": lambda: tr.PhiForCausalLM(tr.PhiConfig(**_SIZES)),
    "granite": lambda: tr.GraniteForCausalLM(
        tr.GraniteConfig(
            **_SIZES, logits_scaling=8.0, embedding_multiplier=12.0, attention_multiplier=0.3, residual_multiplier=0.22
        )
    ),
    "cohere": lambda: tr.CohereForCausalLM(tr.CohereConfig(**_SIZES, logit_scale=0.0625)),
    "mixtral": lambda: tr.MixtralForCausalLM(
        tr.MixtralConfig(**_SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
    ),
    "qwen2-moe": lambda: tr.Qwen2MoeForCausalLM(
        tr.Qwen2MoeConfig(**_SIZES, **_MOE, shared_expert_intermediate_size=24)
    ),
    "roberta": lambda: tr.RobertaForMaskedLM(tr.RobertaConfig(**_ENCODER | {"type_vocab_size": 1})),
    "bart": lambda: tr.BartForConditionalGeneration(
        tr.BartConfig(
            vocab_size=ROWS,
            d_model=WIDTH,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_position_embeddings=128,
            init_std=STD,
            decoder_start_token_id=2,
            scale_embedding=True,
        )
    ),
}
