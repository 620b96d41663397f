"""Files that transformers 5 reads in ways of its own, loaded and held against `inspect --consumers`."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tieconv as api
from fixtures import zoo
from tests.oracles import run_transformers as loader
from tieconv.checkpoint.finding import Prediction

FSMT = "FSMTForConditionalGeneration"
ENCODER, DECODER, HEAD = (
    "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "model.decoder.output_projection.weight"
)  # fmt: skip


def saved(folder: Path, kind: str, **values: Any) -> Path:
    """A model with a head of its own; ``values`` go into its config before it is built."""
    config = zoo.tiny_config(kind)
    for key, value in values.items():
        setattr(config, key, value)
    zoo.set_tie(config, False)
    model = zoo.instantiate(kind, config)
    zoo.randomise(model)
    model.save_pretrained(folder)
    return folder


def predicted(folder: Path) -> Prediction:
    (found,) = api.inspect(folder, consumers="transformers>=5.4").consumers
    return found


def loaded(folder: Path, kind: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return loader.load("transformers", {"class": kind, "folder": str(folder)})


def written(folder: Path, tensors: dict[str, torch.Tensor], **values: Any) -> Path:
    """The tensors in place of the file's, and keys added to the config."""
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


@pytest.mark.parametrize("flag", [True, False])
def test_two_vocabularies(flag: bool, tmp_path: Path) -> None:
    """FSMT's encoder may have a vocabulary of its own: tables of two shapes are no mistake."""
    folder = saved(tmp_path / "m", FSMT, src_vocab_size=99, tgt_vocab_size=77)
    tensors = load_file(folder / "model.safetensors")
    tensors[HEAD] = tensors[DECODER] + 1
    written(folder, tensors, tie_word_embeddings=flag)
    model = loaded(folder, FSMT)
    assert all(torch.equal(model.get_parameter(name), tensors[name]) for name in (ENCODER, DECODER, HEAD))
    assert predicted(folder).outcome == "untied"


def test_tables_that_the_config_keeps_apart(tmp_path: Path) -> None:
    """Marian's halves may have a table each: then no shared one is there to be random, and nothing is claimed."""
    folder = saved(tmp_path / "m", "MarianMTModel", share_encoder_decoder_embeddings=False)
    names = dict(loaded(folder, "MarianMTModel").named_parameters())
    assert "model.shared.weight" not in names and "model.decoder.embed_tokens.weight" in names
    assert predicted(folder).outcome == "unknown"
    assert "share_encoder_decoder_embeddings" in predicted(folder).detail


@pytest.mark.parametrize("value", [None, 1, "true"])
def test_a_flag_that_is_no_boolean(value: object, tmp_path: Path) -> None:
    """The config is refused; T5's, which ties whatever it says, is not."""
    for kind, refused in (("LlamaForCausalLM", True), ("T5ForConditionalGeneration", False)):
        folder = saved(tmp_path / kind, kind)
        tensors = load_file(folder / "model.safetensors")
        tensors.pop("lm_head.weight", None)
        written(folder, tensors, tie_word_embeddings=value)
        if refused:
            with pytest.raises(Exception, match="tie_word_embeddings"):
                loaded(folder, kind)
        else:
            model = loaded(folder, kind)
            assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
        assert predicted(folder).outcome == ("error" if refused else "tied")


def test_one_tensor_under_two_names(tmp_path: Path) -> None:
    """The values that count are not those of the table's name, and nothing is claimed."""
    folder = saved(tmp_path / "m", "LlamaForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    tensors["embed_tokens.weight"] = tensors["model.embed_tokens.weight"] + 1
    written(folder, tensors)
    embedding = loaded(folder, "LlamaForCausalLM").get_input_embeddings().weight
    assert torch.equal(embedding, tensors["embed_tokens.weight"])
    assert predicted(folder).outcome == "unknown"
    assert "embed_tokens.weight are names of one parameter" in predicted(folder).detail


def test_a_name_that_is_not_read(tmp_path: Path) -> None:
    """Qwen2-VL's head is not read under the prefix: what is stored there is told as unknown to the loader."""
    kind = "Qwen2VLForConditionalGeneration"
    folder = saved(tmp_path / "m", kind)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.lm_head.weight"] = tensors.pop("lm_head.weight")
    written(folder, tensors)
    assert not torch.equal(loaded(folder, kind).get_output_embeddings().weight, tensors["model.lm_head.weight"])
    found = predicted(folder)
    assert found.outcome == "random"
    assert found.detail.endswith("; transformers 5 does not know the name model.lm_head.weight")


def test_more_spellings_than_are_known(tmp_path: Path) -> None:
    """Renamings of Qwen3-VL follow each other: its embedding is read under a name that no rule gives."""
    kind = "Qwen3VLForConditionalGeneration"
    folder = saved(tmp_path / "m", kind)
    tensors = load_file(folder / "model.safetensors")
    odd = "model.language_model.model.embed_tokens.weight"
    tensors[odd] = tensors.pop("model.language_model.embed_tokens.weight")
    written(folder, tensors)
    assert torch.equal(loaded(folder, kind).get_input_embeddings().weight, tensors[odd])
    assert predicted(folder).outcome == "unknown"


def test_the_prefix_once_more(tmp_path: Path) -> None:
    """It is taken away once, as transformers 5 does it; of loaders that go by patterns nothing is claimed then."""
    folder = saved(tmp_path / "m", "LlamaForCausalLM")
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    written(folder, tensors)
    model = loaded(folder, "LlamaForCausalLM")
    assert torch.equal(model.get_input_embeddings().weight, tensors["model.model.embed_tokens.weight"])
    assert predicted(folder).outcome == "untied"
    others = ("vllm", "text-generation-inference", "mlx-lm", "llama.cpp")
    assert {str(one.outcome) for spec in others for one in api.inspect(folder, consumers=spec).consumers} == {"unknown"}


def test_native_names_of_deepseek_v4(tmp_path: Path) -> None:
    """Its published files call the embedding embed.weight, which is read."""
    folder = saved(tmp_path / "m", "DeepseekV4ForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    tensors["embed.weight"] = tensors.pop("model.embed_tokens.weight")
    written(folder, tensors)
    embedding = loaded(folder, "DeepseekV4ForCausalLM").get_input_embeddings().weight
    assert torch.equal(embedding, tensors["embed.weight"])
    assert predicted(folder).outcome == "untied"


def test_untie_takes_the_values_that_are_tied(tmp_path: Path) -> None:
    """BART's decoder table is tied first: without the shared one, a head is written with its values, not another's."""
    kind = "BartForConditionalGeneration"
    folder = saved(tmp_path / "m", kind)
    tensors = load_file(folder / "model.safetensors")
    for name in ("model.shared.weight", "lm_head.weight"):
        tensors.pop(name)
    written(folder, tensors, tie_word_embeddings=True)
    api.plan_untie(folder).execute(tmp_path / "out")
    before, after = (loaded(path, kind) for path in (folder, tmp_path / "out"))
    names = ("model.shared.weight", *(f"model.{half}.embed_tokens.weight" for half in ("encoder", "decoder")))
    assert all(
        torch.equal(before.get_parameter(name), after.get_parameter(name)) for name in (*names, "lm_head.weight")
    )
