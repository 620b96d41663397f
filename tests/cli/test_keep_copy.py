"""Copies that stay: marked by `untie --keep-flag`, and ties of which the canonical name is missing (C08, C12)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import safe_open
from safetensors.torch import save_model

import tieconv
from fixtures import zoo
from tests.cli.run import ok, run
from tests.cli.stored import config, edit, operations, plan, snapshot, tensors
from tests.reload.judge import differences, load
from tieconv.checkpoint import weight_file
from tieconv.loaders.registry import CONSUMERS

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def metadata(file: Path) -> dict[str, str]:
    with safe_open(file, "np") as opened:
        return opened.metadata()


def findings(model: Path, *options: str) -> list[tuple[str, str]]:
    document = json.loads(run("check --format json", model, *options).stdout)
    return [(finding["rule"], finding["level"]) for finding in document["models"][0]["findings"]]


@pytest.mark.parametrize("name", ["llama-tied", "llama-duplicated"])
def test_the_gate_passes_what_untie_keep_flag_writes(tmp_path: Path, name: str) -> None:
    """The copy is marked in the metadata, so TIE002 is a note without a command."""
    out = tmp_path / "out"
    ok("untie --keep-flag", MODELS / name, "-o", out)
    assert json.loads(metadata(out / "model.safetensors")["tieconv.keep"]) == ["lm_head.weight"]
    assert metadata(out / "model.safetensors")["format"] == "pt"
    result = ok("check", out)
    (finding,) = tieconv.inspect(out).findings
    assert (finding.rule, finding.level, finding.remedy) == ("TIE002", "note", None)
    assert finding.message in result.stdout and "is wanted" in finding.message
    assert "nothing to change" in ok("untie --keep-flag", out).stdout


@pytest.mark.parametrize("consumer", CONSUMERS, ids=lambda entry: f"{entry.name}-{entry.version}")
def test_no_loader_makes_it_a_warning(tmp_path: Path, consumer) -> None:
    """With every `--for` the marked copy is at most a note."""
    out = tmp_path / "out"
    ok("untie --keep-flag", MODELS / "llama-tied", "-o", out)
    reported = findings(out, "--for", f"{consumer.name} {consumer.version}")
    assert ("TIE002", "note") in reported and ("TIE002", "warning") not in reported


def test_a_sharded_model_gets_the_mark_in_the_new_shard(tmp_path: Path) -> None:
    """The shards that exist stay byte for byte."""
    model = Path(shutil.copytree(MODELS / "llama-tied", tmp_path / "model"))
    sharded, out = tmp_path / "sharded", tmp_path / "out"
    ok("convert --to safetensors --max-shard-size 30kB", model, "-o", sharded)
    ok("untie --keep-flag", sharded, "-o", out)
    assert json.loads(metadata(out / "model-head.safetensors")["tieconv.keep"]) == ["lm_head.weight"]
    for shard in sharded.glob("*.safetensors"):
        assert (out / shard.name).read_bytes() == shard.read_bytes()
    assert findings(out) == [("TIE002", "note")]
    tied = tmp_path / "tied"
    ok("retie", out, "-o", tied)
    assert not (tied / "model-head.safetensors").exists() and findings(tied) == []


def test_retie_removes_the_mark(tmp_path: Path) -> None:
    """No metadata names a tensor that is not stored."""
    out, tied = tmp_path / "out", tmp_path / "tied"
    ok("untie --keep-flag", MODELS / "llama-tied", "-o", out)
    plan = ok("retie", out, "-o", tied).stderr
    assert "tieconv.keep removed: the file no longer has the copy" in plan
    assert metadata(tied / "model.safetensors") == {"format": "pt"}
    assert findings(tied) == []


def test_a_mark_for_another_name_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the copy that the entry lists is wanted; a malformed entry lists nothing, and a deep one is not parsed."""
    monkeypatch.setattr(weight_file, "json", Mock(loads=shallow))
    model = Path(shutil.copytree(MODELS / "llama-duplicated", tmp_path / "model"))
    for entry in ('["model.norm.weight"]', "lm_head.weight", '{"lm_head.weight": 1}', "[" * 5000, "[1]"):
        rewrite(model / "model.safetensors", {"format": "pt", "tieconv.keep": entry})
        assert findings(model) == [("TIE002", "warning")], entry
    rewrite(model / "model.safetensors", {"format": "pt", "tieconv.keep": '["lm_head.weight"]'})
    assert findings(model) == [("TIE002", "note")]


def test_where_there_is_no_metadata_the_plan_prints_the_setting(tmp_path: Path) -> None:
    """A torch file cannot carry the mark: the plan gives the lines for tieconv.toml, and they work."""
    model, out = tmp_path / "model", tmp_path / "out"
    ok("convert --to torch", MODELS / "llama-tied", "-o", model)
    result = ok("untie --keep-flag", model, "-o", out)
    assert "tieconv.toml" in result.stderr
    assert findings(out) == [("TIE002", "warning")]
    note = " ".join(result.stderr.split())
    stanza = note[note.index("per-model =") : note.index("}]") + 2]
    settings = tmp_path / "tieconv.toml"
    settings.write_text(stanza.replace('"OUT"', '"out"'))
    ok("check", "--config", settings, out)


def shallow(text: str) -> object:
    """Parse JSON. Python for WebAssembly ends at a deep text, where others raise `RecursionError`."""
    assert not text.startswith("[[[")
    return json.loads(text)


def rewrite(file: Path, entries: dict[str, str]) -> None:
    """Replace the metadata of a safetensors file and leave its tensors as they are."""
    data = file.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size]) | {"__metadata__": entries}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])


E, H = "model.embed_tokens.weight", "lm_head.weight"


@pytest.mark.parametrize(
    ("name", "kind", "canonical", "restored"),
    [
        ("llama-tied", "LlamaForCausalLM", E, H),
        ("gpt2-unprefixed", "GPT2LMHeadModel", "wte.weight", H),
        ("bart", "BartForConditionalGeneration", "model.shared.weight", "model.decoder.embed_tokens.weight"),
        ("t5", "T5ForConditionalGeneration", "shared.weight", "decoder.embed_tokens.weight"),
        ("qwen2-vl", "Qwen2VLForConditionalGeneration", E, H),
    ],
)
def test_retie_gives_the_name_back(model, tmp_path: Path, name: str, kind: str, canonical: str, restored: str) -> None:
    """Whatever member of the group is stored, its bytes get the name that every loader finds."""
    folder = model(name)
    before, meant = snapshot(folder), load(kind, folder)
    edit(folder, lambda stored: stored.update({restored: stored.pop(canonical)}))
    document = plan("retie", folder, "-o", tmp_path / "out")
    assert operations(document) == {restored: "RenameTensor"}
    assert differences(meant, load(kind, tmp_path / "out"), shares_head=meant.shares_head) == []
    assert tensors(tmp_path / "out").keys() == (tensors(folder).keys() - {restored}) | {canonical}
    assert config(tmp_path / "out").items() <= dict(config(folder)).items()
    assert before.keys() == snapshot(tmp_path / "out").keys()


def test_what_safetensors_save_model_writes(tmp_path: Path) -> None:
    """It keeps the alphabetically first name and notes the other in the metadata: both are put right."""
    built = zoo.build("LlamaForCausalLM", tie=True)
    folder = tmp_path / "model"
    built.save_pretrained(folder)
    save_model(built, str(folder / "model.safetensors"), {"format": "pt"})
    assert E not in tensors(folder) and H in tensors(folder)
    document = plan("retie", folder, "-o", tmp_path / "out")
    assert sorted(operations(document).values()) == ["RenameTensor", "SetMetadata"]
    assert load("LlamaForCausalLM", tmp_path / "out").shares_head


def test_an_inverted_shard(model, tmp_path: Path) -> None:
    """In shards too, with the index."""
    ok("convert --to safetensors", model("llama-tied-sharded"), "-o", tmp_path / "one")
    edit(tmp_path / "one", lambda stored: stored.update({H: stored.pop(E)}))
    ok("convert --to safetensors --max-shard-size 15KB", tmp_path / "one", "-o", tmp_path / "shards")
    ok("retie --in-place", tmp_path / "shards")
    assert E in tensors(tmp_path / "shards") and H not in tensors(tmp_path / "shards")
    assert ok("diff", tmp_path / "shards", tmp_path / "llama-tied-sharded").exit_code == 0


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama-tied-sharded", "LlamaForCausalLM"), ("bart", "BartForConditionalGeneration"),
     ("bert-mlm", "BertForMaskedLM"), ("t5", "T5ForConditionalGeneration"),
     ("qwen2-vl", "Qwen2VLForConditionalGeneration")],
)  # fmt: skip
def test_keep_flag_is_tied_to_every_loader(model, tmp_path: Path, name: str, kind: str) -> None:
    """Copies for consumers that ask for the name (C07); transformers still ties; done twice nothing changes."""
    folder = model(name)
    ok("untie --keep-flag", folder, "-o", tmp_path / "out")
    before, after = load(kind, folder), load(kind, tmp_path / "out")
    assert differences(before, after, shares_head=before.shares_head) == []
    assert (tmp_path / "out" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    assert operations(plan("untie --keep-flag", tmp_path / "out")) == {}
    ok("retie", tmp_path / "out", "-o", tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(folder)


def test_copies_are_spelled_as_the_file_is(model, tmp_path: Path) -> None:
    """A file without the base model's prefix gets none: transformers 4 would miss every other tensor."""
    folder = model("bart")
    edit(
        folder, lambda stored: [stored.update({name.removeprefix("model."): stored.pop(name)}) for name in list(stored)]
    )
    meant = load("BartForConditionalGeneration", folder)
    ok("untie", folder, "-o", tmp_path / "out")
    assert tensors(tmp_path / "out").keys() - tensors(folder).keys() == {
        "encoder.embed_tokens.weight", "decoder.embed_tokens.weight", H,
    }  # fmt: skip
    assert differences(meant, load("BartForConditionalGeneration", tmp_path / "out"), shares_head=False) == []
