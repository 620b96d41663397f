"""The shipped table against the classes of the installed transformers."""

from __future__ import annotations

import copy
import functools
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.lazy import torch, version_of
from tieconv.architectures import class_table as table, guess as pattern
from tieconv.architectures.lookup import find

FIXTURES = Path(__file__).parents[2] / "fixtures"

#: One class of each kind that the table tells apart.
SPREAD = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "BertForMaskedLM", "RobertaForMaskedLM", "AlbertForMaskedLM",
    "DistilBertForMaskedLM", "LukeForMaskedLM", "MobileBertForMaskedLM", "T5ForConditionalGeneration",
    "MT5ForConditionalGeneration", "SwitchTransformersForConditionalGeneration", "BartForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "MarianMTModel", "FSMTForConditionalGeneration", "Pop2PianoForConditionalGeneration",
    "T5GemmaForConditionalGeneration", "WhisperForConditionalGeneration", "Qwen2VLForConditionalGeneration",
    "LlavaForConditionalGeneration", "Gemma3ForConditionalGeneration", "Blip2ForConditionalGeneration",
    "Llama4ForConditionalGeneration", "NemotronHForCausalLM", "BltForCausalLM", "DbrxForCausalLM",
    "EncoderDecoderModel", "PhiForCausalLM",
)  # fmt: skip

pytestmark = pytest.mark.skipif(
    version_of("transformers") != table.measured_with(5),
    reason=f"the table is of transformers {table.measured_with(5)}",
)


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    sys.path.insert(0, str(FIXTURES))
    try:
        module = importlib.import_module("families")
    finally:
        sys.path.remove(str(FIXTURES))
    torch.set_num_threads(1)
    return module


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SPREAD)
def test_the_table_says_what_the_class_does(generator: ModuleType, name: str) -> None:
    """Measuring the class again gives the shipped record."""
    assert json.loads(json.dumps(generator.measure(name))) == table.record(5, name)


@pytest.mark.parametrize("name", table.exceptions("switch"))
@pytest.mark.parametrize("is_switched", [True, False])
def test_a_switch_of_the_config(generator: ModuleType, name: str, is_switched: bool) -> None:
    """The record that a switch of the config changes is that of the class with this config."""
    zoo = generator.zoo
    ((path, value, _),) = table.exceptions("switch")[name]
    raw: dict[str, Any] = zoo.tiny_config(name, architectures=[name]).to_dict()
    *levels, key = path.split(".")
    functools.reduce(dict.__getitem__, levels, raw)[key] = value is is_switched
    config = zoo.config_class(name).from_dict(copy.deepcopy(raw))
    zoo.set_tie(config, True)
    model = zoo.instantiate(name, config, "meta")
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    family = find(raw)
    biases = {f"{str(family.output_head).removesuffix('weight')}bias", "final_logits_bias"}
    assert set(family.output_biases) == biases & {*held}
    assert held[family.input_embedding] is held[family.output_head]
    assert all(held[group.canonical] is held[member] for group in family.groups for member in group.members)


@pytest.mark.parametrize("name", ["LlamaForCausalLM", "BertForMaskedLM", "BartForConditionalGeneration"])
def test_builds_are_reproducible(generator: ModuleType, name: str) -> None:
    """Two builds are equal, another seed is not, and only the head differs between tied and untied."""
    zoo = generator.zoo

    def weights(**options: Any) -> dict[str, Any]:
        return dict(zoo.build(name, **options).state_dict())

    first, again, other = weights(), weights(), weights(seed=1)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)
    family = table.load(name)
    assert family is not None
    tied, untied = weights(tie=True), weights(tie=False)
    differing = {key for key in tied if not torch.equal(tied[key], untied[key])}
    assert differing <= {member for group in family.groups for member in (*group.members, group.canonical)}
    assert family.output_head in differing


def test_pattern_on_whole_files(generator: ModuleType) -> None:
    """Among all names of the spread's untied files the guess is right for nearly all."""
    right = wrong = 0
    for name in SPREAD:
        family = table.load(name)
        assert family is not None
        shapes = {key: tuple(t.shape) for key, t in generator.saved(generator.zoo.build(name, tie=False)).items()}
        groups = [group for group in family.groups if group.role == "word_embedding"]
        members = {member for group in groups for member in (group.canonical, *group.members)}
        tables = {family.input_embedding} | members - {family.output_head}
        embedding, head = pattern.guess(shapes, generator.zoo.VOCAB)
        right += (embedding in tables) + (head == family.output_head)
        wrong += (embedding not in tables) + (head != family.output_head)
    assert right / (right + wrong) > 0.95


@pytest.mark.matrix
def test_every_class(generator: ModuleType) -> None:
    """The whole table, measured again."""
    zoo = generator.zoo
    measured = json.loads(json.dumps(generator.measure_all(zoo.measured())))
    shipped = {name: table.record(5, name) for name in table.names()}
    assert measured == shipped
