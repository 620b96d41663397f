"""`--drop-other-formats`: a directory with two formats, of which one is changed and the other would go stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tieconv
from tests.cli.run import ok, refused, run
from tests.cli.stored import PLAN, plan, snapshot
from tests.reload.judge import differences, load
from tests.schemas import validate

OPTION = "--drop-other-formats"
SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
VERBS = [
    "untie",
    "retie",
    "bias zero",
    "bias strip",
    "set-tie true",
    "set-tie auto",
    "dedup",
    "convert --to safetensors",
]


def beside(folder: Path, *, sharded: bool = False) -> set[str]:
    """The same tensors as torch files in ``folder``, as many Hub repositories hold them; returns their names."""
    tensors = {name: value for file in sorted(folder.glob("*.safetensors")) for name, value in load_file(file).items()}
    if not sharded:
        torch.save(tensors, folder / SINGLE)
        return {SINGLE}
    names = sorted(tensors)
    homes = {name: f"pytorch_model-0000{1 + (index % 2)}-of-00002.bin" for index, name in enumerate(names)}
    for shard in set(homes.values()):
        torch.save({name: tensors[name] for name in names if homes[name] == shard}, folder / shard)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return {INDEX, *homes.values()}


@pytest.mark.parametrize("verb", [*VERBS, "bias unify", "bias resize"])
def test_every_verb_refuses_and_names_the_option(model, verb: str) -> None:
    """Without the option nothing is written, and the hint is the way out."""
    folder = model("llama-tied")
    beside(folder)
    before = snapshot(folder)
    result = run(f"{verb} --in-place", folder)
    assert result.exit_code == 2 and OPTION in result.stderr.splitlines()[-1]
    assert snapshot(folder) == before


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("sharded", [False, True])
def test_the_other_format_is_left_out(model, tmp_path: Path, verb: str, sharded: bool) -> None:
    """What is written is what the verb writes of the preferred format alone; the plan lists each file and its bytes."""
    folder = model("llama-tied-sharded" if sharded else "llama-tied")
    ok(f"{verb} -o", tmp_path / "alone", folder)
    others = beside(folder, sharded=sharded)
    (folder / "scheduler.pt").write_bytes(b"a trainer's")
    before = snapshot(folder)
    document = plan(f"{verb} {OPTION}", folder, "-o", tmp_path / "out")
    validate(document, PLAN)
    drops = {entry["name"]: entry["bytes"] for entry in document["operations"] if entry["op"] == "DropFile"}
    assert drops == {name: len(before[name]) for name in others}
    assert set(document["files_removed"]) >= others
    assert snapshot(folder) == before
    written = snapshot(tmp_path / "out")
    assert written.pop("scheduler.pt") == b"a trainer's"
    assert written == snapshot(tmp_path / "alone")
    assert "IDX009" not in {finding.rule for finding in tieconv.inspect(tmp_path / "out").findings}
    ok(f"{verb} {OPTION} --in-place", folder)
    assert snapshot(folder) == snapshot(tmp_path / "out")


def test_the_plan_says_what_goes(model) -> None:
    """The text lists every file with its size, once, and the closing line that nothing was written."""
    folder = model("llama-tied")
    beside(folder, sharded=True)
    text = ok(f"untie {OPTION}", folder).stdout
    for name in (INDEX, "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"):
        assert text.count(name) == 1
    assert "3 files of another format dropped" in text.splitlines()[0]
    assert (folder / INDEX).exists()


def test_transformers_reads_what_is_kept(model, tmp_path: Path) -> None:
    """The kept format is the one that transformers reads: the other, with other values, changes nothing."""
    folder = model("llama-tied")
    before = load("LlamaForCausalLM", folder)
    torch.save({name: value + 1 for name, value in load_file(folder / "model.safetensors").items()}, folder / SINGLE)
    assert differences(before, load("LlamaForCausalLM", folder), shares_head=True) == []
    ok(f"untie {OPTION} -o", tmp_path / "out", folder)
    assert differences(before, load("LlamaForCausalLM", tmp_path / "out"), shares_head=False) == []


def test_converted_to_the_other_format(model, tmp_path: Path) -> None:
    """The old file of that format goes, the new one takes its name and holds the values of the preferred format."""
    folder = model("llama-tied")
    safetensors = load_file(folder / "model.safetensors")
    torch.save({"stale": torch.zeros(1)}, folder / SINGLE)
    document = plan(f"convert --to torch {OPTION} --in-place", folder)
    assert [entry["name"] for entry in document["operations"] if entry["op"] == "DropFile"] == [SINGLE]
    assert not (folder / "model.safetensors").exists()
    converted = torch.load(folder / SINGLE, weights_only=True)
    assert converted.keys() == safetensors.keys() and all(
        torch.equal(converted[name], safetensors[name]) for name in safetensors
    )


def test_nothing_to_drop_is_no_error(model, tmp_path: Path) -> None:
    """A script may always give the option."""
    folder = model("llama-tied")
    ok(f"untie {OPTION} -o", tmp_path / "a", folder)
    ok("untie -o", tmp_path / "b", folder)
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


def test_a_changed_file_is_not_dropped(model, tmp_path: Path) -> None:
    """The other format changed after the plan was made: the plan is stale, and the file stays."""
    folder = model("llama-tied")
    beside(folder)
    planned = tieconv.plan_untie(folder, drop_other_formats=True)
    (folder / SINGLE).write_bytes(b"newer, and all that is left of a week")
    with pytest.raises(tieconv.TieconvError, match="changed after the plan was made"):
        planned.execute(in_place=True)
    assert (folder / SINGLE).read_bytes().startswith(b"newer")


def test_reindex_drops_them_too(model, tmp_path: Path) -> None:
    """An index of the preferred format; without the option the other comes along, for no tensor changes."""
    folder = model("llama-tied-sharded")
    others = beside(folder, sharded=True)
    (folder / "model.safetensors.index.json").unlink()
    ok("reindex -o", tmp_path / "both", folder)
    assert others <= set(snapshot(tmp_path / "both"))
    ok(f"reindex {OPTION} -o", tmp_path / "out", folder)
    assert not others & set(snapshot(tmp_path / "out"))
    assert tieconv.inspect(tmp_path / "out").checkpoint.cautions == ()


def test_shards_that_only_the_index_names(model, tmp_path: Path) -> None:
    """Odd names are found by the index; torch files that neither it nor a loader names come along."""
    folder = model("llama-tied")
    torch.save({}, folder / "odd.bin")
    torch.save({}, folder / "stray.bin")
    (folder / INDEX).write_text('{"weight_map": {"a": "odd.bin", "b": "config.json", "c": "gone.bin", "d": 3}}')
    document = plan(f"untie {OPTION}", folder, "-o", tmp_path / "out")
    drops = {entry["name"] for entry in document["operations"] if entry["op"] == "DropFile"}
    assert drops == {INDEX, "odd.bin"}
    assert (tmp_path / "out" / "stray.bin").exists() and (tmp_path / "out" / "config.json").exists()


def test_an_index_that_is_named(model, tmp_path: Path) -> None:
    """Naming the torch index reads torch, and what is written is a whole directory: safetensors would be preferred."""
    folder = model("llama-tied")
    others = beside(folder, sharded=True)
    sentence = refused("untie", folder / INDEX)
    assert "torch and as safetensors: transformers loads safetensors" in sentence
    ok(f"untie {OPTION} -o", tmp_path / "out", folder / INDEX)
    written = snapshot(tmp_path / "out")
    assert "model.safetensors" not in written and others <= set(written)
    assert tieconv.inspect(tmp_path / "out").checkpoint.format == "torch"


def test_gguf_files_go_and_torch_comes_before_them(model, tmp_path: Path) -> None:
    """Beside safetensors every GGUF goes; beside `pytorch_model.bin`, which transformers finds by itself, too."""
    folder = model("llama-tied")
    (folder / "model-q4.gguf").write_bytes(b"GGUF")
    (folder / "mmproj-f16.gguf").write_bytes(b"GGUF")
    ok(f"untie {OPTION} -o", tmp_path / "out", folder)
    assert not [name for name in snapshot(tmp_path / "out") if name.endswith(".gguf")]
    torch.save(load_file(folder / "model.safetensors"), folder / SINGLE)
    (folder / "model.safetensors").unlink()
    assert tieconv.inspect(folder).checkpoint.format == "torch"
    assert "as torch and as gguf: transformers loads torch" in refused("untie", folder)
    ok(f"untie {OPTION} -o", tmp_path / "torch", folder)
    assert "IDX009" not in {finding.rule for finding in tieconv.inspect(tmp_path / "torch").findings}
