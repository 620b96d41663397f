"""How the files lie decides whether a loader finds the weights; files that transformers 5 reads in ways of its own."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from fixtures import zoo
from tests.checks.remedy import run
from tests.consumers import layouts
from tests.lazy import load_file, save_file, torch
from tests.loops import case
from tests.oracles import run_transformers as loader
from tieconv.checkpoint.finding import Outcome, Prediction
from tieconv.errors import TieconvError

RECORDED = json.loads(layouts.RECORDED.read_text(encoding="utf-8"))

UNREAD = {
    "model.SAFETENSORS",
    "sub/model.safetensors",
    "index with a missing shard",
    "index without weights",
    "index to bin",
    "index to a subfolder",
    "two indexes of other names",
    "empty",
    "dangling link",
    "dangling link and another",
    "empty file",
    "a directory of that name",
}
"""Layouts that tieconv refuses to read, with exit code 2: it predicts nothing of them."""

UNCLAIMED = {"bin index to safetensors", "index without the embedding"}
"""Layouts whose index is of another format, or is not whole: predictions are `unknown`, and a rule says why."""

SIDE_BY_SIDE = {
    "single and index",
    "safetensors and bin",
    "sharded and bin",
    "safetensors and sharded bin",
    "another name and bin",
    "no index and bin",
    "an adapter and bin",
}
"""Layouts that may be two models, of which transformers takes one and others take another."""

NAMED_WRONGLY = {"bin named by the config", "another one named by the config"}
"""Layouts that only another config mends."""

Places = dict[str, list[tuple[Path, dict[str, object]]]]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    found: Places = {}
    for name, folder, job in layouts.write(tmp_path_factory.mktemp("layouts")):
        found.setdefault(name, []).append((folder, job))
    return found


def predicted(folder: Path, spec: str) -> str | None:
    """The outcome; ``None`` where the directory is refused."""
    try:
        (found,) = api.inspect(folder, consumers=spec).consumers
    except TieconvError:
        return None
    return str(found.outcome)


def expected(name: str, seen: list[str]) -> list[str | None]:
    if name in UNREAD:
        return [None] * len(seen)
    return [str(Outcome.UNKNOWN)] * len(seen) if name in UNCLAIMED else [*seen]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", layouts.LAYOUTS)
def test_the_installed_transformers(name: str, places: Places) -> None:
    """Found or not, tied or untied: what is predicted is what `from_pretrained` does, whatever the flag."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = [loader.observe("transformers", job)["outcome"] for _, job in places[name]]
    assert [predicted(folder, "transformers>=5.4") for folder, _ in places[name]] == expected(name, seen)


@pytest.mark.parametrize("consumer", layouts.ASKED)
def test_the_recorded_ones(consumer: str, places: Places) -> None:
    """The same for versions that are not installed, as `python -m tests.consumers.layouts` recorded them."""
    for name in layouts.LAYOUTS:
        with case(name):
            seen = RECORDED[consumer]["outcomes"][name]
            spec = consumer.replace(" ", "==")
            assert [predicted(folder, spec) for folder, _ in places[name]] == expected(name, seen)


def test_the_record_is_of_these_layouts() -> None:
    """Each layout under each flag, with the versions that the predictions cite."""
    assert {consumer: entry["version"] for consumer, entry in RECORDED.items()} == layouts.ASKED
    for entry in RECORDED.values():
        assert list(entry["outcomes"]) == list(layouts.LAYOUTS)
        assert all(len(outcomes) == len(layouts.FLAGS) for outcomes in entry["outcomes"].values())


def test_a_loader_finds_what_the_remedy_writes(places: Places, tmp_path: Path) -> None:
    """Each finding that names a file no loader looks for, or a missing index, names the command that mends it."""
    mended = 0
    for name in layouts.LAYOUTS.keys() - UNREAD - UNCLAIMED - SIDE_BY_SIDE - {"no index, a missing shard"}:
        folder, job = places[name][0]
        rules = [
            found for found in api.inspect(folder).findings if found.rule in ("IDX006", "IDX010", "IDX011", "IDX012")
        ]
        if name in NAMED_WRONGLY or not rules:
            assert [found.remedy for found in rules] == [None] * (name in NAMED_WRONGLY)
            continue
        (found,) = rules
        # What is said of numpy goes, which is for a person to decide.
        assert found.remedy is not None and found.remedy.safe is (name != "metadata of numpy")
        out = tmp_path / str(mended)
        run(found.remedy.command, out)
        seen = loader.observe("transformers", job | {"folder": str(out)})["outcome"]
        assert predicted(out, "transformers>=5.4") == seen == "tied"
        assert {left.rule for left in api.inspect(out).findings} <= {"IDX005"}
        mended += 1
    assert mended > 15


LOADERS = ("vllm>=0.29", "text-generation-inference", "tensorrt-llm==1.0", "mlx-lm==0.32", "llama.cpp")


@pytest.mark.parametrize(
    ("name", "outcomes"),
    {
        "model.safetensors": "tied tied tied tied tied",
        "model (1).safetensors": "tied tied tied tied tied",
        "weights.safetensors": "tied tied tied error error",
        "Model.safetensors": "tied tied tied error error",
        "sharded, no index": "tied tied tied tied tied",
        "sharded under another name": "tied tied tied error error",
        "no index, a missing shard": "unknown unknown unknown unknown unknown",
        "index to a lone file": "tied tied tied error error",
        "weights.bin": "tied tied tied error error",
        "pytorch_model (1).bin": "tied tied tied error tied",
        "pytorch_model.pt": "tied error error error error",
        "consolidated.00.pth": "error error tied error error",
    }.items(),
    ids=lambda value: value if "." in value or "," in value else None,
)
def test_loaders_that_go_by_patterns(name: str, outcomes: str, places: Places) -> None:
    """Each of the others takes every file of its patterns, as its source has it, with an index or without."""
    folder, _ = places[name][0]
    assert [predicted(folder, spec) for spec in LOADERS] == outcomes.split()


def test_a_file_beside_that_a_pattern_takes_too(places: Places, tmp_path: Path) -> None:
    """Two files that hold the head: where they differ, which one a loader by patterns ends with is not claimed."""
    folder = Path(shutil.copytree(places["single and another"][1][0], tmp_path / "model"))
    asked = ("transformers>=5.4", *LOADERS)
    assert [predicted(folder, spec) for spec in asked] == ["untied"] * len(asked)
    tensors = loader.stored(folder)
    tensors[layouts.HEAD] += 1
    layouts.one(folder, tensors, "model (1).safetensors")
    assert [predicted(folder, spec) for spec in asked] == ["untied"] + ["unknown"] * len(LOADERS)


SAFETENSORS_FIRST = {"safetensors and bin", "sharded and bin", "safetensors and sharded bin"}
"""Layouts of two formats in which transformers reads the safetensors files."""


@pytest.mark.parametrize("name", sorted(SIDE_BY_SIDE))
def test_others_may_take_the_other_model(name: str, places: Places) -> None:
    """Nothing is claimed if the directory may hold two models; some loaders prefer safetensors files."""
    outcomes = {spec: predicted(places[name][0][0], spec) for spec in LOADERS}
    for spec in ("llama.cpp", "mlx-lm==0.32", "vllm>=0.29"):
        assert outcomes.pop(spec) == ("tied" if name in SAFETENSORS_FIRST else "unknown")
    assert set(outcomes.values()) == {"unknown"}


def test_an_index_leaves_it_out(places: Places, tmp_path: Path) -> None:
    """Beside an index, vLLM and llama.cpp read what that names; the others take the file as well."""
    folder = Path(shutil.copytree(places["sharded"][1][0], tmp_path / "model"))
    tensors = loader.stored(places["model.safetensors"][1][0])
    tensors[layouts.HEAD] += 1
    layouts.one(folder, tensors, "model (1).safetensors")
    assert [predicted(folder, spec) for spec in LOADERS] == ["untied", "unknown", "unknown", "unknown", "untied"]


def test_load_model_takes_any_one_file(places: Places) -> None:
    """`safetensors.torch.load_model` is given a path: its name, and an index beside it, are no matter."""
    for name in ("model (1).safetensors", "index to a lone file", "model-00001-of-00001.safetensors"):
        assert predicted(places[name][0][0], "safetensors") == "tied"
    assert predicted(places["sharded"][0][0], "safetensors") == "error"


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


def predicted_files(folder: Path) -> Prediction:
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
    assert predicted_files(folder).outcome == "untied"


def test_tables_that_the_config_keeps_apart(tmp_path: Path) -> None:
    """Marian's halves may have a table each: then the shared one is absent, and a healthy file has no finding."""
    folder = saved(tmp_path / "m", "MarianMTModel", share_encoder_decoder_embeddings=False)
    names = dict(loaded(folder, "MarianMTModel").named_parameters())
    assert "model.shared.weight" not in names and "model.decoder.embed_tokens.weight" in names
    assert predicted_files(folder).outcome == "untied"
    assert api.inspect(folder).findings == ()


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
        assert predicted_files(folder).outcome == ("error" if refused else "tied")


def test_one_tensor_under_two_names(tmp_path: Path) -> None:
    """The values that count are not those of the table's name, and nothing is claimed."""
    folder = saved(tmp_path / "m", "LlamaForCausalLM")
    tensors = load_file(folder / "model.safetensors")
    tensors["embed_tokens.weight"] = tensors["model.embed_tokens.weight"] + 1
    written(folder, tensors)
    embedding = loaded(folder, "LlamaForCausalLM").get_input_embeddings().weight
    assert torch.equal(embedding, tensors["embed_tokens.weight"])
    assert predicted_files(folder).outcome == "unknown"
    assert "embed_tokens.weight are names of one parameter" in predicted_files(folder).detail


def test_a_name_that_is_not_read(tmp_path: Path) -> None:
    """Qwen2-VL's head is not read under the prefix: what is stored there is told as unknown to the loader."""
    kind = "Qwen2VLForConditionalGeneration"
    folder = saved(tmp_path / "m", kind)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.lm_head.weight"] = tensors.pop("lm_head.weight")
    written(folder, tensors)
    assert not torch.equal(loaded(folder, kind).get_output_embeddings().weight, tensors["model.lm_head.weight"])
    found = predicted_files(folder)
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
    assert predicted_files(folder).outcome == "unknown"


def test_the_prefix_once_more(tmp_path: Path) -> None:
    """It is taken away once, as transformers 5 does it; of loaders that go by patterns nothing is claimed then."""
    folder = saved(tmp_path / "m", "LlamaForCausalLM")
    tensors = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    written(folder, tensors)
    model = loaded(folder, "LlamaForCausalLM")
    assert torch.equal(model.get_input_embeddings().weight, tensors["model.model.embed_tokens.weight"])
    assert predicted_files(folder).outcome == "untied"
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
    assert predicted_files(folder).outcome == "untied"


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
