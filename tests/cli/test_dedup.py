"""`tieconv dedup`: what loaders restore goes; what they ask for stays and is told, as does a copy that is marked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import safe_open

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import config, configure, edit, editing, operations, plan, same, snapshot, tensors
from tests.lazy import load_file, torch
from tests.reload.judge import differences, load
from tieconv.checkpoint import weight_file
from tieconv.loaders.registry import CONSUMERS

E, H = "model.embed_tokens.weight", "lm_head.weight"
PROJECTIONS = ("model.layers.0.self_attn.k_proj.weight", "model.layers.0.self_attn.v_proj.weight")


def test_a_declared_copy_goes(model, tmp_path: Path) -> None:
    """The head of a tied model is restored by every loader: same logits, same sharing, config untouched."""
    folder = model("llama-duplicated")
    assert operations(plan("dedup", folder, "-o", tmp_path / "out")) == {H: "DropTensor"}
    assert (tmp_path / "out" / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    before, after = load("LlamaForCausalLM", folder), load("LlamaForCausalLM", tmp_path / "out")
    assert differences(before, after, shares_head=True) == []
    assert operations(plan("dedup", tmp_path / "out")) == {}


def test_every_name_of_a_group_goes(model, tmp_path: Path) -> None:
    """BART with four equal copies, and BERT with two biases, keep the canonical ones."""
    ok("untie --keep-flag", model("bart"), "-o", tmp_path / "bart4")
    ok("dedup", tmp_path / "bart4", "-o", tmp_path / "out")
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "bart")
    ok("untie --keep-flag", model("bert-mlm"), "-o", tmp_path / "bert2")
    ok("dedup --in-place", tmp_path / "bert2")
    assert snapshot(tmp_path / "bert2") == snapshot(tmp_path / "bert-mlm")


def test_what_is_declared_apart_stays(model) -> None:
    """With the flag false each loader asks for the head by name."""
    folder = model("llama-duplicated")
    configure(folder, tie_word_embeddings=False)
    document = plan("dedup", folder)
    assert operations(document) == {}
    assert document["notes"] == [f"kept: {H}, LlamaForCausalLM reads it as a separate tensor while the flag is false"]


def test_a_duplicate_that_is_no_tie_stays(model) -> None:
    """Equal tensors of other modules are found anywhere and named, never dropped (C44)."""
    folder = model("llama-tied")
    edit(folder, lambda stored: stored.update({PROJECTIONS[1]: stored[PROJECTIONS[0]].clone()}))
    document = plan("dedup", folder)
    assert operations(document) == {}
    [note] = document["notes"]
    assert note == f"kept: {PROJECTIONS[1]}, equal to {PROJECTIONS[0]}: loaders read each by its name"


def test_a_flag_that_transformers_4_reads_as_false(model) -> None:
    """Tied for transformers 5 alone: dropping the head would leave it random in 4."""
    folder = model("qwen2-vl")
    edit(folder, lambda stored: stored.update({H: stored[E].clone()}))
    values = config(folder)
    values["text_config"]["tie_word_embeddings"] = False
    configure(folder, **values)
    document = plan("dedup", folder)
    assert operations(document) == {}
    assert "transformers 4 reads the flag as false" in document["notes"][0]


def test_a_null_is_no_absence(model, tmp_path: Path) -> None:
    """transformers 4 takes a null as false, whatever the class's default: there the head is a tensor of its own."""
    ok("untie --keep-flag", model("gpt2-unprefixed"), "-o", tmp_path / "null")
    configure(tmp_path / "null", tie_word_embeddings=None)
    for line in ("dedup", "convert --to safetensors --max-shard-size 10KB"):
        assert "DropTensor" not in operations(plan(line, tmp_path / "null")).values()
    ok("set-tie true", tmp_path / "null", "-o", tmp_path / "kept")
    assert ok("diff", tmp_path / "null", tmp_path / "kept").exit_code == 0
    edit(tmp_path / "null", lambda stored: stored.pop(H))
    assert run("diff", tmp_path / "null", tmp_path / "kept").exit_code == 1


def test_t5_with_its_flag_false(model) -> None:
    """transformers 5 ties T5 whatever the flag says, transformers 4 does not."""
    folder = model("t5")
    edit(folder, lambda stored: stored.update({H: stored["shared.weight"].clone()}))
    assert operations(plan("dedup", folder)) == {H: "DropTensor"}
    configure(folder, tie_word_embeddings=False)
    assert operations(plan("dedup", folder)) == {}


def test_a_near_copy_stays(model) -> None:
    """One bit is enough."""
    folder = model("llama-diverged")
    assert operations(plan("dedup", folder)) == {}


def test_copies_that_hold_a_nan_are_one(model, tmp_path: Path) -> None:
    """Equal is equal in bytes."""
    folder = model("llama-duplicated")
    with editing(folder) as stored:
        stored[E][0, 0] = float("nan")
        stored[H] = stored[E].clone()
    assert operations(plan("dedup", folder, "-o", tmp_path / "out")) == {H: "DropTensor"}
    assert load("LlamaForCausalLM", tmp_path / "out").shares_head


def test_an_empty_placeholder_goes(model, tmp_path: Path) -> None:
    """C32: ZeRO leaves a tensor without elements in the place of a tied head."""
    folder = model("llama-tied")
    edit(folder, lambda stored: stored.update({H: torch.zeros(0, dtype=torch.bfloat16)}))
    document = plan("dedup", folder, "-o", tmp_path / "out")
    assert operations(document) == {H: "DropTensor"}
    assert load("LlamaForCausalLM", tmp_path / "out").shares_head
    configure(folder, tie_word_embeddings=False)
    document = plan("dedup", folder)
    assert operations(document) == {} and "which is empty" in document["notes"][0]


def test_an_inverted_tie_is_left_to_retie(model) -> None:
    """Without the canonical name the copies are all that transformers 4 has."""
    folder = model("bart")
    matrix = tensors(folder)["model.shared.weight"]
    with editing(folder) as stored:
        stored.pop("model.shared.weight")
        stored |= {H: matrix.clone(), "model.encoder.embed_tokens.weight": matrix.clone()}
    document = plan("dedup", folder)
    assert operations(document) == {}
    assert "tieconv retie" in document["notes"][0]


def test_an_unknown_architecture_keeps_everything(model) -> None:
    """A guess drops nothing; named pairs are no guess."""
    folder = model("llama-duplicated")
    configure(folder, architectures=["NovelForCausalLM"], model_type="novel")
    assert operations(plan("dedup", folder)) == {}
    assert operations(plan(f"dedup --embed {E} --head {H}", folder)) == {H: "DropTensor"}


def test_an_ambiguous_layout_is_refused(model) -> None:
    """As everywhere."""
    folder = model("llama-duplicated")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}')
    assert "the directory holds both" in refused("dedup", folder)


@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_python_api(model, tmp_path: Path, layout: str) -> None:
    """The same plan as a function, in both layouts."""
    name = "llama-tied" if layout == "single" else "llama-tied-sharded"
    ok("untie --keep-flag", model(name), "-o", tmp_path / "copies")
    assert tieconv.plan_dedup(tmp_path / "copies").execute(tmp_path / "out").verified
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / name)


# --- torch -----------------------------------------------------------------------------------------------


def saved(model, change) -> Path:
    """A tied Llama as torch saved it after ``change``."""
    folder = model("llama-tied")
    stored = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    change(stored)
    torch.save(stored, folder / "pytorch_model.bin")
    return folder


def storages(stored) -> dict[int, int]:
    """Bytes of each storage, by its address."""
    return {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in stored.values()}


def test_torch_stores_copies_once(model, tmp_path: Path) -> None:
    """Every name stays and one storage serves all: tied names, and copies that no loader would restore."""

    def copies(stored) -> None:
        stored[H] = stored[E].clone()
        stored[PROJECTIONS[1]] = stored[PROJECTIONS[0]].clone()

    folder = saved(model, copies)
    shared = {H: "ShareTensor", PROJECTIONS[1]: "ShareTensor"}
    assert operations(plan("dedup", folder, "-o", tmp_path / "out")) == shared
    before, after = (torch.load(path / "pytorch_model.bin") for path in (folder, tmp_path / "out"))
    assert same(before, after)
    assert after[H].data_ptr() == after[E].data_ptr()
    assert after[PROJECTIONS[0]].data_ptr() == after[PROJECTIONS[1]].data_ptr()
    assert (
        sum(storages(before).values()) - sum(storages(after).values()) == after[E].nbytes + after[PROJECTIONS[0]].nbytes
    )
    assert operations(plan("dedup", tmp_path / "out")) == {}


def test_torch_slack_is_freed(model, tmp_path: Path) -> None:
    """C28: a slice drags its whole storage along; the bytes that no tensor uses go, overlapping views stay views."""

    def slack(stored) -> None:
        big = torch.zeros(5000, 32, dtype=torch.bfloat16)
        big[3:51] = stored["model.layers.0.mlp.up_proj.weight"]
        stored["model.layers.0.mlp.up_proj.weight"] = big[3:51]
        second = torch.randn(100, 32).bfloat16()
        stored["model.layers.0.mlp.gate_proj.weight"] = second[40:88]
        stored["model.layers.1.mlp.gate_proj.weight"] = second[30:78]

    folder = saved(model, slack)
    document = plan("dedup", folder, "-o", tmp_path / "out")
    assert sorted(operations(document).values()) == ["TrimStorage", "TrimStorage"]
    before, after = (torch.load(path / "pytorch_model.bin") for path in (folder, tmp_path / "out"))
    assert same(before, after)
    assert sum(storages(before).values()) - sum(storages(after).values()) == (5000 - 48 + 100 - 58) * 64
    assert (
        differences(load("LlamaForCausalLM", folder), load("LlamaForCausalLM", tmp_path / "out"), shares_head=True)
        == []
    )


def test_torch_shards_cannot_share(model, tmp_path: Path) -> None:
    """Across files a copy goes where loaders restore it, else it stays and is told."""

    def copies(stored) -> None:
        stored[PROJECTIONS[1]] = stored[PROJECTIONS[0]].clone()
        stored[H] = stored[E].clone()

    folder = saved(model, copies)
    ok("convert --to torch --max-shard-size 1KB", folder, "-o", tmp_path / "shards")
    document = plan("dedup", tmp_path / "shards", "-o", tmp_path / "out")
    assert operations(document) == {H: "DropTensor"}
    assert PROJECTIONS[1] in document["notes"][0] and "two files" in document["notes"][0]


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


def test_a_copy_of_a_model_that_transformers_4_48_refuses(model, tmp_path: Path) -> None:
    """Qwen2-VL as its class names it in memory: 4.48 refuses the nested config, so it needs no copy of the head.

    The command of TIE002 for a distributed checkpoint then ends the finding.
    """
    import torch.distributed.checkpoint as dcp

    folder, state = model("qwen2-vl"), {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        part = name.removeprefix("model.")
        state[f"model.language_model.{part}" if part != name else f"model.{name}"] = tensor
    state[H] = state["model.language_model.embed_tokens.weight"].clone()
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    shutil.copy(folder / "config.json", tmp_path / "dcp")
    (finding,) = tieconv.inspect(tmp_path / "dcp").findings
    assert (
        finding.rule == "TIE002" and finding.remedy is not None and finding.remedy.command.startswith("tieconv convert")
    )
    ok("convert --to safetensors", tmp_path / "dcp", "-o", tmp_path / "out")
    assert tieconv.inspect(tmp_path / "out").findings == ()
