"""VOC001: the sizes that the config states against the shapes of the stored tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv as api
from tests.checks.fixtures.model import BERT, EMBED, LLAMA, Config, Tensors, flagged, matrix, save, weights
from tests.lazy import torch
from tieconv.architectures import class_table, effective_flag

UP, KEYS = "model.layers.0.mlp.up_proj.weight", "model.layers.0.self_attn.k_proj.weight"
LAYER_NORM = "model.layers.0.input_layernorm.weight"
END = (
    "The config or the weights may be of another model. transformers cannot load the model, or it fills what does not "
)
END += "fit with random values."
WHOLE: Config = {**flagged(LLAMA, True), "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 2}
TENSORS = {
    EMBED: matrix(),
    UP: matrix(8, 4),
    "model.layers.0.mlp.down_proj.weight": matrix(4, 8),
    "model.layers.0.self_attn.q_proj.weight": matrix(4, 4),
    KEYS: matrix(2, 4),
}
TYPES = "bert.embeddings.token_type_embeddings.weight"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
GPT2: Config = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 8, "n_embd": 4}
VISION: Config = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "text_config": {"model_type": "llama", "vocab_size": 8, "hidden_size": 4, "intermediate_size": 9},
    "vision_config": {"model_type": "clip_vision_model", "intermediate_size": 9},
    "tie_word_embeddings": True,
}
TOWER = "vision_tower.encoder.layers.0.mlp.fc1.weight"


def without(config: Config, *keys: str) -> Config:
    return {key: value for key, value in config.items() if key not in keys}


def text(config: Config, level: str, **values: object) -> Config:
    return {**config, level: {**config[level], **values}}


UP_9 = f"intermediate_size is 9 in the config, but {UP} has the shape [8, 4]. 2 tensors do not fit. {END}"
CASES: dict[str, tuple[Config | None, Tensors, str]] = {
    "types of tokens": (
        {**flagged(BERT, True), "type_vocab_size": 3},
        {"bert.embeddings.word_embeddings.weight": matrix(), TYPES: matrix(2, 4), QUERY: matrix(4, 4)},
        f"type_vocab_size is 3 in the config, but {TYPES} has the shape [2, 4]. {END}",
    ),
    "whole": (WHOLE, TENSORS, ""),
    "one key": ({**WHOLE, "intermediate_size": 9}, TENSORS, UP_9),
    "without the prefix of the base model": (
        {**WHOLE, "intermediate_size": 9},
        {name.removeprefix("model."): tensor for name, tensor in TENSORS.items()},
        UP_9.replace("model.layers", "layers"),
    ),
    "a product of two keys": (
        {**WHOLE, "num_key_value_heads": 2},
        TENSORS,
        f"head_dim * num_key_value_heads is 4 in the config, but {KEYS} has the shape [2, 4]. {END}",
    ),
    "a head size that the class derives": (
        {**without(WHOLE, "head_dim"), "num_attention_heads": 1},
        TENSORS,
        f"hidden_size / num_attention_heads * num_key_value_heads is 4 in the config, but {KEYS} has the shape [2, 4]. "
        + END,
    ),
    "a head size of null": ({**WHOLE, "head_dim": None}, TENSORS, ""),
    "a derived head size without its keys": (without(WHOLE, "head_dim", "hidden_size"), TENSORS, ""),
    "an absent key": (without(WHOLE, "intermediate_size"), {**TENSORS, UP: matrix(9, 4)}, ""),
    "a key for each layer": ({**WHOLE, "intermediate_size": [9]}, TENSORS, ""),
    "the class of remote code": ({**WHOLE, "intermediate_size": 9, "auto_map": {}}, TENSORS, ""),
    "an unknown class": ({**WHOLE, "intermediate_size": 9, "architectures": ["Acme"], "model_type": "x"}, TENSORS, ""),
    "a draft model": (
        {**WHOLE, "draft_vocab_size": 4},
        {UP: matrix(8, 4), KEYS: matrix(2, 8), "model.fc.weight": matrix(4, 12)},
        "",
    ),
    "a quantised model": ({**WHOLE, "intermediate_size": 9, "quantization_config": {}}, TENSORS, ""),
    "codes": (WHOLE, {**TENSORS, UP: np.zeros((9, 4), np.int32)}, ""),
    "another rank": (WHOLE, {**TENSORS, UP: matrix(9, 4).reshape(-1)}, ""),
    "a norm": (
        WHOLE,
        {**TENSORS, LAYER_NORM: np.ones(3, "<f4"), "model.norm.weight": np.ones(4, "<f4")},
        f"hidden_size is 4 in the config, but {LAYER_NORM} has the shape [3]. {END}",
    ),
    "a matrix between states": (
        WHOLE,
        {**TENSORS, "model.layers.0.self_attn.o_proj.weight": matrix(3, 4)},
        f"hidden_size is 4 in the config, but model.layers.0.self_attn.o_proj.weight has the shape [3, 4]. {END}",
    ),
    "a placeholder": (WHOLE, {**TENSORS, UP: np.zeros((0, 4), "<f4")}, ""),
    "no config": (None, TENSORS, ""),
    "a table of positions": (
        {**GPT2, "n_positions": 16},
        {"wte.weight": matrix(), "wpe.weight": matrix(8)},
        f"n_positions is 16 in the config, but wpe.weight has the shape [8, 4]. {END}",
    ),
    "another name of a key": (
        {**GPT2, "max_position_embeddings": 16},
        {"wte.weight": matrix(), "wpe.weight": matrix(8)},
        f"n_positions is 16 in the config, but wpe.weight has the shape [8, 4]. {END}",
    ),
    "two names of a key that disagree": (
        {**GPT2, "n_positions": 16, "max_position_embeddings": 8},
        {"wte.weight": matrix(), "wpe.weight": matrix(8)},
        "",
    ),
    "pruned heads": ({**BERT, "pruned_heads": {"0": [0]}}, {QUERY: matrix(2, 4)}, ""),
    "the vision tower": (
        VISION,
        {TOWER: matrix(8, 4)},
        f"vision_config.intermediate_size is 9 in the config, but {TOWER} has the shape [8, 4]. {END}",
    ),
    "a vision tower of another type": (
        text(VISION, "vision_config", model_type="siglip_vision_model"),
        {TOWER: matrix(8, 4)},
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_sizes(case: str, tmp_path: Path) -> None:
    config, tensors, message = CASES[case]
    findings = api.inspect(save(tmp_path / "model", config, tensors)).findings
    sizes = [finding for finding in findings if finding.rule == "VOC001"]
    assert [finding.message for finding in sizes] == [message] * bool(message)
    assert all(finding.remedy is None and finding.level == "error" for finding in sizes)


VISION_DEFAULT = "vision_config.intermediate_size is 4,096 by default, because the config lacks "
VISION_DEFAULT += f"vision_config.intermediate_size, but {TOWER} has the shape [8, 4]. {END}"
DEFAULTS: dict[str, tuple[Config, Tensors, str]] = {
    "an absent key": (
        without(WHOLE, "intermediate_size"),
        TENSORS,
        UP_9.replace("9 in the config", "11,008 by default, because the config lacks intermediate_size"),
    ),
    "null": ({**WHOLE, "intermediate_size": None}, TENSORS, ""),
    "an absent key under another name": (
        {**GPT2, "max_position_embeddings": 8},
        {"wte.weight": matrix(), "wpe.weight": matrix(8)},
        "",
    ),
    "an absent part": (without(VISION, "vision_config"), {TOWER: matrix(8, 4)}, VISION_DEFAULT),
    "a part that is a list": ({**VISION, "vision_config": [1]}, {TOWER: matrix(8, 4)}, ""),
    "an absent part of a flat config": (
        {**without(VISION, "vision_config"), "intermediate_size": 8},
        {TOWER: matrix(8, 4)},
        "",
    ),
    "an absent part with another name": (
        {**without(VISION, "vision_config"), "vit_config": {"hidden_size": 4}},
        {TOWER: matrix(8, 4)},
        "",
    ),
    "an absent part without a model type": (
        {
            "architectures": ["DbrxForCausalLM"],
            "model_type": "dbrx",
            "d_model": 4,
            "max_seq_len": 8,
            "generation": {"top_k": 1},
            "vocab_size": 8,
        },
        {"transformer.wte.weight": matrix(), "transformer.blocks.0.norm_attn_norm.norm_1.weight": np.ones(4, "<f4")},
        "",
    ),
    "a part of another type": (
        {**VISION, "vision_config": {"model_type": "siglip_vision_model"}},
        {TOWER: matrix(8, 4)},
        "",
    ),
}


@pytest.mark.parametrize("case", DEFAULTS)
def test_sizes_that_the_config_leaves_out(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file is compared with the defaults of transformers. A small one may be an example of names."""
    config, tensors, message = DEFAULTS[case]
    folder = save(tmp_path / "model", config, tensors)
    assert not _reported(folder)
    monkeypatch.setattr(effective_flag, "_LEAST_BYTES", 0)
    assert _reported(folder) == [message] * bool(message)


def test_files_of_mlx(tmp_path: Path) -> None:
    """mlx-lm stores some matrices in another order."""
    folder = save(tmp_path / "model", {**WHOLE, "intermediate_size": 9}, TENSORS)
    (folder / "model.safetensors").write_bytes(weights(TENSORS, {"format": "mlx"}))
    assert "VOC001" not in {finding.rule for finding in api.inspect(folder).findings}


def test_a_torch_file(tmp_path: Path) -> None:
    folder = save(tmp_path / "model", {**WHOLE, "intermediate_size": 9}, {})
    (folder / "model.safetensors").unlink()
    torch.save({name: torch.from_numpy(tensor) for name, tensor in TENSORS.items()}, folder / "pytorch_model.bin")
    assert UP_9 in [finding.message for finding in api.inspect(folder).findings]


def test_what_transformers_makes_of_it(tmp_path: Path) -> None:
    """Its releases fail. The other loaders were not run on such a model."""
    folder = save(tmp_path / "model", {**WHOLE, "intermediate_size": 9}, TENSORS)
    for row in api.inspect(folder, consumers="transformers").consumers:
        assert (row.outcome, "intermediate_size is 9" in row.detail) == ("error", True), row


def test_the_hidden_size_is_reported_once(tmp_path: Path) -> None:
    """The embedding shows it, so the layers are not listed too."""
    findings = api.inspect(save(tmp_path / "model", {**WHOLE, "hidden_size": 5}, TENSORS)).findings
    assert [finding.message.partition(".")[0] for finding in findings if finding.rule == "VOC001"] == ["model"]


def test_the_table_names_classes_and_keys() -> None:
    """Each record is of a class in the class table, and gives each row a key."""
    data = Path(class_table.__file__).parent / "data"
    table = json.loads((data / "sizes.json").read_text())
    header = table.pop("")
    names = {*class_table.names(), *json.loads((data / "newer.json").read_text())}
    assert header.keys() == {"transformers", "newer", "words"}
    assert header["words"].keys() == {"activation", "type of RoPE", "type of layer"}
    assert len(table) > 390 and table.keys() <= names
    for record in table.values():
        rows = [row.split() for by_row in table.get(record.get("as"), record)["rows"].values() for row in by_row]
        assert rows and all({*row} != {"-"} for row in rows)


def test_saved_models(tmp_path: Path) -> None:
    """What a class saves has no finding. With a larger number or an unknown word, it has one, and does not load."""
    for name in ("LlamaForCausalLM", "Qwen3MoeForCausalLM"):
        assert [*_problems(name, tmp_path / name, load=True)] == []


SILENT = ("IBertForMaskedLM", "Inkling2ForConditionalGeneration", "MarianMTModel")
"""Classes whose config has keys of a quantiser, and one that does not save its table of positions."""


@pytest.mark.matrix
def test_every_class(tmp_path: Path) -> None:
    """As `test_saved_models`, for all classes of the table, without the load."""
    problems = [problem for name in class_table.names() for problem in _problems(name, tmp_path / name)]
    assert [problem for problem in problems if not problem.startswith(SILENT)] == []
    assert all(problem.endswith(" is not reported") for problem in problems)


def _problems(name: str, folder: Path, *, load: bool = False) -> Iterator[str]:
    from fixtures import zoo

    family = class_table.load(name)
    assert family is not None
    rows = class_table.size_keys(family).get("rows", {})
    zoo.build(name).save_pretrained(folder)
    if _reported(folder):
        yield f"{name}: {_reported(folder)}"
    config = json.loads((folder / "config.json").read_text())
    formulas = {keys for by_row in rows.values() for row in by_row for keys in row.split()} - {"-"}
    for path in sorted({path for keys in formulas for path in keys.split("*") if stated(config, keys)}):
        _edit(folder, config, path, lambda size: 2 * size)
        if not _reported(folder):
            yield f"{name}: {path} is not reported"
        if load:
            with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
                zoo.model_class(name).from_pretrained(folder)
    for path in (path for paths in class_table.size_keys(family).get("words", {}).values() for path in paths):
        if not stored(config, path):
            continue
        _edit(folder, config, path, lambda _: "no-such-word")
        if not _reported(folder, "CON003"):
            yield f"{name}: {path} is not reported"
        if load:
            with pytest.raises(KeyError, match="no-such-word"):
                zoo.model_class(name).from_pretrained(folder)


def _edit(folder: Path, config: Config, path: str, change: Callable[[Any], Any]) -> None:
    """Write the config with another value at a dotted path."""
    *levels, key = path.split(".")
    edited: dict[str, Any] = json.loads(json.dumps(config))
    level = edited
    for step in levels:
        level = level[step]
    level[key] = change(level[key])
    (folder / "config.json").write_text(json.dumps(edited))


def stored(config: Config, path: str) -> bool:
    """Whether the config has the key."""
    value: Any = config
    for step in path.split("."):
        value = value.get(step, {}) if isinstance(value, dict) else {}
    return value != {}


def stated(config: Config, keys: str) -> bool:
    """Whether the config states all of the keys."""
    *levels, key = keys.split("*")[0].split(".")
    values: Any = config
    for step in levels:
        values = values.get(step, {})
    rest = keys.split("*")[1:]
    return type(values.get(key)) is int and all(stated(config, path) for path in rest)


def _reported(folder: Path, rule: str = "VOC001") -> list[str]:
    return [finding.message for finding in api.inspect(folder).findings if finding.rule == rule]


def test_all_rows_of_loaders_share_one_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 90,000 tensors each comparison takes 0.1 s."""
    compared = []
    compare = effective_flag._unfit_tensors

    def counted(inspection: Any) -> Any:
        compared.append(inspection)
        return compare(inspection)

    monkeypatch.setattr(effective_flag, "_unfit_tensors", counted)
    model = save(tmp_path / "model", flagged(LLAMA, True), {EMBED: matrix()})
    rows = api.inspect(model, consumers="transformers").consumers
    assert len(rows) > len({id(inspection) for inspection in compared}) == len(compared)
