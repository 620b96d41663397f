"""The families of the grid: classes that at least one of the loaders reads, as tiny models of `fixtures.zoo`."""

from __future__ import annotations

from typing import Any

CAUSAL = (
    "ApertusForCausalLM", "ArceeForCausalLM", "BloomForCausalLM", "Cohere2ForCausalLM", "CohereForCausalLM",
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "Dots1ForCausalLM", "Ernie4_5ForCausalLM",
    "Ernie4_5_MoeForCausalLM", "Exaone4ForCausalLM", "FalconForCausalLM", "FalconH1ForCausalLM",
    "FalconMambaForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTJForCausalLM", "GPTNeoXForCausalLM",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "GemmaForCausalLM", "Glm4ForCausalLM", "GlmForCausalLM",
    "GptOssForCausalLM", "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeHybridForCausalLM",
    "GraniteMoeSharedForCausalLM", "HeliumForCausalLM", "HunYuanDenseV1ForCausalLM", "JambaForCausalLM",
    "Lfm2ForCausalLM", "LlamaForCausalLM", "Mamba2ForCausalLM", "MambaForCausalLM", "MiniMaxForCausalLM",
    "MistralForCausalLM", "MixtralForCausalLM", "MptForCausalLM", "NemotronForCausalLM", "OPTForCausalLM",
    "Olmo2ForCausalLM", "Olmo3ForCausalLM", "OlmoForCausalLM", "OlmoeForCausalLM", "Phi3ForCausalLM",
    "PhiForCausalLM", "PhimoeForCausalLM", "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM", "SeedOssForCausalLM", "SmolLM3ForCausalLM", "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
)  # fmt: skip
OTHERS = (
    "BartForConditionalGeneration", "BertForMaskedLM", "Gemma3ForConditionalGeneration",
    "LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration", "Qwen2VLForConditionalGeneration",
    "T5ForConditionalGeneration",
)  # fmt: skip
"""Classes with text inside a composite, an encoder and a decoder, or no causal head."""

FAMILIES = (*CAUSAL, *OTHERS)

_ROUND = {"vocab_size": 112}
CONFIGS: dict[str, dict[str, Any]] = {
    "BambaForCausalLM": {**_ROUND, "attn_layer_indices": [1]},
    "Ernie4_5_MoeForCausalLM": {"intermediate_size": 160},
    "FalconForCausalLM": {"ffn_hidden_size": 256},
    "FalconMambaForCausalLM": {**_ROUND, "intermediate_size": 128},
    "GraniteMoeHybridForCausalLM": _ROUND,
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"], "full_attn_idxs": [1]},
    "Mamba2ForCausalLM": _ROUND,
    "MambaForCausalLM": {**_ROUND, "intermediate_size": 128},
    "NemotronHForCausalLM": _ROUND,
    "PhiForCausalLM": {"intermediate_size": 256},
    "SmolLM3ForCausalLM": {"no_rope_layer_interval": 4, "no_rope_layers": [1, 1]},
}
"""What the tiny config of a class needs beyond `fixtures.zoo`, so that llama.cpp computes what transformers computes.

Its converter rounds the vocabulary of the state space models up, and derives sizes that other loaders read.
"""

_OLDER_DTYPE = "torch_dtype"
_OLDER_LAYERS = {"linear_attention": "mamba", "full_attention": "attention"}
"""The names of Granite's layers in transformers before 5.4, which later releases read too."""


def older_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return ``config`` with the keys of transformers 4 beside those of 5; mlx-lm and llama.cpp read these."""
    made: dict[str, Any] = {
        key: older_keys(value) if isinstance(value, dict) else value for key, value in config.items()
    }
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        made.setdefault("rope_theta", rope["rope_theta"])
        if "partial_rotary_factor" in rope:
            made.setdefault("partial_rotary_factor", rope["partial_rotary_factor"])
        made.setdefault("rope_scaling", None)
    if "dtype" in config:
        made[_OLDER_DTYPE] = config["dtype"]
    if config.get("model_type") == "gpt2" and "n_positions" in config:
        made.setdefault("n_ctx", config["n_positions"])
    if str(config.get("model_type")).startswith("qwen") and "num_local_experts" in config:
        made.setdefault("num_experts", config["num_local_experts"])
    if config.get("model_type") == "granitemoehybrid":
        made["layer_types"] = [_OLDER_LAYERS.get(layer, layer) for layer in config["layer_types"]]
    return made
