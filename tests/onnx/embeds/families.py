"""Tiny vision-language models, an image with a prompt for each, and greedy tokens of a model and its graphs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.lazy import ort, torch, transformers as tr
from tests.onnx.exported import CACHE

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


STEPS = 12


def torch_tokens(model: Any, inputs: dict[str, Any]) -> tuple[list[int], list[dict[str, Any]]]:
    """The new tokens of ``generate``, and what its decoder read in each pass: rows and positions."""
    read: list[dict[str, Any]] = []
    decoder = model.get_decoder()

    def note(_: object, args: Any, kwargs: dict[str, Any]) -> None:
        rows = kwargs.get("inputs_embeds")
        rows = model.get_input_embeddings()(kwargs["input_ids"]) if rows is None else rows
        read.append({"rows": rows.detach().clone(), "places": kwargs["position_ids"].detach().clone()})

    hook = decoder.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        made = model.generate(**inputs, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False)
    hook.remove()
    return made[0, inputs["input_ids"].shape[1] :].tolist(), read


def graph_tokens(directory: Path, read: list[dict[str, Any]], types: torch.Tensor | None, causal: int) -> list[int]:
    """The tokens of the two graphs, from the rows that the decoder got at first and then from their own embedding."""
    embedding, decoder = (
        ort.InferenceSession(str(directory / name), providers=["CPUExecutionProvider"])
        for name in ("embed_tokens.onnx", "model.onnx")
    )
    shapes = {value.name: value.shape for value in decoder.get_inputs()}
    names = [value.name for value in decoder.get_outputs()]
    cache = {
        name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in shapes.items() if f".{CACHE}." in name
    }
    rows, tokens, length = read[0]["rows"].numpy(), list[int](), 0
    for entry in read:
        places = entry["places"][-3:] if len(shapes["position_ids"]) == 3 else entry["places"]
        length += rows.shape[1]
        feeds = {"inputs_embeds": rows, "attention_mask": np.ones((1, length), np.int64), **cache}
        feeds["position_ids"] = places.numpy().reshape(*places.shape[:-1], -1)
        marks = next((name for name in shapes if name.endswith("token_type_ids")), None)
        if marks is not None:
            given = np.full((1, length), causal) if types is None else types.numpy()
            feeds[marks] = np.concatenate([given, np.full((1, length - given.shape[1]), causal)], 1).astype(np.int64)
        made = dict(zip(names, decoder.run(names, feeds), strict=True))
        cache = {name: made[name.replace("input.", "output.", 1)] for name in cache}
        tokens.append(int(made["logits"][0, -1].argmax()))
        (rows,) = embedding.run(None, {"input_ids": np.array([[tokens[-1]]])})
    return tokens
