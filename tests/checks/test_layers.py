"""STO006 and STO007: the layers in the tensor names, and what is beside them, against the config and its class."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tieconv as api
from tests.checks.fixtures.files import FIRST, FOUR, NORM, SECOND, layers
from tests.checks.fixtures.model import (
    EMBED,
    HEAD,
    NESTED_EMBED,
    REMOTE,
    T5,
    Config,
    Tensors,
    flagged,
    gptq,
    llama,
    matrix,
    save,
    save_shards,
    vector,
)
from tests.cli.run import run
from tieconv.architectures import class_table, effective_flag
from tieconv.architectures.stored_names import known_names, missing_layers, surplus_layers, variants
from tieconv.checkpoint.family import Family

UP, DOWN = "model.layers.2.mlp.up_proj.weight", "model.layers.2.mlp.down_proj.weight"
GPT2: Config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 8, "n_layer": 3}
MOE: Config = {**FOUR, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
VISION: Config = {
    "architectures": ["Qwen3VLForConditionalGeneration"],
    "model_type": "qwen3_vl",
    "text_config": {"model_type": "qwen3_vl_text", "num_hidden_layers": 3, "vocab_size": 8},
    "vision_config": {"depth": 2},
    "tie_word_embeddings": True,
}
LN_F = {"ln_f.weight": matrix(), "ln_f.bias": matrix(), "wpe.weight": matrix()}
PARTS = {
    NESTED_EMBED.replace("language_model.model", "model.language_model"): matrix(),
    "model.visual.pos_embed.weight": matrix(),
}


def without(tensors: Tensors, *names: str) -> dict[str, Any]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(names)}


LARGE: Config = {**FOUR, "vocab_size": 70_000}
LARGE_T5: Config = {**T5, "vocab_size": LARGE["vocab_size"], "num_layers": 2, "num_decoder_layers": 2}
T5_NORMS = {f"{part}.final_layer_norm.weight": matrix() for part in ("encoder", "decoder")}
T5_NORMS |= {"encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": matrix()}
WHOLE = {**llama(), **NORM, **layers(range(4))}
CASES: dict[str, tuple[Config | None, Tensors, str]] = {
    "whole": (FOUR, WHOLE, ""),
    "the last two": (
        FOUR,
        without(WHOLE, "model.layers.2.", "model.layers.3."),
        "model.layers.2 and model.layers.3 are not stored, but the config says 4 layers (num_hidden_layers). "
        "transformers fills them with untrained values.",
    ),
    "the first, without the prefix of the base model": (
        GPT2,
        {"wte.weight": matrix(), **layers([1, 2], "h."), **LN_F},
        "h.0 is not stored, but the config says 3 layers (n_layer). transformers fills it with untrained values.",
    ),
    "more than the config counts": (FOUR, {**WHOLE, **layers([4, 61])}, ""),
    "one tensor of one layer": (
        FOUR,
        without(WHOLE, UP),
        f"{UP} is not stored, but the other 3 layers have it. transformers fills it with untrained values.",
    ),
    "two tensors of one layer": (
        FOUR,
        without(WHOLE, UP, DOWN),
        f"{DOWN} and {UP} are not stored, but the other 3 layers have them. "
        "transformers fills them with untrained values.",
    ),
    "two layers differ from the rest": (FOUR, without(WHOLE, UP, UP.replace("2", "1")), ""),
    "a layer with another tensor instead": (FOUR, {**without(WHOLE, UP), UP + "_scale": matrix()}, ""),
    "a layer with one more tensor": (FOUR, {**WHOLE, "model.layers.1.rotary.inv_freq": matrix()}, ""),
    "a layer without the scales, buffers, biases and adapters of the others": (
        FOUR,
        {
            **WHOLE,
            **{
                f"model.layers.{number}.mlp.up_proj.{part}": matrix()
                for number in range(3)
                for part in ("weight_scale", "inv_freq", "bias", "lora_A.default.weight")
            },
        },
        "",
    ),
    "a module with a weight and a bias": (
        FOUR,
        {
            **WHOLE,
            **{f"model.layers.{number}.norm.{part}": matrix() for number in range(3) for part in ("weight", "bias")},
        },
        "model.layers.3.norm.bias and model.layers.3.norm.weight are not stored, but the other 3 layers have them. "
        "transformers fills them with untrained values.",
    ),
    "Gemma 4 without an embedding for each layer": (
        {**FOUR, "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"},
        WHOLE,
        "",
    ),
    "two layers in all": (
        {**FOUR, "num_hidden_layers": 2},
        {**llama(), **NORM, **without(layers([0, 1]), UP[:13] + "1.mlp.up")},
        "",
    ),
    "a class whose layers differ": (MOE, without(WHOLE, UP), ""),
    "a whole layer of a class whose layers differ": (
        MOE,
        without(WHOLE, "model.layers.2."),
        "model.layers.2 is not stored, but the config says 4 layers (num_hidden_layers). "
        "transformers fills it with untrained values.",
    ),
    "one tensor of a quantised model": (
        {**FOUR, "quantization_config": {"quant_method": "fp8"}},
        without(WHOLE, UP),
        "",
    ),
    "a whole layer of a quantised model": (
        flagged(FOUR, False),
        {**without(WHOLE, "model.layers.0."), **gptq()},
        "model.layers.0 is not stored, but the config says 4 layers (num_hidden_layers). "
        "transformers fills it with untrained values.",
    ),
    "mlx": (
        {**FOUR, "quantization": {"bits": 4, "group_size": 32}},
        without(WHOLE, "model.layers.0."),
        "model.layers.0 is not stored, but the config says 4 layers (num_hidden_layers). "
        "mlx-lm fails to load the model.",
    ),
    "the last norm": (
        FOUR,
        without(WHOLE, *NORM),
        "model.norm.weight is not stored, but LlamaForCausalLM always has it. "
        "transformers fills it with untrained values.",
    ),
    "the last norm, without the prefix of the base model": (
        {**GPT2, "n_layer": 2},
        {"wte.weight": matrix(), "wpe.weight": matrix(), **layers([0, 1], "h.")},
        "ln_f.bias and ln_f.weight are not stored, but GPT2LMHeadModel always has them. "
        "transformers fills them with untrained values.",
    ),
    "the bias of the last norm": (
        {**GPT2, "n_layer": 2},
        {"wte.weight": matrix(), **layers([0, 1], "h."), **without(LN_F, "ln_f.bias")},
        "ln_f.bias is not stored, but GPT2LMHeadModel always has it. transformers fills it with untrained values.",
    ),
    "a norm with old names": (
        {**GPT2, "n_layer": 2},
        {
            **{name: matrix() for name in ("wte.weight", "wpe.weight", "ln_f.gamma", "ln_f.beta")},
            **layers([0, 1], "h."),
        },
        "",
    ),
    "a norm that a key of the config removes": (
        {"architectures": ["OPTForCausalLM"], "model_type": "opt", "num_hidden_layers": 2, "vocab_size": 8},
        {
            **{f"model.decoder.embed_{part}.weight": matrix() for part in ("tokens", "positions")},
            **layers([0, 1], "model.decoder.layers."),
        },
        "",
    ),
    "no layer at all": (FOUR, {**llama(), **NORM}, ""),  # so small a file is an example of names
    "no layer in a large file": (
        LARGE,
        {EMBED: matrix(LARGE["vocab_size"]), **NORM},
        "model.layers.0, model.layers.1, model.layers.2 and model.layers.3 are not stored, but the config says 4 "
        "layers (num_hidden_layers). transformers fills them with untrained values.",
    ),
    "no layer in a large file, and a name that the class lacks": (
        LARGE,
        {EMBED: matrix(LARGE["vocab_size"]), "blocks": matrix()},
        "",
    ),
    "one of two lists in a large file": (
        LARGE_T5,
        {"shared.weight": matrix(LARGE["vocab_size"]), **T5_NORMS, **layers([0, 1], "encoder.block.")},
        "decoder.block.0 and decoder.block.1 are not stored, but the config says 2 layers (num_decoder_layers). "
        "transformers fills them with untrained values.",
    ),
    "one of two lists in a large file, and the last number in another name": (
        LARGE_T5,
        {
            "shared.weight": matrix(LARGE["vocab_size"]),
            **T5_NORMS,
            **layers([0, 1], "encoder.block."),
            "decoder.layers.1.weight": matrix(),
        },
        "",
    ),
    "a large file without a number of layers": (
        without(LARGE, "num_hidden_layers"),
        {EMBED: matrix(LARGE["vocab_size"])},
        "",
    ),
    "a large file of an unknown class": (
        {**LARGE, **REMOTE, "num_hidden_layers": 4},
        {EMBED: matrix(LARGE["vocab_size"])},
        "",
    ),
    "layers under names of another class": (FOUR, {**llama(), **layers([0], "transformer.h.")}, ""),
    "an example of names": (FOUR, {**llama(), UP: matrix()}, ""),
    "no config": (None, without(WHOLE, "model.layers.2."), ""),
    "a config without the key": (without(FOUR, "num_hidden_layers"), without(WHOLE, "model.layers.2."), ""),
    "a key that is no number": ({**FOUR, "num_hidden_layers": True}, without(WHOLE, "model.layers.0."), ""),
    "an absurd number": ({**FOUR, "num_hidden_layers": 10**18}, WHOLE, ""),
    "a class of its own code": ({**REMOTE, "num_hidden_layers": 4}, without(WHOLE, "model.layers.2."), ""),
    "odd numbers in names": (
        FOUR,
        {**WHOLE, "model.layers.².x": matrix(), f"model.layers.{'9' * 5000}.x": matrix()},
        "",
    ),
}


@pytest.mark.parametrize("segment", ["_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod"])
def test_a_wrapper_inside_the_layers(tmp_path: Path, segment: str) -> None:
    """The tables have their names, so only the layers are lost. The command that is offered ends in a green check."""
    tensors = {
        name.replace(".mlp.", f".{segment}.mlp."): array
        for name, array in {**llama(), **layers(range(4)), **NORM}.items()
    }
    model = save(tmp_path / "model", FOUR, tensors)
    (finding,) = api.inspect(model).findings
    assert (finding.rule, finding.level) == ("STO006", "error")
    wrapped = sum(segment in name for name in tensors)
    assert f"left its prefix in {wrapped} of {len(tensors)} tensor names" in finding.message
    assert finding.remedy is not None
    assert "reindex" in finding.remedy.command
    api.plan_reindex(model, strip_prefix=True).execute(tmp_path / "out")
    assert not api.inspect(tmp_path / "out").findings


@pytest.mark.parametrize(
    "segment", ["base_layer", "modules_to_save.default", "original_module", "lora_magnitude_vector"]
)
def test_names_of_peft_inside_the_layers(tmp_path: Path, segment: str) -> None:
    """transformers finds none of them, although both tables have their names."""
    tensors = {
        name.replace("q_proj.", f"q_proj.{segment}."): array
        for name, array in {**llama(), **layers(range(4)), **NORM}.items()
    }
    tensors |= {f"model.layers.0.self_attn.q_proj.{segment}.weight": matrix(4, 4)}
    findings = api.inspect(save(tmp_path / "model", FOUR, tensors)).findings
    assert "PEF003" in {finding.rule for finding in findings if finding.level == "error"}


@pytest.mark.parametrize("name", CASES)
def test_layers(name: str, tmp_path: Path) -> None:
    config, tensors, message = CASES[name]
    (model,) = api.check(save(tmp_path / "model", config, tensors)).models
    assert [entry.finding.message for entry in model.findings if entry.finding.rule == "STO006"] == [message] * bool(
        message
    )


BODY: Config = {**FOUR, "architectures": ["LlamaModel"]}
BARE = {name.removeprefix("model."): tensor for name, tensor in WHOLE.items()}
LOST = "embed_tokens.weight is missing. transformers fills it with random values."
BODIES: dict[str, tuple[Config, Tensors, list[str]]] = {
    "whole": (BODY, BARE, []),
    "without the embedding": (BODY, without(BARE, "embed_tokens."), [LOST]),
    "without the embedding, under the names of the class with the head": (BODY, without(WHOLE, EMBED), [LOST]),
    "with an embedding under another name": (BODY, {**without(BARE, "embed_tokens."), "embed.weight": matrix()}, []),
    "under names of its own": (BODY, {f"own.{name}": tensor for name, tensor in BARE.items()}, []),
    "without a layer": (
        BODY,
        without(BARE, "layers.2."),
        [
            "layers.2 is not stored, but the config says 4 layers (num_hidden_layers). "
            "transformers fills it with untrained values."
        ],
    ),
    "with a layer more": (
        BODY,
        {**BARE, **layers([4], "layers.")},
        ["layers.4 is stored, but the config says 4 layers (num_hidden_layers). transformers leaves it out."],
    ),
    "a classifier without a matrix": (
        {**FOUR, "architectures": ["LlamaForSequenceClassification"]},
        {**without(WHOLE, UP), "score.weight": matrix(2)},
        [f"{UP} is not stored, but the other 3 layers have it. transformers fills it with untrained values."],
    ),
    "with the head, which differs": (
        BODY,
        {**WHOLE, HEAD: matrix(seed=1)},
        [
            f"{HEAD} differs from {EMBED} (in 8 of 8 rows, by at most 2.69), but the config says tied. "
            f"transformers 4.57 ignores {HEAD}. transformers 5 uses it.",
            f"The config says LlamaModel, which has no output head, but {HEAD} is stored. "
            "tieconv judges the model as LlamaForCausalLM.",
        ],
    ),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_class_without_a_head(name: str, tmp_path: Path) -> None:
    """The layers and the embedding are those of the class of the same type that has a head."""
    config, tensors, messages = BODIES[name]
    assert [finding.message for finding in api.inspect(save(tmp_path / "m", config, tensors)).findings] == messages


def outside(kind: str) -> Tensors:
    """The parameters that the class has outside its layers."""
    family = class_table.load(kind)
    assert family is not None
    return {name: vector() for group in class_table.outside_layers(family) for name in group}


def whole(kind: str, total: int) -> Tensors:
    """Layers with all parameters that the class has in each of them."""
    family = class_table.load(kind)
    assert family is not None
    ((start, _, _, inside, *_),) = class_table.layer_lists(family)
    names = outside(kind).keys() - llama().keys()
    return {name: vector() for name in [*names, *(f"{start}{n}.{leaf}" for n in range(total) for leaf in inside)]}


LLAMA_WHOLE, DEEPSEEK_WHOLE = ({**llama(), **whole(kind, 4)} for kind in ("LlamaForCausalLM", MOE["architectures"][0]))
QWEN2_WHOLE = {**llama(), **whole("Qwen2ForCausalLM", 4)}
ATTENTION = "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"
SECOND_LAYER = "model.layers.1."
BIASED = "q_proj.weight", "k_proj.weight", "v_proj.weight"
LOW_RANK = "q_a_layernorm", "q_a_proj", "q_b_proj"
QUERIES = [(number, part) for number in range(4) for part in LOW_RANK]


BERT: Config = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "num_hidden_layers": 2, "vocab_size": 8}
BERT_WHOLE = {"bert.embeddings.word_embeddings.weight": matrix(), "cls.predictions.bias": vector(8)}
BERT_WHOLE |= whole("BertForMaskedLM", 2)
TRANSFORM, POSITIONS = "cls.predictions.transform.dense.", "bert.embeddings.position_embeddings.weight"
IMAGES = {**VISION, "vision_config": {"depth": 1}}
IMAGES_WHOLE = {**PARTS, **layers(range(3), "model.language_model.layers."), **layers([0], "model.visual.blocks.")}
IMAGES_WHOLE |= {
    f"model.{part}.weight": vector()
    for part in ("language_model.norm", "visual.merger.norm", "visual.merger.linear_fc1", "visual.merger.linear_fc2")
}
IMAGES_WHOLE |= {f"model.visual.merger.{part}.bias": vector() for part in ("norm", "linear_fc1", "linear_fc2")}
IMAGES_WHOLE |= {f"model.visual.patch_embed.proj.{part}": vector() for part in ("bias", "weight")}
MERGER, TEXT_NORM = "model.visual.merger.linear_fc1.", "model.language_model.norm.weight"
T5_LARGE = {"shared.weight": matrix(), "encoder.final_layer_norm.weight": matrix(), **layers([0, 1], "encoder.block.")}
T5_LARGE |= {name.replace("encoder", "decoder"): matrix() for name in T5_LARGE if "block" in name}
OUTSIDE: dict[str, tuple[Config, Tensors, list[str]]] = {
    "whole": (BERT, BERT_WHOLE, []),
    "a bias of the head": (BERT, without(BERT_WHOLE, f"{TRANSFORM}bias"), [f"{TRANSFORM}bias"]),
    "half of the head": (BERT, without(BERT_WHOLE, TRANSFORM), [f"{TRANSFORM}bias", f"{TRANSFORM}weight"]),
    "half of the head, beside few parameters": (BERT, without(BERT_WHOLE, TRANSFORM, "bert.encoder."), []),
    "half of the head, beside few parameters, in a large file": (
        BERT,
        without(BERT_WHOLE, TRANSFORM, "bert.encoder."),
        [f"{TRANSFORM}bias", f"{TRANSFORM}weight"],
    ),
    "the whole head, as in an encoder": (BERT, without(BERT_WHOLE, "cls.predictions.transform."), []),
    "the positions": (BERT, without(BERT_WHOLE, POSITIONS), [POSITIONS]),
    "the positions of a class without a head": (
        {**BERT, "architectures": ["BertForSequenceClassification"]},
        {**without(BERT_WHOLE, "cls.", POSITIONS), "classifier.weight": matrix(2)},
        [POSITIONS],
    ),
    "the pooler of a class that has none": (
        {**BERT, "architectures": ["LukeForQuestionAnswering"], "model_type": "luke"},
        {
            "luke.embeddings.word_embeddings.weight": matrix(),
            **without(whole("LukeForMaskedLM", 2), "luke.pooler.", "lm_"),
        },
        [],
    ),
    "the positions, in a file with few names": (BERT, {"bert.embeddings.LayerNorm.weight": vector()}, []),
    "the positions, quantised": (
        BERT,
        {**without(BERT_WHOLE, POSITIONS), POSITIONS.replace("weight", "qweight"): matrix()},
        [],
    ),
    "the norm of the decoder in a large file": (LARGE_T5, T5_LARGE, ["decoder.final_layer_norm.weight"]),
    "no decoder in a large file of an encoder": (
        {**LARGE_T5, "architectures": ["T5EncoderModel"]},
        without(T5_LARGE, "decoder."),
        [],
    ),
    "all beside the layers in a large file": (
        BERT,
        without(BERT_WHOLE, "bert.embeddings.LayerNorm.", "bert.embeddings.position", "bert.embeddings.token"),
        sorted(name for name in BERT_WHOLE if re.match(r"bert\.embeddings\.(LayerNorm|position|token)", name)),
    ),
    "the norm of the text beside one of the images": (
        IMAGES,
        {**without(IMAGES_WHOLE, TEXT_NORM), "model.visual.final.norm.weight": vector()},
        [TEXT_NORM],
    ),
    "the norm of the text with an old name": (
        IMAGES,
        {**without(IMAGES_WHOLE, TEXT_NORM), "language_model.model.norm.weight": vector()},
        [],
    ),
    "whole, with images": (IMAGES, IMAGES_WHOLE, []),
    "a projector": (IMAGES, without(IMAGES_WHOLE, MERGER), [f"{MERGER}bias", f"{MERGER}weight"]),
    "a matrix of a projector that is a sequence, in a large file": (
        {**IMAGES, "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"},
        without({**PARTS, **outside("Qwen2VLForConditionalGeneration")}, "visual.merger.mlp.2."),
        ["visual.merger.mlp.2.bias", "visual.merger.mlp.2.weight"],
    ),
    "a projector under another prefix": (
        IMAGES,
        {**without(IMAGES_WHOLE, MERGER), **{f"merger.linear_fc1.{part}": vector() for part in ("bias", "weight")}},
        [],
    ),
    "the positions of the images in one more module, as in transformers 4.57": (
        IMAGES,
        {name.replace("visual.pos_embed.", "visual.inner.pos_embed."): array for name, array in IMAGES_WHOLE.items()},
        [],
    ),
    "no images, for mlx-lm, in a large file": (
        {**IMAGES, "quantization": {"bits": 4, "group_size": 32}},
        without(IMAGES_WHOLE, "model.visual."),
        [],
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_is_lacking_outside_the_layers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other names may hold a parameter, and a small file is an example of names."""
    config, tensors, lost = OUTSIDE[name]
    if "large file" in name:
        monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)
    findings = api.inspect(save(tmp_path / "model", config, tensors)).findings
    lacking = [name for finding in findings if finding.rule == "STO006" for name in finding.tensors]
    assert [name for name in lacking if not re.search(r"(layers?|block|blocks)\.\d+", name)] == lost


def second(*leaves: str) -> list[str]:
    return [SECOND_LAYER + leaf for leaf in leaves]


INSIDE: dict[str, tuple[Config, Tensors, list[str]]] = {
    "biases that the config sets": (
        {**FOUR, "attention_bias": True},
        LLAMA_WHOLE,
        [f"model.layers.{n}.self_attn.{part}_proj.bias" for n in range(4) for part in "koqv"],
    ),
    "biases that the config sets, of a matrix with another name": (
        {**FOUR, "attention_bias": True},
        {name.replace("o_proj", "dense"): tensor for name, tensor in LLAMA_WHOLE.items()},
        [f"model.layers.{n}.self_attn.{part}_proj.bias" for n in range(4) for part in "kqv"],
    ),
    "whole": (FOUR, LLAMA_WHOLE, []),
    "one of two layers": (
        {**FOUR, "num_hidden_layers": 2},
        without({**llama(), **whole("LlamaForCausalLM", 2)}, SECOND_LAYER + "mlp.up"),
        second("mlp.up_proj.weight"),
    ),
    "two of four layers": (
        FOUR,
        without(LLAMA_WHOLE, SECOND_LAYER + "mlp.up", UP),
        [*second("mlp.up_proj.weight"), UP],
    ),
    "each layer": (
        FOUR,
        {name: tensor for name, tensor in LLAMA_WHOLE.items() if "o_proj" not in name},
        [f"model.layers.{number}.self_attn.o_proj.weight" for number in range(4)],
    ),
    "a norm that no layer has": (
        FOUR,
        {name: tensor for name, tensor in LLAMA_WHOLE.items() if "post_attention_layernorm" not in name},
        [f"model.layers.{number}.post_attention_layernorm.weight" for number in range(4)],
    ),
    "a bias that no layer has": (
        {**FOUR, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        {name: tensor for name, tensor in QWEN2_WHOLE.items() if "q_proj.bias" not in name},
        [f"model.layers.{number}.self_attn.q_proj.bias" for number in range(4)],
    ),
    "a whole module": (
        FOUR,
        without(LLAMA_WHOLE, SECOND_LAYER + "mlp."),
        second("mlp.down_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight"),
    ),
    "a norm of a class whose layers differ": (
        MOE,
        without(DEEPSEEK_WHOLE, SECOND_LAYER + "input"),
        second("input_layernorm.weight"),
    ),
    "a norm beside a matrix that only some classes have": (
        MOE,
        without(
            {
                **DEEPSEEK_WHOLE,
                **{f"model.layers.{n}.self_attn.{q}.weight": matrix() for n in range(4) for q in LOW_RANK},
            },
            f"{SECOND_LAYER}self_attn.kv_a_layernorm",
        ),
        second("self_attn.kv_a_layernorm.weight"),
    ),
    "a matrix that a class has with two others or not at all": (
        MOE,
        {**DEEPSEEK_WHOLE, **{f"model.layers.1.self_attn.{part}.weight": matrix() for part in LOW_RANK[1:]}},
        second("self_attn.q_a_layernorm.weight"),
    ),
    "biases that the config does not ask for": (
        FOUR,
        {**LLAMA_WHOLE, **{name.replace("weight", "bias"): vector() for name in LLAMA_WHOLE if name.endswith(BIASED)}},
        [],
    ),
    "a fused matrix": (
        FOUR,
        {**without(LLAMA_WHOLE, *second(*ATTENTION)), f"{SECOND_LAYER}self_attn.qkv_proj.weight": matrix()},
        [],
    ),
    "a module with another name": (
        FOUR,
        {**without(LLAMA_WHOLE, SECOND_LAYER + "mlp."), f"{SECOND_LAYER}feed_forward.w1.weight": matrix()},
        [],
    ),
    "a matrix with an adapter": (
        FOUR,
        {
            **without(LLAMA_WHOLE, SECOND_LAYER + "mlp.up"),
            **{f"{SECOND_LAYER}mlp.up_proj.{part}.weight": matrix() for part in ("base_layer", "lora_A.default")},
        },
        [],
    ),
    "a norm of an old program": (
        FOUR,
        {**without(LLAMA_WHOLE, SECOND_LAYER + "input"), f"{SECOND_LAYER}input_layernorm.gamma": vector()},
        [],
    ),
    "no layer has a module": (
        {**FOUR, "num_hidden_layers": 2},
        {name: tensor for name, tensor in {**llama(), **whole("LlamaForCausalLM", 2)}.items() if ".mlp." not in name},
        [f"model.layers.{n}.mlp.{part}_proj.weight" for part in ("down", "gate", "up") for n in range(2)],
    ),
    "a large file with two norms of one layer": (
        {**LARGE, "num_hidden_layers": 1},
        {
            EMBED: matrix(LARGE["vocab_size"]),
            **NORM,
            **{f"model.layers.0.{norm}_layernorm.weight": vector() for norm in ("input", "post_attention")},
        },
        [
            f"model.layers.0.{name}_proj.weight"
            for name in ("mlp.down", "mlp.gate", "mlp.up", *(f"self_attn.{part}" for part in "koqv"))
        ],
    ),
    "a matrix of another layer than the one that is absent": (
        FOUR,
        without(LLAMA_WHOLE, SECOND_LAYER, UP),
        ["model.layers.1", UP],
    ),
    "names of another program": (
        FOUR,
        {name.replace("self_attn.", "attention."): tensor for name, tensor in LLAMA_WHOLE.items()},
        [],
    ),
    "a quantised model": (
        {**FOUR, "quantization_config": {"quant_method": "fp8"}},
        without(LLAMA_WHOLE, UP, SECOND_LAYER + "mlp.up"),
        [],
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_what_a_layer_lacks_of_its_class(name: str, tmp_path: Path) -> None:
    """Any number of layers may lack it. What may have another name is not reported."""
    config, tensors, absent = INSIDE[name]
    (*findings,) = api.inspect(save(tmp_path / "model", config, tensors)).findings
    listed = [finding for finding in findings if finding.rule == "STO006"]
    assert [name for finding in listed for name in finding.tensors] == absent
    reasons = "always has", "the config says 4", "the config sets attention_bias"
    assert all(any(reason in finding.message for reason in reasons) for finding in listed)


WITH_BIASES = {
    **LLAMA_WHOLE,
    **{name.replace("weight", "bias"): vector() for name in LLAMA_WHOLE if name.endswith(BIASED)},
}
ONE_BIAS = "model.layers.3.self_attn.q_proj.bias"
UNASKED: dict[str, tuple[Config, Tensors, int]] = {
    "biases of another class": (FOUR, WITH_BIASES, 12),
    "a key that is false": ({**FOUR, "attention_bias": False}, WITH_BIASES, 12),
    "a key that is true": ({**FOUR, "attention_bias": True}, WITH_BIASES, 0),
    "one bias": (FOUR, {**WHOLE, ONE_BIAS: vector()}, 1),
    "a quantised model": ({**FOUR, "quantization_config": {"quant_method": "fp8"}}, WITH_BIASES, 0),
    "a class that always has them": (
        {**FOUR, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
        WITH_BIASES,
        0,
    ),
    "a bias that no class has": (FOUR, {**WHOLE, "model.layers.1.input_layernorm.my.bias": vector()}, 0),
}


@pytest.mark.parametrize("name", UNASKED)
def test_parameters_that_the_config_does_not_ask_for(name: str, tmp_path: Path) -> None:
    config, tensors, count = UNASKED[name]
    findings = [each for each in api.inspect(save(tmp_path, config, tensors)).findings if each.rule == "STO007"]
    assert [len(finding.tensors) for finding in findings] == [count] * bool(count)
    for finding in findings:
        pronoun = "it" if count == 1 else "them"
        assert finding.message.endswith(
            f"stored, but the config does not set attention_bias. transformers leaves {pronoun} out."
        )


def test_transformers_leaves_out_what_the_config_does_not_ask_for(tmp_path: Path) -> None:
    """As the rules say; with the key it loads them, and misses those that a Qwen2 does not have."""
    transformers = pytest.importorskip("transformers")
    from fixtures import zoo

    zoo.build("Qwen2ForCausalLM").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for asked in (False, True):
        config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": asked}
        (tmp_path / "config.json").write_text(json.dumps(config))
        _, report = transformers.LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
        findings = api.inspect(tmp_path).findings
        assert [finding.rule for finding in findings] == ["STO006" if asked else "STO007"]
        named = {name for finding in findings for name in finding.tensors}
        assert {*report["unexpected_keys"]} == (set() if asked else named)
        assert {*report["missing_keys"]} == (named if asked else set())


Q_NORM = "model.layers.1.self_attn.q_norm.weight"
QWEN3: Config = {**FOUR, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
UNKNOWN: dict[str, tuple[Config, Tensors, bool]] = {
    "a norm of Qwen3": (FOUR, {**LLAMA_WHOLE, Q_NORM: vector()}, True),
    "in its class": (QWEN3, {**LLAMA_WHOLE, Q_NORM: vector()}, False),
    "a parameter of no class": (FOUR, {**LLAMA_WHOLE, Q_NORM.replace("q_norm", "my_norm"): vector()}, False),
    "a buffer": (FOUR, {**LLAMA_WHOLE, Q_NORM.replace("q_norm.weight", "rotary_emb.inv_freq"): vector()}, False),
    "a quantised model": ({**FOUR, "quantization_config": {"quant_method": "fp8"}}, {**WHOLE, Q_NORM: vector()}, False),
    "remote code": ({**FOUR, "auto_map": {}}, {**LLAMA_WHOLE, Q_NORM: vector()}, False),
    "an unknown class": ({**FOUR, **REMOTE}, {**LLAMA_WHOLE, Q_NORM: vector()}, False),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_parameters_that_only_other_classes_have(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a layer of a class whose parameters were measured. A file may hold more, for example buffers."""
    config, tensors, reported = UNKNOWN[name]
    assert "STO007" not in {each.rule for each in api.inspect(save(tmp_path, config, tensors)).findings}
    monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)  # a smaller file is an example of names
    findings = [each for each in api.inspect(save(tmp_path, config, tensors)).findings if each.rule == "STO007"]
    message = f"{Q_NORM} is stored, but LlamaForCausalLM does not have it. transformers leaves it out."
    assert [(finding.message, finding.tensors) for finding in findings] == [(message, (Q_NORM,))] * reported


OTHERS = {
    "Qwen3ForCausalLM": ("LlamaForCausalLM", "self_attn.q_norm.weight self_attn.k_norm.weight"),
    "Qwen2ForCausalLM": ("MistralForCausalLM", "self_attn.q_proj.bias self_attn.k_proj.bias self_attn.v_proj.bias"),
    "Olmo2ForCausalLM": ("LlamaForCausalLM", "self_attn.q_norm.weight self_attn.k_norm.weight "
                         "post_feedforward_layernorm.weight"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_transformers_leaves_out_what_another_class_has(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config of another class beside the weights: the load report has the names of the finding."""
    monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)
    transformers = pytest.importorskip("transformers")
    from fixtures import zoo

    class_name, leaves = OTHERS[name]
    zoo.build(name).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {
        "architectures": [class_name],
        "model_type": zoo.config_class(class_name).model_type,
        "sliding_window": None,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    _, report = getattr(transformers, class_name).from_pretrained(tmp_path, output_loading_info=True)
    named = {name for each in api.inspect(tmp_path).findings if each.rule == "STO007" for name in each.tensors}
    assert {*report["unexpected_keys"]} == named and {name.split(".", 3)[3] for name in named} == {*leaves.split()}


def test_what_a_layer_has_with_others_or_not_at_all(tmp_path: Path) -> None:
    """A DeepSeek-V2-Lite has no low-rank queries, so their norm is missing only beside their matrices."""
    lost = {f"{SECOND_LAYER}self_attn.{part}.weight": vector() for part in LOW_RANK[1:]}
    findings = api.inspect(save(tmp_path / "model", MOE, {**DEEPSEEK_WHOLE, **lost})).findings
    (finding,) = [each for each in findings if each.rule == "STO006"]
    assert finding.message.startswith(
        f"{SECOND_LAYER}self_attn.q_a_layernorm.weight is not stored, but DeepseekV3ForCausalLM always has it beside "
        "self_attn.q_a_proj.weight. "
    )


def test_a_baseline_does_not_cover_more_layers(tmp_path: Path) -> None:
    """A finding names every tensor, so a layer that is lost later is a new finding. The sentence counts them."""
    config = {**FOUR, "num_hidden_layers": 20}
    model, baseline = tmp_path / "model", tmp_path / "baseline.json"
    save(model, config, {**llama(), **NORM, **layers(range(8))})
    run("check", model, "--write-baseline", baseline)
    run("check", model, "--baseline", baseline)
    save(model, config, {**llama(), **NORM, **layers(range(7))})
    failed = run("check", model, "--baseline", baseline)
    assert failed.exit_code == 1 and "and 9 more are not stored" in " ".join(failed.stdout.split())


MIXTRAL: Config = {
    **FOUR,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_hidden_layers": 2,
    "num_local_experts": 3,
}
EXPERTS = {
    f"model.layers.{layer}.block_sparse_moe.experts.{expert}.w{number}.weight": matrix(4, 8)
    if number == 2
    else matrix()
    for layer in range(2)
    for expert in range(3)
    for number in (1, 2, 3)
}
EXPERTS |= {f"model.layers.{layer}.block_sparse_moe.gate.weight": matrix(3) for layer in range(2)}
MOE_WHOLE = {**llama(), **NORM, **layers(range(2)), **EXPERTS}
SECOND_EXPERTS = "model.layers.1.block_sparse_moe.experts."
DENSE = "model.layers.0.mlp.experts."
FAILS = "transformers 5 fails to load the model. transformers 4 fills"
MISSING_EXPERTS: dict[str, tuple[Config, Tensors, str]] = {
    "whole": (MIXTRAL, MOE_WHOLE, ""),
    "the last one of each layer": (
        MIXTRAL,
        {name: tensor for name, tensor in MOE_WHOLE.items() if "experts.2." not in name},
        f"{SECOND_EXPERTS.replace('1', '0')}2 and {SECOND_EXPERTS}2 are not stored, "
        "but the config says 3 experts (num_local_experts). "
        f"{FAILS} them with untrained values.",
    ),
    "one of one layer, without the number": (
        without(MIXTRAL, "num_local_experts"),
        without(MOE_WHOLE, f"{SECOND_EXPERTS}1."),
        f"{SECOND_EXPERTS}1 is not stored, but experts with higher numbers are. {FAILS} it with untrained values.",
    ),
    "one matrix": (
        MIXTRAL,
        without(MOE_WHOLE, f"{SECOND_EXPERTS}1.w2"),
        f"{SECOND_EXPERTS}1.w2.weight is not stored, but the other experts have it. {FAILS} it with untrained values.",
    ),
    "one of a quantised model": (
        {**MIXTRAL, "quantization_config": {"quant_method": "fp8"}},
        without(MOE_WHOLE, f"{SECOND_EXPERTS}1.", f"{SECOND_EXPERTS}0.w2"),
        f"{SECOND_EXPERTS}1 is not stored, but the config says 3 experts (num_local_experts). "
        f"{FAILS} it with untrained values.",
    ),
    "an adapted one": (
        MIXTRAL,
        {**without(MOE_WHOLE, f"{SECOND_EXPERTS}1.w2"), f"{SECOND_EXPERTS}1.w2.base_layer.weight": matrix()},
        "",
    ),
    "a list of numbers": ({**MIXTRAL, "num_local_experts": [3, 4]}, MOE_WHOLE, ""),
    "no expert of one of three layers": (
        {**MIXTRAL, "num_hidden_layers": 3},
        {
            **without(MOE_WHOLE, SECOND_EXPERTS),
            **{
                name.replace("layers.0.", "layers.2."): tensor
                for name, tensor in MOE_WHOLE.items()
                if "layers.0." in name
            },
        },
        f"{SECOND_EXPERTS.rstrip('.')} is not stored, but other layers have them. "
        "transformers fills it with untrained values.",
    ),
    "no expert of one of two layers": (
        MIXTRAL,
        without(MOE_WHOLE, SECOND_EXPERTS),
        f"{SECOND_EXPERTS.rstrip('.')} is not stored, but other layers have them. "
        "transformers fills it with untrained values.",
    ),
    "a layer that the config makes dense": (
        {**MIXTRAL, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "mlp_only_layers": [1]},
        {
            **without(
                {name.replace("block_sparse_moe", "mlp"): value for name, value in MOE_WHOLE.items()}, DENSE[:-8]
            ),
            **{f"{DENSE[:-8]}{part}_proj.weight": matrix() for part in ("down", "gate", "up")},
        },
        "",
    ),
    "a dense layer of a class whose layers differ": (
        {**MOE, "num_hidden_layers": 2},
        without({name.replace("block_sparse_moe", "mlp"): value for name, value in MOE_WHOLE.items()}, DENSE),
        "",
    ),
}


@pytest.mark.parametrize("name", MISSING_EXPERTS)
def test_experts(name: str, tmp_path: Path) -> None:
    """As transformers 5.23.0 and 4.57.6 do with a Mixtral, a Qwen3-MoE and a DeepSeek-V3."""
    config, tensors, message = MISSING_EXPERTS[name]
    result = api.inspect(save(tmp_path / "model", config, tensors), consumers="transformers>=4.57")
    assert [finding.message for finding in result.findings if finding.rule == "STO006"] == [message] * bool(message)
    fails = {row.version: row.outcome == "error" for row in result.consumers}
    merged = "transformers 5 fails" in message and "quantization_config" not in config
    assert (fails["4.57"], fails["5.x"]) == (False, merged)


@pytest.mark.parametrize("stored", [("decoder.",), ("encoder.", "decoder.")])
@pytest.mark.parametrize("shares", [True, False])
def test_an_encoder_that_shared_its_layers(stored: tuple[str, ...], shares: bool, tmp_path: Path) -> None:
    """As transformers 4.57.6 saves a T5 with the flag, and 5.24.0 loads it."""
    config = {**T5, "num_layers": 1, "num_decoder_layers": 1, "tie_encoder_decoder": shares}
    names = [f"{part}block.0.layer.0.SelfAttention.{leaf}.weight" for part in stored for leaf in "qkvo"]
    tensors = {"shared.weight": matrix(), **{name: matrix() for name in names}}
    result = api.inspect(save(tmp_path / "model", config, tensors), consumers="transformers==4.57")
    messages = [finding.message for finding in result.findings if finding.message.startswith("encoder.block ")]
    assert messages == [
        "encoder.block is not stored, but the config sets tie_encoder_decoder. "
        "transformers 4 shares the stored layers. transformers 5 fills it with untrained values."
    ] * (shares and len(stored) == 1)
    assert (result.consumers[0].outcome == "unknown") is shares


def test_experts_are_counted_by_the_config_of_their_list(tmp_path: Path) -> None:
    """The talker of a Qwen3-Omni may have another number of experts than its text model."""

    def part(experts: int, **more: Any) -> Config:
        return {"text_config": {"num_hidden_layers": 2, "num_experts": experts, "vocab_size": 8}, **more}

    config = {
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "model_type": "qwen3_omni_moe",
        "thinker_config": part(3, model_type="qwen3_omni_moe_thinker"),
        "talker_config": part(2, model_type="qwen3_omni_moe_talker"),
    }
    tensors: Tensors = {"thinker.model.embed_tokens.weight": matrix(), "thinker.lm_head.weight": matrix(seed=1)}
    for start, experts in (("thinker.model.layers.", 2), ("talker.model.layers.", 2)):
        names = [f"{start}{n}.mlp.experts.{e}.up_proj.weight" for n in range(2) for e in range(experts)]
        tensors = {**tensors, **layers(range(2), start), **{name: matrix() for name in names}}
    findings = api.inspect(save(tmp_path / "model", config, tensors)).findings
    listed = [finding.tensors for finding in findings if "experts" in finding.message]
    assert listed == [("thinker.model.layers.0.mlp.experts.2", "thinker.model.layers.1.mlp.experts.2")]


NEXTN = {"model.layers.4.eh_proj.weight": matrix()}
SURPLUS: dict[str, tuple[Config, Tensors, str]] = {
    "whole": (FOUR, WHOLE, ""),
    "one": (
        FOUR,
        {**WHOLE, **layers([4])},
        "model.layers.4 is stored, but the config says 4 layers (num_hidden_layers). transformers leaves it out.",
    ),
    "two, with a gap": (
        FOUR,
        {**WHOLE, **layers([4, 61])},
        "model.layers.4 and model.layers.61 are stored, but the config says 4 layers (num_hidden_layers). "
        "transformers leaves them out.",
    ),
    "mlx": (
        {**FOUR, "quantization": {"bits": 4, "group_size": 32}},
        {**WHOLE, **layers([4])},
        "model.layers.4 is stored, but the config says 4 layers (num_hidden_layers). mlx-lm fails to load the model.",
    ),
    "the config names more tokens": ({**MOE, "num_nextn_predict_layers": 1}, {**WHOLE, **layers([4])}, ""),
    "the layer has their modules": (MOE, {**WHOLE, **layers([4]), **NEXTN}, ""),
    "a smaller list in the vision part": (
        {**VISION, "vision_config": {"depth": 1}},
        {
            **PARTS,
            "model.language_model.norm.weight": matrix(),
            **layers(range(3), "model.language_model.layers."),
            **layers(range(2), "model.visual.blocks."),
        },
        "model.visual.blocks.1 is stored, but the config says 1 layer (vision_config.depth). "
        "transformers leaves it out.",
    ),
}


@pytest.mark.parametrize("name", SURPLUS)
def test_surplus_layers(name: str, tmp_path: Path) -> None:
    config, tensors, message = SURPLUS[name]
    findings = api.inspect(save(tmp_path / "model", config, tensors)).findings
    layered = [finding.message for finding in findings if finding.rule in {"STO006", "STO007"}]
    assert layered == [message] * bool(message)


@pytest.mark.parametrize("name", ["the last two", "one tensor of one layer", "the last norm"])
def test_strict_loaders_fail(name: str, tmp_path: Path) -> None:
    """As safetensors 0.8.0, mlx-lm 0.32.2, llama.cpp and vLLM 0.28 and 0.32 do. vLLM does not miss a single matrix."""
    config, tensors, message = CASES[name]
    folder = save(tmp_path / "model", {**config, "max_position_embeddings": 8, "rope_theta": 1e4}, tensors)  # type: ignore[dict-item]
    rows = api.inspect(folder, consumers="safetensors,mlx-lm,transformers,llama.cpp,vllm").consumers
    outcomes = {f"{row.name} {row.version}": (str(row.outcome), row.detail) for row in rows}
    strict = ("safetensors 0.8", "mlx-lm <0.32", "mlx-lm 0.32", "llama.cpp 2026")
    not_missed = name == "one tensor of one layer"
    for loader in strict if not_missed else (*strict, "vllm <0.29", "vllm >=0.29"):
        outcome, reason = outcomes[loader]
        assert outcome == "error" and f"the file does not contain {message.split()[0]}" in reason, outcomes
    for loader in ("transformers 5.x", *(("vllm <0.29", "vllm >=0.29") if not_missed else ())):
        outcome, reason = outcomes[loader]
        assert outcome == "tied" and reason.endswith("; for the layers see STO006")


def test_rows_name_the_rules_about_layers(tmp_path: Path) -> None:
    """A healthy model has no such words, and a model with both faults names both rules."""
    whole = save(tmp_path / "whole", FOUR, WHOLE)
    both = save(tmp_path / "both", FOUR, {**without(WHOLE, *NORM), **layers([4])})
    for folder, end in {whole: "model.embed_tokens.weight", both: "; for the layers see STO006 and STO007"}.items():
        rows = api.inspect(folder, consumers="transformers,sglang").consumers
        assert rows and all(row.detail.endswith(end) for row in rows)


def _rows(folder: Path, config: Config, tensors: Tensors) -> dict[str, tuple[str, str]]:
    sizes = {"max_position_embeddings": 8, "rope_theta": 1e4}
    rows = api.inspect(
        save(folder, {**config, **sizes}, tensors), consumers="safetensors,mlx-lm,llama.cpp,vllm>=0.29"
    ).consumers  # type: ignore[dict-item]
    return {row.name: (str(row.outcome), row.detail) for row in rows}


def test_strict_loaders_refuse_surplus_layers(tmp_path: Path) -> None:
    """As safetensors 0.8.0, mlx-lm 0.32.2, llama.cpp and vLLM 0.32 do; classes whose layers differ may drop them."""
    rows = _rows(tmp_path / "alike", FOUR, {**WHOLE, **layers([4])})
    assert len(rows) == 4 and {outcome for outcome, _ in rows.values()} == {"error"}
    assert all("has no layer model.layers.4" in reason for _, reason in rows.values())


def test_what_the_programs_that_run_models_do_not_miss(tmp_path: Path) -> None:
    """vLLM 0.32 looks for norms alone, which an OLMo lacks. llama.cpp's converter drops DeepSeek's further layers."""
    named = {name.replace("input_layernorm", "self_attn.k_proj"): tensor for name, tensor in layers([0, 1]).items()}
    olmo = {**FOUR, "architectures": ["OlmoForCausalLM"], "model_type": "olmo"}
    lacking = _rows(tmp_path / "olmo", olmo, {**llama(), **named})
    assert lacking["llama.cpp"][0] == "error" and lacking["vllm"][1].endswith("; for the layers see STO006")
    quantised = {**FOUR, "quantization_config": {"quant_method": "fp8"}}
    lacking = _rows(tmp_path / "fp8", quantised, without(WHOLE, "model.layers.2."))
    assert lacking["llama.cpp"][0] == "error" and lacking["vllm"][1].endswith("; for the layers see STO006")
    deepseek = {**FOUR, "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    more = _rows(tmp_path / "deepseek", deepseek, {**WHOLE, **layers([4])})
    assert more["vllm"][0] == "error" and more["llama.cpp"][1].endswith("; for the layers see STO007")


def test_mlx_lm_does_not_read_the_vision_part(tmp_path: Path) -> None:
    """A layer of images that is missing does not stop it: it drops all of them."""
    text = {**PARTS, "model.language_model.norm.weight": matrix(), **layers(range(3), "model.language_model.layers.")}
    rows = _rows(tmp_path / "model", VISION, {**text, **layers([1], "model.visual.blocks.")})
    assert "model.visual.blocks.0" in rows["safetensors"][1] and "visual" not in rows["mlx-lm"][1]


def test_strict_loaders_need_the_parameters_beside_the_layers(tmp_path: Path) -> None:
    """vLLM 0.32 misses the positions of GPT-2 and OPT, which are no matrix of a layer. mlx-lm drops those of images."""
    whole = {"wte.weight": matrix(), **layers([0, 1], "h."), **LN_F}
    rows = _rows(tmp_path / "gpt2", {**GPT2, "n_layer": 2}, without(whole, "wpe."))
    assert rows["vllm"] == ("error", "the file does not contain wpe.weight")
    lost = without(IMAGES_WHOLE, "model.visual.pos_embed.", "model.language_model.norm.")
    sizes = "head_dim", "hidden_size", "intermediate_size", "max_position_embeddings", "num_attention_heads"
    text = {**dict.fromkeys([*sizes, "num_key_value_heads", "rms_norm_eps"], 8), "tie_word_embeddings": True}
    config = {**IMAGES, "text_config": {**IMAGES["text_config"], **text}}
    rows = _rows(tmp_path / "images", config, lost)
    assert rows["mlx-lm"] == ("error", "the file does not contain model.language_model.norm.weight")


def test_each_list_is_compared_with_its_own_key(tmp_path: Path) -> None:
    """A composite has a list of text layers and one of image layers; T5 has an encoder and a decoder."""
    text, image = layers([0, 2], "model.language_model.layers."), layers([1], "model.visual.blocks.")
    parts = {**PARTS, "model.language_model.norm.weight": matrix()}
    findings = api.inspect(save(tmp_path / "model", VISION, {**parts, **text, **image})).findings
    assert [finding.tensors for finding in findings if finding.rule == "STO006"] == [
        ("model.language_model.layers.1",),
        ("model.visual.blocks.0",),
    ]
    assert "(text_config.num_hidden_layers)" in findings[0].message and "1 layer (" not in findings[0].message
    blocks = {**layers([0, 1], "encoder.block."), **layers([0], "decoder.block.")}
    norms = {f"{part}.final_layer_norm.weight": matrix() for part in ("encoder", "decoder")}
    config = {**T5, "num_layers": 2, "num_decoder_layers": 2}
    findings = api.inspect(save(tmp_path / "t5", config, {"shared.weight": matrix(), **blocks, **norms})).findings
    assert [finding.tensors for finding in findings if finding.rule == "STO006"] == [("decoder.block.1",)]


def test_files_that_are_not_the_whole_model(tmp_path: Path) -> None:
    """One shard that the user names has no config, and IDX002 reports a shard outside the index."""
    shards = {FIRST: {**llama(), **NORM, **layers([0, 1])}, SECOND: layers([2, 3])}
    listed = {name: file for file, tensors in shards.items() for name in tensors}
    whole = save_shards(tmp_path / "whole", FOUR, shards, listed)
    assert not {"STO006"} & {finding.rule for finding in api.inspect(whole).findings}
    assert not {"STO006"} & {finding.rule for finding in api.inspect(whole / FIRST).findings}
    partly = {name: file for name, file in listed.items() if file == FIRST}
    unlisted = save_shards(tmp_path / "unlisted", FOUR, shards, partly)
    inspection = api.inspect(unlisted, consumers="transformers")
    assert [finding.rule for finding in inspection.findings] == ["IDX002", "IDX004"]
    assert all(row.detail.endswith("; for the layers see IDX002") for row in inspection.consumers)


def test_the_table_names_classes_and_starts() -> None:
    """Each record is of a class in the class table, and has a list."""
    table = json.loads((Path(class_table.__file__).parent / "data" / "layers.json").read_text())
    names = {*class_table.names(), *json.loads((Path(class_table.__file__).parent / "data" / "newer.json").read_text())}
    assert len(table) > 390 and table.keys() <= names
    assert all(table.values())


def test_saved_models(tmp_path: Path) -> None:
    """What a class saves has no finding; without the second layer of a list it has one."""
    pytest.importorskip("torch")
    assert [
        *_problems("LlamaForCausalLM", tmp_path / "llama"),
        *_problems("T5ForConditionalGeneration", tmp_path / "t5"),
    ] == []


@pytest.mark.matrix
def test_every_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `test_saved_models`, for all classes of the table, and as large files."""
    pytest.importorskip("torch")
    monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)
    problems = []
    for name in class_table.names():
        if class_table.layer_lists(class_table.load(name)):  # type: ignore[arg-type]
            problems += _problems(name, tmp_path / name)
    assert problems == []


@pytest.mark.matrix
def test_every_class_without_a_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As saved, no such class has a finding about its layers or its embedding. Without the embedding, most have one."""
    pytest.importorskip("torch")
    from fixtures import zoo

    monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)
    saved = reported = 0
    for name, main in zoo.headless().items():
        folder = tmp_path / name
        try:
            zoo.headless_model(name, main).save_pretrained(folder)
        except Exception:  # some need a program or a config that the fixtures do not have
            continue
        inspection = api.inspect(folder)
        assert not {"STO006", "STO007", "TIE006"} & {finding.rule for finding in inspection.findings}, name
        saved += 1
        embedding = inspection.head.input_embedding
        if embedding is not None:
            tied = {member.name for tie in inspection.ties for member in tie.stored_members}
            _without_tensors(folder, {embedding.name, *tied})
            reported += any(finding.rule == "TIE006" for finding in api.inspect(folder).findings)
        shutil.rmtree(folder)
    assert saved > 650 and reported > 600


@pytest.mark.matrix
def test_default_configs() -> None:
    """In the names and the default config of each class no layer is missing, and without its second layer one is."""
    pytest.importorskip("torch")
    from fixtures import families, zoo

    compared = removed = 0
    alone = list[bool]()
    for name in class_table.names():
        try:
            config = zoo.config_class(name)()
            names = list(zoo.instantiate(name, config, "meta").state_dict())
        except Exception:  # some defaults need a file or another config
            continue
        family, raw = class_table.load(name), families.as_saved(config)
        assert family is not None
        assert [*missing_layers(_evidence(family, raw, names))] == [], name
        assert [*surplus_layers(_evidence(family, raw, names))] == [], name
        lists = class_table.layer_lists(family)
        played = {spelling for name in known_names(family) for spelling in variants(family, name)}
        outside = {name for group in class_table.outside_layers(family) for name in group} - played
        inside = {f"{start}1.{leaf}" for start, _, _, leaves, *_ in lists for leaf in leaves}
        for lost in (outside | inside).intersection(names):  # a list may have another name in memory
            rest = [key for key in names if key != lost]
            is_reported = any(lost in lack.names for lack in missing_layers(_evidence(family, raw, rest)))
            assert is_reported or lost in outside, lost
            removed += lost in inside
            alone += [is_reported] * (lost in outside)
        for start, *_ in lists:
            rest = [key for key in names if not key.startswith(f"{start}1.")]
            if len(rest) < len(names):  # the list has this name in memory too
                assert any(f"{start}1" in lack.names for lack in missing_layers(_evidence(family, raw, rest))), name
                compared += 1
    print(compared, removed, sum(alone), len(alone))
    assert compared > 450 and removed > 5000


def _evidence(family: Family, config: Config, names: list[str]) -> Any:
    values = {key: value for key, value in config.items() if not key.startswith("quant")}
    tensors = dict.fromkeys(names, SimpleNamespace(nbytes=1 << 20))
    checkpoint = SimpleNamespace(
        format="safetensors", index=None, unread=(), adapter=None, mlx=None, config_values=values, tensors=tensors
    )
    return SimpleNamespace(checkpoint=checkpoint, family=family, quantised=None)


def _problems(name: str, folder: Path) -> list[str]:
    """Save the class, and remove each layer, and each tensor of a layer in the middle, in turn."""
    from safetensors.torch import load_file, save_file

    from fixtures import zoo

    zoo.build(name).save_pretrained(folder)
    (weights,) = folder.glob("*.safetensors")
    tensors = load_file(weights)
    problems = [f"{name} as saved: {message}" for message in _messages(folder)]
    family = class_table.load(name)
    assert family is not None
    for start, *_ in class_table.layer_lists(family):
        rest = {key: tensor for key, tensor in tensors.items() if not key.startswith(f"{start}1.")}
        if len(rest) == len(tensors):
            continue  # a list of one layer
        save_file(rest, weights, {"format": "pt"})
        if not any(f"{start}1 is not stored" in message for message in _messages(folder)):
            problems.append(f"{name} without {start}1: {_messages(folder)}")
    shutil.rmtree(folder)
    return problems


def _without_tensors(folder: Path, names: set[str]) -> None:
    from safetensors.torch import load_file, save_file

    (weights,) = folder.glob("*.safetensors")
    rest = {key: tensor for key, tensor in load_file(weights).items() if key not in names}
    save_file(rest, weights, {"format": "pt"})


def _messages(folder: Path) -> list[str]:
    return [finding.message for finding in api.inspect(folder).findings if finding.rule == "STO006"]


ROUTERS = {
    "MixtralForCausalLM": "block_sparse_moe.gate.weight",
    "DeepseekV3ForCausalLM": "mlp.gate.weight",  # a bias of the router stays
    "JambaForCausalLM": "feed_forward.router.weight",
    "SwitchTransformersForConditionalGeneration": "router.classifier.weight",
}


@pytest.mark.parametrize("name", ROUTERS)
def test_experts_without_a_router(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes one up."""
    from safetensors.numpy import load_file, save_file

    from fixtures import zoo

    zoo.build(name).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    left = {key: tensor for key, tensor in stored.items() if not key.endswith(ROUTERS[name])}
    save_file(left, file, {"format": "pt"})
    assert len(left) < len(stored)
    monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)
    messages = [finding.message for finding in api.inspect(tmp_path).findings if finding.rule == "STO006"]
    assert any(
        re.search(r"experts (has|have) no router\. transformers fills the router with", each) for each in messages
    )
    save_file(stored, file, {"format": "pt"})
    assert not [finding for finding in api.inspect(tmp_path).findings if finding.rule == "STO006"]


def test_a_t5_without_its_relative_positions(tmp_path: Path) -> None:
    """Its first layer alone has the table. Old files also have one that the class ignores."""
    from safetensors.numpy import load_file, save_file

    from fixtures import zoo

    zoo.build("T5ForConditionalGeneration").save_pretrained(tmp_path)
    file, end = tmp_path / "model.safetensors", "layer.0.SelfAttention.relative_attention_bias.weight"
    stored = load_file(file)
    lost = ["decoder.block.0.", "encoder.block.0."]
    left = {name: tensor for name, tensor in stored.items() if not name.endswith(end)}
    old = left | {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": stored[f"{lost[0]}{end}"]}
    for tensors in (left, old):
        save_file(tensors, file, {"format": "pt"})
        reported = [name for finding in api.inspect(tmp_path).findings for name in finding.tensors]
        assert sorted(reported) == [f"{start}{end}" for start in lost]
    save_file(stored, file, {"format": "pt"})
    assert not api.inspect(tmp_path).findings
