"""CON003: values of the config whose type, or whose missing part, makes transformers 5 refuse it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.checks.fixtures.model import EMBED, LLAMA, Config, flagged, llama, matrix, save
from tests.lazy import transformers
from tieconv.architectures import class_table

TIED: Config = flagged(LLAMA, True)
VISION: Config = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {"model_type": "llama", "vocab_size": 8, "hidden_size": 4},
    "vision_config": {"model_type": "clip_vision_model"},
    "tie_word_embeddings": True,
}
DECIMAL = "not a decimal number"
LINEAR = "in the config has the type linear, but no number as factor"
CASES: dict[str, tuple[Config, str]] = {
    "a text for a decimal number": (
        {**TIED, "rms_norm_eps": "1e-6"},
        'rms_norm_eps in the config is "1e-6", not a decimal number',
    ),
    "a whole number for a decimal one": (
        {**TIED, "rms_norm_eps": 1},
        "rms_norm_eps in the config is 1, not a decimal number",
    ),
    "a whole number where both are right": ({**TIED, "attention_dropout": 0}, ""),
    "a text for true or false": (
        {**TIED, "attention_bias": "false"},
        'attention_bias in the config is "false", not true or false',
    ),
    "null": ({**TIED, "hidden_act": None}, "hidden_act in the config is null, not text"),
    "null where it is right": ({**TIED, "head_dim": None, "bos_token_id": None}, ""),
    "a list is not judged": ({**TIED, "eos_token_id": [1, 2]}, ""),
    "a key that the class lacks": ({**TIED, "layer_norm_eps": "1e-6"}, ""),
    "two types": ({**TIED, "eos_token_id": "2"}, 'eos_token_id in the config is "2", not a whole number or null'),
    "a part": (
        {**VISION, "vision_config": {"model_type": "clip_vision_model", "layer_norm_eps": "1e-5"}},
        'vision_config.layer_norm_eps in the config is "1e-5", not a decimal number',
    ),
    "the text part": (
        {**VISION, "text_config": {**VISION["text_config"], "rms_norm_eps": "1e-5"}},
        'text_config.rms_norm_eps in the config is "1e-5", not a decimal number',
    ),
    "a part of an unknown type": ({**VISION, "vision_config": {"model_type": "acme", "layer_norm_eps": "1e-5"}}, ""),
    "code of the repository": ({**TIED, "rms_norm_eps": "1e-6", "auto_map": {"AutoConfig": "acme.AcmeConfig"}}, ""),
    "RoPE without its factor": ({**TIED, "rope_scaling": {"type": "linear"}}, f"rope_scaling {LINEAR}"),
    "a text as factor": (
        {**TIED, "rope_parameters": {"rope_type": "linear", "factor": "2"}},
        f"rope_parameters {LINEAR}",
    ),
    "the older key counts": (
        {**TIED, "rope_scaling": {"rope_type": "linear"}, "rope_parameters": {"rope_type": "default"}},
        f"rope_scaling {LINEAR}",
    ),
    "another part of it": (
        {**TIED, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
        "rope_scaling in the config has the type llama3, but no number as high_freq_factor",
    ),
    "lists": (
        {**TIED, "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
        "rope_scaling in the config has the type longrope, but no list as long_factor",
    ),
    "a whole RoPE": ({**TIED, "rope_scaling": {"type": "linear", "factor": 2}}, ""),
    "a type without parts": ({**TIED, "rope_scaling": {"type": "default"}}, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refused_value(case: str, tmp_path: Path) -> None:
    """The sentence names key, value and what transformers accepts. A config that it accepts has no finding."""
    config, sentence = CASES[case]
    table = EMBED if "text_config" not in config else "language_model.model.embed_tokens.weight"
    findings = api.inspect(save(tmp_path / "model", config, llama() if table == EMBED else {table: matrix()})).findings
    messages = [finding.message for finding in findings if finding.rule == "CON003"]
    assert messages == ([f"transformers 5.x: {sentence}. tieconv found no command that helps."] if sentence else [])


def test_a_size_is_reported_once(tmp_path: Path) -> None:
    """VOC001 reports a size of another type."""
    findings = api.inspect(save(tmp_path / "model", {**TIED, "num_hidden_layers": "3"}, llama())).findings
    assert {finding.rule for finding in findings} == {"VOC001"}


def test_transformers_refuses_them() -> None:
    """Each value that the table refuses for a few model types, and each missing key of a type of RoPE."""
    for model_type in ("bart", "clip_vision_model", "gpt2", "llama", "qwen3_moe"):
        assert [*_accepted(model_type)] == []
    for config, sentence in CASES.values():
        if "has the type" in sentence:
            with pytest.raises(Exception, match=r"required keys|unsupported operand"):
                transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig.from_dict(dict(config)))


@pytest.mark.matrix
def test_transformers_refuses_every_value_of_the_table() -> None:
    """As `test_transformers_refuses_them`, for all model types of the release that was measured."""
    kinds = [name for name in _table() if name in transformers.CONFIG_MAPPING]
    assert len(kinds) > 700
    assert [accepted for name in kinds for accepted in _accepted(name)] == []


def test_the_table_has_the_types_of_the_classes() -> None:
    """Nearly each class of the class table has a config class with checked keys."""
    types = {class_table.load(name).model_type for name in class_table.names()}  # type: ignore[union-attr]
    assert len(types - _table().keys()) < 10
    assert class_table.config_types("llama")["rms_norm_eps"] == ("decimal",)
    assert class_table.config_types("acme") == {} == class_table.config_types("")


def _table() -> dict[str, Any]:
    """The records of the table by model type."""
    path = Path(class_table.__file__).parent / "data" / "config_types.json"
    records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert records.pop("").keys() == {"transformers", "newer"}
    return records


def _accepted(model_type: str) -> list[str]:
    """The values that the table refuses, and that the config class accepts."""
    kind = transformers.CONFIG_MAPPING[model_type]
    raw = json.loads(kind().to_json_string(use_diff=False))
    values = {"text": "no-such-word", "boolean": True, "decimal": 0.5, "number": 1, "null": None}
    accepted = []
    for key, types in class_table.config_types(model_type).items():
        for wrong in values.keys() - {*types}:
            try:
                kind.from_dict({**raw, key: values[wrong]})
            except Exception:
                continue
            accepted.append(f"{model_type}.{key}: {wrong}")
    return accepted
