"""Tiny vision-language models with random weights, and an image with a prompt for each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tr

ROWS, IMAGE = 320, 300
_TEXT: dict[str, Any] = {
    "vocab_size": ROWS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.15, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_EYE: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_QWEN_EYE: dict[str, Any] = {
    "depth": 2, "num_heads": 2, "patch_size": 8, "spatial_merge_size": 2, "temporal_patch_size": 2, "in_channels": 3,
}  # fmt: skip
_QWEN_IDS = {"video_token_id": 301, "vision_start_token_id": 302, "vision_end_token_id": 303}


Config = dict[str, Any] | Callable[[], dict[str, Any]]


def _model(prefix: str, text: Config, eye: Config, **more: Any) -> Callable[[], Any]:
    """The class with this prefix, with a tied head, on these two configs."""

    def make() -> Any:
        config = getattr(tr, f"{prefix}Config")(
            text_config=_values(text),
            vision_config=_values(eye),
            image_token_id=IMAGE,
            tie_word_embeddings=True,
            **more,
        )
        return getattr(tr, f"{prefix}ForConditionalGeneration")(config)

    return make


def _values(config: Config) -> dict[str, Any]:
    return config() if callable(config) else config


def _made(name: str, **values: Any) -> Callable[[], dict[str, Any]]:
    """The values of a config class, made when a model is: loading all classes takes seconds."""

    def make() -> dict[str, Any]:
        values_of: dict[str, Any] = getattr(tr, name)(**values).to_dict()
        return values_of

    return make


_CLIP = _made("CLIPVisionConfig", **_EYE, projection_dim=16)
_SIGLIP = _made("SiglipVisionConfig", **_EYE)
_PIXTRAL = _made("PixtralVisionConfig", **_EYE | {"image_size": 32, "patch_size": 4})
FAMILIES: dict[str, Callable[[], Any]] = {
    "llava": _model("Llava", _made("LlamaConfig", **_TEXT), _CLIP),
    "qwen2-vl": _model(
        "Qwen2VL", _TEXT | {"rope_parameters": _ROPE}, _QWEN_EYE | {"embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2},
        **_QWEN_IDS,
    ),
    "qwen2.5-vl": _model(
        "Qwen2_5_VL", _TEXT | {"rope_parameters": _ROPE},
        _QWEN_EYE | {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "window_size": 32,
                     "fullatt_block_indexes": [1]},
        **_QWEN_IDS,
    ),
    "paligemma": _model(
        "PaliGemma", _made("GemmaConfig", **_TEXT, head_dim=8), _SIGLIP, projection_dim=32, hidden_size=32,
    ),
    "gemma3": _model(
        "Gemma3", _TEXT | {"head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}, _SIGLIP,
        mm_tokens_per_image=4, boi_token_index=302, eoi_token_index=303,
    ),
    "idefics3": _model("Idefics3", _made("LlamaConfig", **_TEXT), _EYE, scale_factor=2),
    "smolvlm": _model("SmolVLM", _made("LlamaConfig", **_TEXT), _EYE, scale_factor=2),
    "internvl": _model(
        "InternVL", _made("Qwen2Config", **_TEXT), _EYE | {"image_size": [16, 16], "patch_size": [4, 4]},
    ),
    "mistral3": _model("Mistral3", _made("MistralConfig", **_TEXT, head_dim=8), _PIXTRAL, spatial_merge_size=2),
}  # fmt: skip
REFUSED: dict[str, Callable[[], Any]] = {
    "qwen3-vl": _model(
        "Qwen3VL", _TEXT | {"head_dim": 8, "rope_parameters": _ROPE},
        _QWEN_EYE | {"hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 24, "num_position_embeddings": 16,
                     "deepstack_visual_indexes": [0]},
        **_QWEN_IDS,
    ),
}  # fmt: skip


def save(name: str, directory: Path) -> Path:
    """The model on disk, with every parameter random and norms around 1."""
    torch.manual_seed(0)
    model = (FAMILIES | REFUSED)[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.15)
    model.generation_config = tr.GenerationConfig()
    model.save_pretrained(directory)
    return directory


def picture(name: str) -> dict[str, Any]:
    """An image between words, as the arguments of ``generate``."""
    torch.manual_seed(5)
    pixels: dict[str, Any] = {"pixel_values": torch.randn(1, 3, 16, 16)}
    count = 4
    if name.startswith("qwen2"):
        pixels = {"pixel_values": torch.randn(16, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    elif name in ("idefics3", "smolvlm"):
        pixels, count = {"pixel_values": torch.randn(1, 1, 3, 16, 16)}, 1
    elif name == "mistral3":
        pixels, count = {"pixel_values": torch.randn(1, 3, 32, 32), "image_sizes": torch.tensor([[32, 32]])}, 16
    ids = torch.tensor([[1, 17, 302, *[IMAGE] * count, 303, 45, 99, 7]])
    image = (ids == IMAGE).long()
    if name.startswith("qwen2"):
        pixels["mm_token_type_ids"] = image
    elif name == "gemma3":
        pixels["token_type_ids"] = image
    elif name == "paligemma":
        pixels["token_type_ids"] = torch.zeros_like(ids)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **pixels}


def words() -> dict[str, Any]:
    """A prompt of text."""
    ids = torch.tensor([[1, 17, 45, 99, 7, 211]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
