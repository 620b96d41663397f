"""`tieconv diff`: 0 where both models compute the same by construction, 1 where not, 2 where one cannot be read."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import tieconv
from fixtures import zoo
from tests.cli.run import ok, refused, run
from tests.cli.stored import bits_equal, config, configure, edit, tensors
from tests.lazy import torch, transformers
from tests.reload.judge import load
from tests.schemas import validate
from tieconv.comparison.differences import compare_configs

E, H = "model.embed_tokens.weight", "lm_head.weight"
UP = "model.layers.0.mlp.up_proj.weight"


def diff(a: Path, b: Path) -> dict[str, Any]:
    """The JSON of both directions' comparison, of which the exit code and the verdict must agree."""
    result = run("diff --json", a, b)
    document: dict[str, Any] = json.loads(result.stdout)
    validate(document, "diff")
    assert result.exit_code == (0 if document["same_function"] else 1)
    assert document["same_function"] == (not document["reasons"])
    assert run("diff", b, a).exit_code == result.exit_code
    return document


def different(document: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry["state"] for entry in document["tensors"]["different"]}


@pytest.fixture
def pair(model, tmp_path: Path):
    """A fixture and a writable copy of it."""

    def copies(name: str) -> tuple[Path, Path]:
        a = model(name)
        return a, Path(shutil.copytree(a, tmp_path / "other"))

    return copies


# --- the same function -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["llama-tied", "llama-tied-sharded", "llama-untied", "llama-headless-config", "bert-mlm", "bart", "t5", "gemma",
     "qwen2-vl", "gpt2-unprefixed", "llama-diverged"],
)  # fmt: skip
def test_a_model_is_itself(pair, name: str) -> None:
    """Every byte is compared; a copy is the same, whatever state it is in."""
    a, b = pair(name)
    document = diff(a, b)
    assert document["same_function"] and document["config"] == [] and document["files"] == []
    # A head bias that inspection proved to be zero is none, and not compared.
    stored = sum(t.numel() * t.element_size() for t in tensors(a).values() if t.any())
    assert document["tensors"]["bytes_compared"] >= 2 * stored


@pytest.mark.parametrize(
    "name", ["llama-tied", "llama-tied-sharded", "bert-mlm", "bart", "t5", "gemma", "qwen2-vl", "gpt2-unprefixed"]
)
@pytest.mark.parametrize("verb", ["untie", "untie --keep-flag", "untie --bias zero"])
def test_untying_keeps_the_function(model, tmp_path: Path, name: str, verb: str) -> None:
    """E stored and H tied is E and H stored; T5's scaled head without the flag is E with it; a zero bias is none."""
    folder = model(name)
    ok(verb, folder, "-o", tmp_path / "untied")
    assert different(diff(folder, tmp_path / "untied")) == {}


def test_layout_names_and_cosmetics_are_seen_through(model, tmp_path: Path) -> None:
    """One file or three shards, with or without the prefix, saved by whatever version."""
    single, sharded = model("llama-tied"), model("llama-tied-sharded")
    configure(single, transformers_version="4.0.0", _name_or_path="/somewhere")
    document = diff(single, sharded)
    assert document["same_function"]
    assert {entry["path"]: entry["judgement"] for entry in document["config"]} == {
        "transformers_version": "cosmetic", "_name_or_path": "cosmetic",
    }  # fmt: skip
    bare = model("gpt2-unprefixed")
    prefixed = Path(shutil.copytree(bare, tmp_path / "prefixed"))
    edit(prefixed, lambda stored: [stored.update({f"transformer.{name}": stored.pop(name)}) for name in list(stored)])
    assert diff(bare, prefixed)["same_function"]


def test_hard_links_need_no_reading(pair) -> None:
    """One file under two names is one file."""
    a, b = pair("llama-tied")
    (b / "model.safetensors").unlink()
    os.link(a / "model.safetensors", b / "model.safetensors")
    document = diff(a, b)
    assert document["same_function"] and document["tensors"]["bytes_compared"] == 0


def test_the_dtype_key_is_noted(pair) -> None:
    """Both spellings of one value are one. Of two values transformers 5 computes in two precisions."""
    a, b = pair("llama-tied")
    value = config(a)["dtype"]
    configure(b, torch_dtype=value, dtype=...)
    assert diff(a, b)["config"] == []
    configure(b, torch_dtype="float32")
    document = diff(a, b)
    assert not document["same_function"] and "different dtypes" in document["notes"][0]
    configure(b, torch_dtype=...)
    assert diff(a, b)["same_function"], "without the key, the stored type decides"
    configure(a, dtype="float32")
    assert not diff(a, b)["same_function"], "the stored type is bfloat16"


def test_a_bias_that_is_zero_is_none(pair) -> None:
    """Stored zeros add nothing, in a class that has the parameter and in one that has not."""
    a, b = pair("bert-mlm")
    for folder in (a, b):
        edit(folder, lambda stored: stored.update({"cls.predictions.bias": torch.zeros(160)}))
    edit(b, lambda stored: stored.pop("cls.predictions.bias"))
    assert diff(a, b)["same_function"]
    edit(a, lambda stored: stored.update({"cls.predictions.bias": torch.ones(160)}))
    assert different(diff(a, b)) == {"head bias": "only_a"}
    edit(b, lambda stored: stored.update({"cls.predictions.bias": torch.zeros(160)}))
    assert different(diff(a, b)) == {"head bias": "only_a"}


def as_nystromformer(stored) -> None:
    """A BERT with a zero bias under the names of another class."""
    stored["cls.predictions.bias"] = torch.zeros(160)
    for name in [name for name in stored if name.startswith("bert.")]:
        stored[f"nystromformer{name[4:]}"] = stored.pop(name)


def test_a_bias_that_is_zero_is_some_where_an_absent_one_has_no_values(pair) -> None:
    """Both releases give an absent bias of this class no values; a stored zero is a bias, and equal to itself."""
    a, b = pair("bert-mlm")
    for folder in (a, b):
        configure(folder, model_type="nystromformer", architectures=["NystromformerForMaskedLM"])
        edit(folder, as_nystromformer)
    assert diff(a, b)["same_function"]
    edit(b, lambda stored: stored.pop("cls.predictions.bias"))
    assert different(diff(a, b)) == {"head bias": "only_a"}


# --- not the same ----------------------------------------------------------------------------------------


def one_bit(stored) -> None:
    flat = stored[UP].view(torch.int16)
    flat[-1, -1] ^= 1


def zero_sign(stored) -> None:
    stored[UP][0, 0] = -0.0


@pytest.mark.parametrize(
    ("change", "state", "detail"),
    [
        (one_bit, "near", {"rows_differing": 1, "max_ulp": 1}),
        (zero_sign, "near", {"sign_of_zero_only": True}),
        (lambda stored: stored.update({UP: stored[UP].float()}), "cast", {"exact": "B", "lossless": True}),
        (lambda stored: stored.update({UP: stored[UP] * 4}), "scaled", {"factor": 4.0}),
        (lambda stored: stored.update({UP: stored[UP].T.contiguous()}), "transposed", {}),
        (lambda stored: stored.update({UP: stored[UP][:40]}), "shape", {"a": [48, 32], "b": [40, 32]}),
        (lambda stored: stored.update({UP: torch.randn(48, 32).bfloat16()}), "distinct", {"rows_differing": 48}),
        (lambda stored: stored.pop(UP), "only_a", {"shape": [48, 32]}),
    ],
    ids=["one bit", "sign of zero", "cast", "scaled", "transposed", "shape", "distinct", "absent"],
)
def test_a_tensor_that_differs(pair, change, state: str, detail: dict[str, Any]) -> None:
    """The kind of the difference and its figures; every loader sees it."""
    a, b = pair("llama-tied")
    if change is zero_sign:
        edit(a, lambda stored: stored[UP].__setitem__((0, 0), 0.0))
    edit(b, change)
    document = diff(a, b)
    [entry] = document["tensors"]["different"]
    assert (entry["name"], entry["state"]) == (UP.removeprefix("model."), state)
    assert entry["loaders"] == ["transformers 5", "transformers 4"]
    assert detail.items() <= entry["detail"].items()
    assert document["tensors"]["equal"] == 20


def test_a_nan_is_equal_to_itself(pair) -> None:
    """By bytes; beside another value it is a difference."""
    a, b = pair("llama-tied")
    for folder in (a, b):
        edit(folder, lambda stored: stored[UP].__setitem__((0, 0), float("nan")))
    assert diff(a, b)["same_function"]
    edit(b, one_bit)
    assert diff(a, b)["tensors"]["different"][0]["detail"]["nan_rows"] == 0
    edit(b, lambda stored: stored[UP].__setitem__((0, 0), 1.0))
    assert diff(a, b)["tensors"]["different"][0]["detail"]["nan_rows"] == 1


def test_a_head_of_its_own(model) -> None:
    """C60: tied against diverged: transformers 5 sees the head, transformers 4 discards it."""
    document = diff(model("llama-tied"), model("llama-diverged"))
    [entry] = document["tensors"]["different"]
    assert (entry["name"], entry["a"], entry["b"], entry["loaders"]) == (H, E, H, ["transformers 5"])


def test_a_parameter_that_two_releases_read_differently_counts_once(model) -> None:
    """Of a changed embedding and a head of its own, transformers 4 takes one for the head and 5 the other."""
    a, b = model("llama-tied"), model("llama-diverged")
    edit(b, lambda stored: stored[E].__setitem__((0, 0), 1.0))
    document = diff(a, b)
    names = [entry["name"] for entry in document["tensors"]["different"]]
    assert sorted(names) == sorted(["embed_tokens.weight", H, H]) and document["tensors"]["equal"] == 19
    assert "2 parameters differing, first embed_tokens.weight" in document["reasons"][0], document["reasons"]


def test_the_same_values_in_another_dtype(model, tmp_path: Path) -> None:
    """The models differ, and the last line says that every parameter differs in its dtype alone. One bit ends that."""
    wide, narrow = model("llama-tied"), tmp_path / "narrow"
    shutil.copytree(wide, narrow)
    edit(wide, lambda stored: stored.update({name: value.float() for name, value in stored.items()}))
    assert diff(narrow, wide)["reasons"][0].endswith("embed_tokens.weight; each has the same values in another dtype")
    edit(wide, lambda stored: stored.update({name: value * 1.0001 for name, value in stored.items()}))
    assert diff(narrow, wide)["reasons"][0].endswith("embed_tokens.weight; each is equal after a cast")
    edit(narrow, one_bit)
    assert diff(narrow, wide)["reasons"][0].endswith("differing, first embed_tokens.weight")


def test_the_flag_of_a_diverged_head(model, tmp_path: Path) -> None:
    """The flag alone: alike in transformers 5, not in 4, so not the same by construction."""
    folder = model("llama-diverged")
    ok("untie", folder, "-o", tmp_path / "untied")
    document = diff(folder, tmp_path / "untied")
    assert [entry["loaders"] for entry in document["tensors"]["different"]] == [["transformers 4"]]
    assert document["config"][0]["judgement"] == "tensors"


def test_a_head_that_starts_random(model) -> None:
    """Untied without a head against tied: the parameter is nowhere in one of them."""
    document = diff(model("llama-tied"), model("llama-headless-config"))
    assert different(document) == {H: "only_a"}
    assert document["tensors"]["different"][0]["b"] is None


def test_a_naive_untie_of_t5(pair) -> None:
    """C11: the head cloned and the flag false: equal bytes, logits times four, in 5 unless another key says it too."""
    a, b = pair("t5")
    edit(b, lambda stored: stored.update({H: stored["shared.weight"].clone()}))
    configure(b, tie_word_embeddings=False)
    document = diff(a, b)
    assert different(document) == {H: "scaled"}
    assert document["tensors"]["different"][0]["loaders"] == ["transformers 4"]
    configure(a, scale_decoder_outputs=...)
    configure(b, scale_decoder_outputs=...)
    [entry] = diff(a, b)["tensors"]["different"]
    assert entry["loaders"] == ["transformers 5", "transformers 4"] and entry["detail"]["forward_factor"] == 0.25
    logits = [load("T5ForConditionalGeneration", folder).logits for folder in (a, b)]
    assert torch.allclose(logits[0] * 4, logits[1])


def test_a_value_of_one_config() -> None:
    """An absent value is not a null one."""
    differing = compare_configs({"a": 1, "b": None, "c": 1}, {"b": 2, "c": 1, "d": None})
    assert [(value.path, value.in_a, value.in_b) for value in differing] == [
        ("a", True, False), ("b", True, True), ("d", False, True)
    ]  # fmt: skip


def test_large_tensors_are_remembered_apart(pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer about one is not that about another."""
    monkeypatch.setattr("tieconv.comparison.pair._REMEMBERED", 0)
    a, b = pair("llama-tied")
    edit(b, lambda stored: stored.update({UP: stored[UP] * 4}))
    assert different(diff(a, b)) == {UP.removeprefix("model."): "scaled"}


def test_one_file_under_two_scales(pair) -> None:
    """Hard links are one file, whose bytes are not compared. The config of T5 scales the logits."""
    a, b = pair("t5")
    (b / "model.safetensors").unlink()
    (b / "model.safetensors").hardlink_to(a / "model.safetensors")
    configure(b, scale_decoder_outputs=False)
    document = diff(a, b)
    assert different(document) == {H: "scaled"} and document["tensors"]["bytes_compared"] == 0


def test_two_names_of_a_bias(pair) -> None:
    """C14: untied with the outer name alone, transformers 5 computes without a bias and transformers 4 with it."""
    a, b = pair("bert-mlm")
    matrix = tensors(a)["bert.embeddings.word_embeddings.weight"]
    for folder in (a, b):
        edit(folder, lambda stored: stored.update({"cls.predictions.decoder.weight": matrix.clone()}))
        configure(folder, tie_word_embeddings=False)
    edit(a, lambda stored: stored.update({"cls.predictions.decoder.bias": stored["cls.predictions.bias"].clone()}))
    document = diff(a, b)
    assert different(document) == {"head bias": "only_a"}
    assert document["tensors"]["different"][0]["loaders"] == ["transformers 5"]
    logits = [load("BertForMaskedLM", folder).logits for folder in (a, b)]
    assert not bits_equal(*logits)
    for folder in (a, b):
        edit(folder, lambda stored: [stored[name].zero_() for name in stored if name.endswith("predictions.bias")])
    edit(a, lambda stored: stored["cls.predictions.decoder.bias"].zero_())
    assert diff(a, b)["same_function"]


@pytest.mark.parametrize(
    "change", [{"hidden_act": "gelu"}, {"rms_norm_eps": 1e-5}, {"head_dim": ...}, {"quantization_config": {"bits": 4}}]
)
def test_a_config_value_that_computes(pair, change: dict[str, Any]) -> None:
    """Any key that is not known to be cosmetic may change what is computed, also one that is absent."""
    a, b = pair("llama-tied")
    configure(b, **change)
    document = diff(a, b)
    assert different(document) == {}
    [entry], [key] = document["config"], change
    assert entry["judgement"] == "function"
    assert ("a" in entry, "b" in entry) == (key in config(a), key in config(b))
    assert "may change what is computed" in document["reasons"][0]


def test_other_files_are_told_and_not_judged(pair) -> None:
    """A tokenizer that differs is another tokenizer, not another function of token ids."""
    a, b = pair("llama-tied")
    (a / "tokenizer.json").write_text("1")
    (b / "tokenizer.json").write_text("2")
    (a / "README.md").write_text("card")
    document = diff(a, b)
    assert document["same_function"]
    files = {entry["name"]: entry["state"] for entry in document["files"]}
    assert files == {"README.md": "only_a", "tokenizer.json": "distinct"} and not document["notes"]
    assert "README.md       only in A\n" in run("diff", a, b).stdout
    (a / "onnx").mkdir()
    (a / "onnx" / "model.onnx").write_bytes(b"a graph")
    (note,) = diff(a, b)["notes"]
    assert note == "these files may hold other models, which were not compared: onnx/model.onnx"


def test_files_that_change_the_function(pair) -> None:
    """An adapter beside the weights, which transformers adds, and code that the config runs."""
    a, b = pair("llama-tied")
    (b / "adapter_config.json").write_text("{}")
    (b / "adapter_model.safetensors").write_bytes(b"an adapter")
    (reason,) = diff(a, b)["reasons"]
    assert reason.startswith("adapter_config.json and adapter_model.safetensors, which transformers adds")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(b / name, a / name)
    (a / "modeling.py").write_text("1")
    (b / "modeling.py").write_text("2")
    assert diff(a, b)["same_function"]  # no config runs it
    for folder in (a, b):
        configure(folder, auto_map={"AutoModel": "modeling.Model"})
    document = diff(a, b)
    assert not document["same_function"] and document["reasons"] == [
        "modeling.py, the code that trust_remote_code runs"
    ]


def test_an_unknown_architecture_is_told(model) -> None:
    """Ties of a class that no table knows are seen through once they are named."""
    folders = [model("llama-tied"), model("llama-duplicated")]
    for folder in folders:
        configure(folder, architectures=["NovelForCausalLM"], model_type="novel")
    document = diff(*folders)
    assert not document["same_function"] and "give them with --embed and --head" in document["notes"][0]
    assert run(f"diff --embed {E} --head {H}", *folders).exit_code == 0


# --- everywhere ------------------------------------------------------------------------------------------


def test_one_parameter_under_two_names(model) -> None:
    """With and without the prefix, and other values: nobody knows which a loader takes, so the two differ."""
    b = model("llama-tied")
    a = Path(shutil.copytree(b, b.with_name("usual")))
    edit(b, lambda stored: stored.update({"norm.weight": stored["model.norm.weight"] + 1}))
    document = diff(a, b)
    assert not document["same_function"] and set(different(document)) == {"norm.weight", "model.norm.weight"}


def test_the_text_for_people(model) -> None:
    """One line a tensor, the verdict last."""
    result = run("diff", model("llama-tied"), model("llama-diverged"))
    assert "lm_head.weight  near: 3 of 192 rows differ" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("A and B differ: 1 parameter")
    same = ok("diff", model("llama-untied"), model("llama-untied-sharded"))
    assert same.stdout.splitlines()[-1] == "A and B compute the same function."


@pytest.mark.parametrize("which", [0, 1])
def test_what_cannot_be_read(model, tmp_path: Path, which: int) -> None:
    """Exit 2, either side."""
    paths = [model("llama-tied"), model("llama-untied")]
    (paths[which] / "model.safetensors").write_bytes(b"junk")
    assert run("diff", *paths).exit_code == 2
    paths[which] = tmp_path / "nowhere"
    assert run("diff", *paths).exit_code == 2


def test_the_most_tensors(model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 2 above the limit, which counts the storages of torch files too; the message counts what the model has."""
    folder = model("llama-tied")
    torch_model = folder.with_name("torch")
    ok("convert --to torch", folder, "-o", torch_model)
    names = len(tensors(folder))
    for path, most, has in ((folder, names - 1, ""), (torch_model, 2 * names - 1, f" and {names} storages")):
        monkeypatch.setattr("tieconv.api.evidence.MAX_COMPARED", most)
        error = refused("diff", path, path)
        assert error.endswith(f"has {names} tensors{has}, and diff compares models of at most {most}"), error
        monkeypatch.setattr("tieconv.api.evidence.MAX_COMPARED", most + 1)
        ok("diff", path, path)


def test_python_api(model) -> None:
    """`tieconv.diff` returns what the command prints."""
    comparison = tieconv.diff(model("llama-tied"), model("llama-duplicated"))
    assert comparison.same_function
    validate(json.loads(str(comparison)), "diff")


DECODER, ENCODER = "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight"
HEAD = "model.decoder.output_projection.weight"
TABLES = (DECODER, ENCODER, HEAD)
# fmt: off
SIZES = {"src_vocab_size": 40, "tgt_vocab_size": 40, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
         "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
# fmt: on
USED_4 = {True: {ENCODER}, False: {ENCODER, HEAD}}
"""Of three stored tables those that 4.57.6 and 4.48.3 use, by the flag; tests/families/older.json has the record."""


def fsmt(folder: Path, tied: bool) -> Path:
    """A model whose three tables are stored and equal, each a tensor of its own; token 5 is at 82 of each."""
    torch.manual_seed(0)
    config = transformers.FSMTConfig(langs=["a", "b"], **SIZES, tie_word_embeddings=tied)
    transformers.FSMTForConditionalGeneration(config).save_pretrained(folder)
    edit(folder, lambda values: values.update({name: values[DECODER].clone() for name in TABLES}))
    return folder


def nudged(source: Path, folder: Path, *names: str) -> Path:
    shutil.copytree(source, folder)
    edit(folder, lambda values: [values[name].view(-1)[82].add_(1) for name in names])
    return folder


def loaders(document: dict[str, Any]) -> set[str]:
    return {loader for entry in document["tensors"]["different"] for loader in entry["loaders"]}


def logits(folder: Path) -> torch.Tensor:
    ids = torch.arange(3, 11)[None]
    model = transformers.FSMTForConditionalGeneration.from_pretrained(folder).eval()
    with torch.no_grad():
        scores: torch.Tensor = model(input_ids=ids, decoder_input_ids=ids.flip(1)).logits
    return scores


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changed", [names for n in (1, 2) for names in itertools.combinations(TABLES, n)])
def test_each_table_of_fsmt(tmp_path: Path, changed: tuple[str, ...], tied: bool) -> None:
    """A table that a loader uses makes another model: transformers 5 keeps all three, 4 keeps what its record says."""
    a = fsmt(tmp_path / "a", tied)
    b = nudged(a, tmp_path / "b", *changed)
    assert diff(a, Path(shutil.copytree(a, tmp_path / "copy")))["same_function"]
    assert not torch.equal(logits(a), logits(b))
    assert loaders(diff(a, b)) == {"transformers 5"} | ({"transformers 4"} if USED_4[tied] & set(changed) else set())


@pytest.mark.parametrize("changed", TABLES)
def test_a_table_beside_one_that_differs_already(tmp_path: Path, changed: str) -> None:
    """The encoder's table is what a tied model takes in transformers 4: no other hides a change of it."""
    a = nudged(fsmt(tmp_path / "first", True), tmp_path / "a", ENCODER)
    document = diff(a, nudged(a, tmp_path / "b", changed))
    assert not document["same_function"]
    assert ("transformers 4" in loaders(document)) is (changed == ENCODER)


def test_what_transformers_5_saves_of_a_tied_fsmt(tmp_path: Path) -> None:
    """It keeps the decoder's table, and 4 looks for the encoder's: the two files are one model in 5 alone."""
    a = fsmt(tmp_path / "a", True)
    b = Path(shutil.copytree(a, tmp_path / "b"))
    edit(b, lambda values: [values.pop(name) for name in (ENCODER, HEAD)])
    assert torch.equal(logits(a), logits(b))
    assert "left without values" in " ".join(diff(a, b)["reasons"])
    c = Path(shutil.copytree(a, tmp_path / "c"))
    edit(c, lambda values: [values.pop(name) for name in (DECODER, HEAD)])
    assert torch.equal(logits(a), logits(c)) and diff(a, c)["same_function"]


def test_retying_fsmt_says_what_transformers_4_finds(tmp_path: Path) -> None:
    """The name that transformers 5 keeps is not the one that 4 looks for: the plan says so, and diff too."""
    a = fsmt(tmp_path / "a", True)
    output = " ".join(ok("retie", a, "-o", tmp_path / "out").stderr.split())
    assert f"transformers 4 reads the tied values only from {ENCODER}, which the plan leaves out" in output
    assert not diff(a, tmp_path / "out")["same_function"]
    assert "review first" not in run("untie", a).stdout


def test_a_head_that_transformers_4_alone_ties(tmp_path: Path) -> None:
    """Luke's head is its own in transformers 5; in 4 the flag decides, so a change of it is no formality."""
    zoo.build("LukeForMaskedLM", tie=False).save_pretrained(tmp_path / "a")
    configure(tmp_path / "a", tie_word_embeddings=True)
    output = " ".join(ok("set-tie false", tmp_path / "a", "-o", tmp_path / "b").stderr.split())
    assert "transformers 4 loads lm_head.decoder.weight with the values of luke." in output
    assert loaders(diff(tmp_path / "a", tmp_path / "b")) == {"transformers 4"}
    entries = tieconv.inspect(tmp_path / "a", consumers="transformers").consumers
    assert [str(entry.outcome) for entry in entries] == ["unknown", "unknown", "untied", "untied"]


@pytest.mark.parametrize("verb", ["untie", "set-tie false"])
def test_levels_that_the_versions_read_otherwise(tmp_path: Path, verb: str) -> None:
    """transformers 5 reads the top level, 4 the nested one: where that says tied, 4 begins to use the head."""
    zoo.build("Idefics3ForConditionalGeneration", tie=False).save_pretrained(tmp_path / "a")
    nested = config(tmp_path / "a")["text_config"] | {"tie_word_embeddings": True}
    configure(tmp_path / "a", tie_word_embeddings=False, text_config=nested)
    output = " ".join(ok(verb, tmp_path / "a", "-o", tmp_path / "b").stderr.split())
    assert "transformers 5 uses it. With the new config, transformers 4 uses it too" in output
    assert not diff(tmp_path / "a", tmp_path / "b")["same_function"]
    again = run(verb, tmp_path / "b")
    assert "nothing to change" in again.stdout and "uses it too" not in again.stdout + again.stderr


def test_a_name_that_one_version_does_not_know(pair) -> None:
    """A head beside names without the prefix: transformers 5 reads it, 4 refuses the file."""
    a, b = pair("gpt2-unprefixed")
    edit(b, lambda values: values.update({H: values["wte.weight"].clone()}))
    assert f"{H}, and none of its names starts with transformer." in " ".join(diff(a, b)["reasons"])


def test_two_files_that_one_version_refuses(tmp_path: Path) -> None:
    """transformers 4 makes no model of either and stops at other names: what transformers 5 reads decides."""
    a = tmp_path / "a"
    zoo.build("BertForMaskedLM", tie=True).save_pretrained(a)
    edit(a, lambda values: [values.update({name.removeprefix("bert."): values.pop(name)}) for name in [*values]])
    ok("untie", a, "-o", tmp_path / "b")
    assert diff(a, tmp_path / "b")["same_function"]
    changed = nudged(a, tmp_path / "c", "embeddings.word_embeddings.weight")
    assert loaders(diff(changed, tmp_path / "b")) == {"transformers 5"}
