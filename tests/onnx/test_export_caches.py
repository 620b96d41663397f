"""Models with another cache than keys and values are refused by class and config, before a weight is loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tieconv
from tests.cli.run import refused
from tieconv.onnx.export import adapter as export_adapter
from tieconv.onnx.export import carry_out as export_run
from tieconv.onnx.export.plan import check_cache
from tieconv.onnx.export.sample_inputs import check_inputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BASE = {"vocab_size": 88, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 48}
MADE: dict[str, tuple[str, dict[str, Any], str]] = {
    "mamba": ("Mamba", {"state_size": 8}, "in layer 0 (linear_attention, LinearAttentionLayer)"),
    "rwkv": ("Rwkv", {"attention_hidden_size": 32, "intermediate_size": 48}, "in every layer (argument state)"),
    "jamba": ("Jamba", HEADS, "in layer 0 (linear_attention, LinearAttentionLayer)"),
    "lfm2": ("Lfm2", HEADS | {"layer_types": ["full_attention", "conv"]}, "in layer 1 (conv, LinearAttentionLayer)"),
}
SERVED: dict[str, dict[str, Any]] = {
    "Llama": HEADS,
    "Mistral": HEADS | {"sliding_window": 8},
    "Gemma2": HEADS | {"head_dim": 16, "sliding_window": 8},
    "GPT2": {},
}


@pytest.mark.parametrize("name", MADE)
def test_refused_before_anything_is_loaded(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with class and reason, as a plan and with OUT; neither weights nor the exporter are touched."""
    prefix, more, why = MADE[name]
    config = getattr(transformers, f"{prefix}Config")(**BASE | more)
    getattr(transformers, f"{prefix}ForCausalLM")(config).save_pretrained(tmp_path / name)

    def touched(*_: Any) -> Any:
        raise AssertionError("the model was loaded or traced")

    monkeypatch.setattr(export_run, "load", touched)
    monkeypatch.setattr(export_adapter, "export_graph", touched)
    for out in ((), ("-o", tmp_path / "out")):
        told = refused("export", tmp_path / name, *out)
        assert f"{prefix}ForCausalLM keeps another state than keys and values {why}" in told
    assert not (tmp_path / "out").exists()


def test_a_cache_with_other_tensors(tmp_path: Path) -> None:
    """Layers that cache more than keys and values are refused by the class that transformers gives them."""
    transformers.DeepseekV32Config(**BASE | HEADS).save_pretrained(tmp_path)
    with pytest.raises(tieconv.TieconvError, match="DeepseekV32ForCausalLM keeps another state") as caught:
        check_cache("DeepseekV32ForCausalLM", str(tmp_path), str(tmp_path))
    assert "in layer 0 (indexed_attention, DynamicIndexedLayer)" in caught.value.message


def stateful() -> list[str]:
    classes = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    return sorted({
        name
        for name in classes
        if isinstance(name, str) and getattr(getattr(transformers, name, None), "_is_stateful", False) is True
    })  # fmt: skip


def test_there_are_stateful_classes() -> None:
    assert len(stateful()) > 15
    named = ("Mamba", "Mamba2", "Jamba", "FalconH1", "Zamba2", "Bamba", "GraniteMoeHybrid", "Rwkv", "Qwen3Next")
    assert {f"{prefix}ForCausalLM" for prefix in (*named, "RecurrentGemma")} <= set(stateful())


@pytest.mark.slow
def test_every_stateful_class_is_refused(tmp_path: Path) -> None:
    """Each class that transformers marks as stateful: one sentence with the class, the layer and the kind of state."""
    layer = "keeps another state than keys and values in (layer [0-9]+|every layer) [(][a-zA-Z_, 0-9]+[)]"
    for name in stateful():
        getattr(transformers, name).config_class().save_pretrained(tmp_path / name)
        with pytest.raises(tieconv.TieconvError) as caught:
            check_cache(name, str(tmp_path / name), "MODEL")
        assert re.match(f"MODEL: {name} {layer}", caught.value.message), caught.value.message


@pytest.mark.parametrize("prefix", SERVED)
def test_windows_are_no_state(tmp_path: Path, prefix: str) -> None:
    """Full and sliding attention, told as layer types or not at all, are served."""
    getattr(transformers, f"{prefix}Config")(**BASE | SERVED[prefix]).save_pretrained(tmp_path)
    check_cache(f"{prefix}{'LMHeadModel' if prefix == 'GPT2' else 'ForCausalLM'}", str(tmp_path), str(tmp_path))


MODALITIES = {
    "Qwen2VLForConditionalGeneration": "pixel_values",
    "LlavaForConditionalGeneration": "pixel_values",
    "Gemma3ForConditionalGeneration": "pixel_values",
    "WhisperForConditionalGeneration": "input_features",
}


@pytest.mark.parametrize("name", MODALITIES)
def test_models_of_images_and_sound(name: str) -> None:
    """The class alone says what it takes: no instance is made."""
    with pytest.raises(tieconv.TieconvError) as caught:
        check_inputs(getattr(transformers, name))
    why = f"{name} takes {MODALITIES[name]}: export supports only language models from tokens to logits"
    assert caught.value.message == why


def test_a_plan_refuses_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without OUT refuses sound of any length, and loads nothing."""
    monkeypatch.setattr(export_run, "load", None)
    sides = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 32, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 88, "pad_token_id": 0}
    config = transformers.Speech2TextConfig(**sides, **sizes)
    transformers.Speech2TextForConditionalGeneration(config).save_pretrained(tmp_path)
    assert "Speech2TextForConditionalGeneration reads input_features" in refused("export", tmp_path)
