"""QNT011: a quantisation config beside files of floats, as a merge or a dequantisation leaves it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import LLAMA, Config, Tensors, flagged, llama, matrix, save
from tieconv.gate.examine import file_of

UP = "model.layers.0.mlp.up_proj"
FLOATS: Tensors = {**llama(), f"{UP}.weight": matrix(4, 4)}


def packed(layout: str = "pack-quantized", **values: object) -> Config:
    """The config of compressed-tensors."""
    group = {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int"}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}, **values}


AWQ: Config = {"quant_method": "awq", "bits": 4}
BNB: Config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
REPORTED: dict[str, Config] = {
    "awq": AWQ,
    "awq without the head": {**AWQ, "modules_to_not_convert": ["lm_head"]},
    "bitsandbytes": BNB,
    "bitsandbytes without the head": {**BNB, "llm_int8_skip_modules": ["lm_head"]},
    "compressed-tensors": packed(ignore=["lm_head"]),
    "compressed-tensors of 8 bits": packed("int-quantized", ignore=["re:.*lm_head"]),
    "compressed-tensors of FP8": packed("float-quantized"),
    "gptq": {"quant_method": "gptq", "bits": 4},
}
SILENT: dict[str, tuple[Config, Tensors]] = {
    "another method": ({"quant_method": "fp8"}, FLOATS),
    "a format that was not measured": (packed("dense"), FLOATS),
    "layers that are left out": (packed(ignore=["lm_head", UP]), FLOATS),
    "other targets": (packed(config_groups={"group_0": {"targets": ["Embedding"], "weights": {}}}), FLOATS),
    "awq leaves a layer out": ({**AWQ, "modules_to_not_convert": ["mlp"]}, FLOATS),
    "bitsandbytes leaves a layer out": ({**BNB, "llm_int8_skip_modules": ["mlp"]}, FLOATS),
    "gptq chooses blocks": ({"quant_method": "gptq", "modules_in_block_to_quantize": [["self_attn.q_proj"]]}, FLOATS),
    "gptq with rules": ({"quant_method": "gptq", "dynamic": {"-:.*mlp.*": {}}}, FLOATS),
    "codes": (AWQ, {**llama(), f"{UP}.qweight": matrix(4, 4).view("i4"), f"{UP}.scales": matrix(1, 4)}),
    "codes of other layers": (AWQ, {**FLOATS, "model.layers.1.mlp.up_proj.qweight": matrix(4, 4).view("i4")}),
    "scales": (packed(), {**FLOATS, f"{UP}.weight_scale": matrix(4, 1)}),
    "no matrix of a layer": (AWQ, llama()),
    "experts alone": (AWQ, {**llama(), "model.layers.0.mlp.experts.0.up_proj.weight": matrix(4, 4)}),
}


@pytest.mark.parametrize("case", REPORTED)
def test_floats_alone(case: str, tmp_path: Path) -> None:
    """The finding names the method, a matrix and the entry of the config, which is the file at fault."""
    folder = save(tmp_path / "model", {**flagged(LLAMA, True), "quantization_config": REPORTED[case]}, FLOATS)
    inspection = api.inspect(folder)
    (finding,) = [finding for finding in inspection.findings if finding.rule == "QNT011"]
    method = str(REPORTED[case]["quant_method"])
    start = f"quantization_config says that {method} quantised the layers, but the files store {UP}.weight"
    assert finding.message.startswith(start)
    assert (finding.tensors, file_of(inspection, finding)) == ((f"{UP}.weight",), "config.json")
    assert api.check(folder).exit_code == 1


@pytest.mark.parametrize("case", SILENT)
def test_it_says_nothing(case: str, tmp_path: Path) -> None:
    """The files have codes or scales, or the config may leave the layers out, or transformers was not measured."""
    settings, tensors = SILENT[case]
    folder = save(tmp_path / "model", {**flagged(LLAMA, True), "quantization_config": settings}, tensors)
    assert "QNT011" not in {finding.rule for finding in api.inspect(folder).findings}


def test_an_adapter_says_nothing(tmp_path: Path) -> None:
    """The base model has the codes."""
    folder = save(tmp_path / "model", {**flagged(LLAMA, True), "quantization_config": AWQ}, FLOATS)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    assert "QNT011" not in {finding.rule for finding in api.inspect(folder).findings}


def test_another_class_of_a_model_type(tmp_path: Path) -> None:
    """TIE012 is a warning if no tensor has the name of the embedding that transformers builds from the model_type."""
    config = {**flagged(LLAMA, True), "model_type": "gpt2"}
    (finding,) = api.inspect(save(tmp_path / "model", config, FLOATS)).findings
    assert (finding.rule, finding.level) == ("TIE012", "warning")
    assert finding.message.endswith(
        "transformers builds GPT2LMHeadModel from this model_type, and no stored tensor has the name of its embedding."
    )
    config = {**config, "auto_map": {"AutoModelForCausalLM": "acme.Acme"}}
    (finding,) = api.inspect(save(tmp_path / "own", config, FLOATS)).findings
    assert (finding.rule, finding.level) == ("TIE012", "note")
    named = {**config, "architectures": ["GPT2ForAcme"], "auto_map": {}}
    (finding,) = api.inspect(save(tmp_path / "named", named, {"wte.weight": matrix()})).findings
    assert (finding.rule, "transformers builds" in finding.message) == ("TIE012", False)
