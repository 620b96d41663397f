"""Names that one major version of transformers reads and the other does not, as `inspect --consumers` tells them.

What transformers 4 does is on record for every class in tests/families/older.json; here it is the predictions.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tieconv as api
from fixtures import zoo
from tests.oracles import run_transformers as loader

NEOX = "GPTNeoXForCausalLM"
LLAVA = "LlavaForConditionalGeneration"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of each class with a head of its own, as transformers saves it."""
    root = tmp_path_factory.mktemp("saved")
    for kind in (NEOX, LLAVA, "GPT2LMHeadModel", "BertForMaskedLM"):
        zoo.build(kind, tie=False).save_pretrained(root / kind)
    return {kind: root / kind for kind in (NEOX, LLAVA, "GPT2LMHeadModel", "BertForMaskedLM")}


def spelled(source: Path, folder: Path, new: dict[str, str], drop: str = "") -> Path:
    """A copy under other names: each key of ``new`` is the start of a name that its value takes the place of."""
    shutil.copytree(source, folder)
    values: dict[str, torch.Tensor] = {}
    for name, value in load_file(folder / "model.safetensors").items():
        start = next((start for start in new if name.startswith(start)), "")
        if name != drop:
            values[new.get(start, "") + name.removeprefix(start)] = value
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def predicted(folder: Path) -> list[tuple[str, str]]:
    """What 4.48, 4.57 and 5.x do; 5.0 finds names as 5.x does."""
    older = "transformers<5,transformers>=5.4"
    return [(str(found.outcome), found.detail) for found in api.inspect(folder, consumers=older).consumers]


def observed(kind: str, folder: Path, embedding: str, head: str) -> str:
    job = {"class": kind, "folder": str(folder), "embedding": embedding, "head": head, "tables": [], "biases": []}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: str = loader.observe("transformers", job)["outcome"]
    return found


def flagged(folder: Path, flag: bool) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": flag}))


def test_a_head_under_its_new_name(saved: dict[str, Path], tmp_path: Path) -> None:
    """GPT-NeoX's head is lm_head in transformers 5 and embed_out in 4, which starts it at random and is told so."""
    folder = spelled(saved[NEOX], tmp_path / "neox", {"embed_out.": "lm_head."})
    older, newer, five = predicted(folder)
    assert observed(NEOX, folder, "gpt_neox.embed_in.weight", "lm_head.weight") == five[0] == "untied"
    assert (older[0], newer[0]) == ("random", "random")
    assert newer[1].startswith("embed_out.weight is not stored and starts with random numbers; ")
    assert newer[1].endswith("; transformers 4.57 does not know the name lm_head.weight")
    assert [outcome for outcome, _ in predicted(saved[NEOX])] == ["untied"] * 3
    flagged(folder, True)
    assert [outcome for outcome, _ in predicted(folder)] == ["discarded", "discarded", "untied"]


def test_names_of_a_nested_language_model(saved: dict[str, Path], tmp_path: Path) -> None:
    """LLaVA's names in memory are read by 4.57 and 5, and not by 4.48."""
    folder = spelled(
        saved[LLAVA], tmp_path / "llava",
        {"language_model.lm_head": "lm_head", "language_model.model": "model.language_model",
         "vision_tower": "model.vision_tower", "multi_modal": "model.multi_modal"},
    )  # fmt: skip
    older, newer, five = (outcome for outcome, _ in predicted(folder))
    names = ("model.language_model.embed_tokens.weight", "lm_head.weight")
    assert observed(LLAVA, folder, *names) == five == newer == "untied"
    assert older == "random"


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "BertForMaskedLM"])
def test_a_head_beside_names_without_the_prefix(kind: str, saved: dict[str, Path], tmp_path: Path) -> None:
    """transformers 4 takes such a file for corrupted, 5 reads it; without the head both read it."""
    prefix, head = ("transformer.", "lm_head.weight") if kind[0] == "G" else ("bert.", "cls.predictions.decoder.weight")
    folder = spelled(saved[kind], tmp_path / kind, {prefix: ""})
    table = "wte.weight" if kind[0] == "G" else "embeddings.word_embeddings.weight"
    older, newer, five = predicted(folder)
    assert observed(kind, folder, table, head) == five[0] == "untied"
    assert older == newer and newer[0] == "error" and newer[1].startswith("transformers 4 treats the file as corrupted")
    tied = spelled(saved["GPT2LMHeadModel"], tmp_path / "tied", {"transformer.": ""}, drop="lm_head.weight")
    flagged(tied, True)
    assert [outcome for outcome, _ in predicted(tied)] == ["tied"] * 3


def test_one_name_without_the_prefix(saved: dict[str, Path], tmp_path: Path) -> None:
    """transformers 4 takes a file for prefixed as soon as one name is, and then does not know a name that is not."""
    folder = spelled(saved["GPT2LMHeadModel"], tmp_path / "m", {"transformer.wte": "wte"})
    assert observed("GPT2LMHeadModel", folder, "wte.weight", "lm_head.weight") == "untied"
    assert [outcome for outcome, _ in predicted(folder)] == ["random", "random", "untied"]
    mixed = spelled(saved["GPT2LMHeadModel"], tmp_path / "n", {"lm_head": "transformer.lm_head"})
    assert observed("GPT2LMHeadModel", mixed, "transformer.wte.weight", "transformer.lm_head.weight") == "untied"
    assert [outcome for outcome, _ in predicted(mixed)] == ["random", "random", "untied"]
    flagged(mixed, True)
    assert [outcome for outcome, _ in predicted(mixed)] == ["discarded", "discarded", "untied"]


@pytest.mark.parametrize(
    ("kind", "told", "spelling"),
    [
        ("Qwen2VLForConditionalGeneration", "model.embed_tokens.weight", "embed_tokens.weight"),
        ("Qwen2VLForConditionalGeneration", "lm_head.weight", "model.lm_head.weight"),
        ("Step3p7ForConditionalGeneration", "model.embed_tokens.weight", "embed_tokens.weight"),
    ],
)
def test_a_name_that_a_rename_hides_from_transformers_5(kind: str, told: str, spelling: str, tmp_path: Path) -> None:
    """Where the loader renames, not every name with or without the prefix is read: what is not starts at random."""
    zoo.build(kind, tie=False).save_pretrained(tmp_path / "whole")
    folder = spelled(tmp_path / "whole", tmp_path / "m", {told: spelling})
    names = ("model.embed_tokens.weight", "lm_head.weight")
    assert observed(kind, tmp_path / "whole", *names) == predicted(tmp_path / "whole")[-1][0] == "untied"
    assert observed(kind, folder, *(spelling if name == told else name for name in names)) == "random"
    assert predicted(folder)[-1][0] == "random"


def test_tables_that_differ_in_shape_by_design(tmp_path: Path) -> None:
    """Kyutai's input table has more rows than a head of its own: untied that is no mistake."""
    kind = "KyutaiSpeechToTextForConditionalGeneration"
    zoo.build(kind, tie=False).save_pretrained(tmp_path / "m")
    flagged(tmp_path / "m", False)
    older, newer, five = predicted(tmp_path / "m")
    loaded = zoo.model_class(kind).from_pretrained(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")["lm_head.weight"]
    assert torch.equal(loaded.get_parameter("lm_head.weight"), stored)
    assert (older[0], newer[0], five[0]) == ("error", "untied", "untied")  # 4.48 lacks the class
