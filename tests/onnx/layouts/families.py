"""The tiny models that each program of a layout generates with: those of `architectures`, and further families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.lazy import transformers as tr
from tests.onnx.exported import _BART, _SIZES, ARCHITECTURES, ROWS, STD, WIDTH

_SIX = _SIZES | {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}

_HALVES = _BART | {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_T5: dict[str, Any] = {
    "vocab_size": ROWS, "d_model": WIDTH, "d_kv": 16, "d_ff": 48, "num_layers": 2, "num_heads": 3,
    "initializer_factor": 0.5, "decoder_start_token_id": 0, "feed_forward_proj": "gated-gelu",
}  # fmt: skip
"""Sizes of mT5-small: heads times their width is not the model's width."""

_LED = {"max_encoder_position_embeddings": 128, "max_decoder_position_embeddings": 128}

ENCODER_DECODERS: dict[str, Callable[[], Any]] = {
    "mt5": lambda: tr.MT5ForConditionalGeneration(tr.MT5Config(**_T5, tie_word_embeddings=False)),
    "umt5": lambda: tr.UMT5ForConditionalGeneration(tr.UMT5Config(**_T5)),
    "longt5": lambda: tr.LongT5ForConditionalGeneration(tr.LongT5Config(**_T5, local_radius=3)),
    "mbart": lambda: tr.MBartForConditionalGeneration(tr.MBartConfig(**_HALVES)),
    "marian": lambda: tr.MarianMTModel(tr.MarianConfig(**_HALVES)),
    "pegasus": lambda: tr.PegasusForConditionalGeneration(tr.PegasusConfig(**_HALVES)),
    "m2m100": lambda: tr.M2M100ForConditionalGeneration(tr.M2M100Config(**_HALVES)),
    "blenderbot": lambda: tr.BlenderbotForConditionalGeneration(tr.BlenderbotConfig(**_HALVES)),
    "blenderbot-small": lambda: tr.BlenderbotSmallForConditionalGeneration(tr.BlenderbotSmallConfig(**_HALVES)),
    "plbart": lambda: tr.PLBartForConditionalGeneration(tr.PLBartConfig(**_HALVES)),
    "led": lambda: tr.LEDForConditionalGeneration(tr.LEDConfig(**_HALVES | _LED, attention_window=4)),
}
"""Encoder-decoders besides t5 and bart."""

_VIT: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 4, "initializer_range": STD,
}  # fmt: skip
_ENDS: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2}


def _of_images(encoder: Any, decoder: Any) -> Any:
    """A `VisionEncoderDecoderModel` of these two configs. The encoder's width is projected to the decoder's."""
    config = tr.VisionEncoderDecoderConfig(encoder=encoder.to_dict(), decoder=decoder.to_dict(), **_ENDS)
    return tr.VisionEncoderDecoderModel(config)


OF_FEATURES: dict[str, Callable[[], Any]] = {
    "whisper": lambda: tr.WhisperForConditionalGeneration(
        tr.WhisperConfig(
            **{key: value for key, value in _HALVES.items() if key not in ("max_position_embeddings", "init_std")},
            init_std=0.6, num_mel_bins=8, max_source_positions=20, max_target_positions=128, suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    ),
    "trocr": lambda: _of_images(
        tr.ViTConfig(**_VIT),
        tr.TrOCRConfig(
            vocab_size=ROWS, d_model=WIDTH, decoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48,
            max_position_embeddings=128, init_std=STD, cross_attention_hidden_size=24, **_ENDS,
        ),
    ),
    "vit-gpt2": lambda: _of_images(
        tr.ViTConfig(**_VIT),
        tr.GPT2Config(
            vocab_size=ROWS, n_embd=WIDTH, n_layer=2, n_head=4, n_positions=128, initializer_range=STD,
            add_cross_attention=True, is_decoder=True, **_ENDS,
        ),
    ),
    "donut": lambda: _of_images(
        tr.DonutSwinConfig(
            image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4,
            initializer_range=STD,
        ),
        tr.MBartConfig(**_HALVES, is_decoder=True, add_cross_attention=True),
    ),
}  # fmt: skip
"""Encoder-decoders whose encoder reads sound or images."""

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
    **ENCODER_DECODERS,
    **OF_FEATURES,
    "olmo": lambda: tr.OlmoForCausalLM(tr.OlmoConfig(**_SIZES)),
    "stablelm": lambda: tr.StableLmForCausalLM(tr.StableLmConfig(**_SIZES)),
}
