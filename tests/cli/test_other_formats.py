"""Formats of a directory: `reindex --add-format` names one, and `--drop-other-formats` leaves out the other."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import tieconv
from tests.checks.fixtures import FIXTURES
from tests.checks.fixtures.model import EMBED, HEAD, LLAMA, flagged, llama, matrix, save, weights
from tests.cli.run import ok, refused, run
from tests.cli.stored import edit, operations, plan, same, snapshot, tensors
from tests.lazy import load_file, torch
from tests.patience import examples
from tests.reload.judge import differences, load
from tieconv.text import shown

OPTION = "--drop-other-formats"
SINGLE = "pytorch_model.bin"
INDEX = "pytorch_model.bin.index.json"
VERBS = [
    "untie", "retie", "bias zero", "bias strip", "set-tie true", "set-tie auto", "dedup", "convert --to safetensors",
]  # fmt: skip


def beside(folder: Path, *, sharded: bool = False) -> set[str]:
    """The same tensors as torch files in ``folder``, as many Hub repositories hold them; returns their names."""
    stored = tensors(folder)
    if not sharded:
        torch.save(stored, folder / SINGLE)
        return {SINGLE}
    homes = {name: f"pytorch_model-0000{1 + (index % 2)}-of-00002.bin" for index, name in enumerate(sorted(stored))}
    for shard in set(homes.values()):
        torch.save({name: value for name, value in stored.items() if homes[name] == shard}, folder / shard)
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
    assert same(torch.load(folder / SINGLE, weights_only=True), safetensors)


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


FILE = "model.safetensors"
INDEX_NAME = f"{FILE}.index.json"


def header(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and all bytes behind it."""
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def stamped(folder: Path, name: str, metadata: dict[str, str] | None) -> bytes:
    """Give a file other metadata; returns what it then holds."""
    value, data = header((folder / name).read_bytes())
    value.pop("__metadata__", None)
    text = json.dumps(value if metadata is None else {"__metadata__": metadata, **value}).encode()
    text += b" " * (-len(text) % 8)
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text + data)
    return (folder / name).read_bytes()


def only_the_format_differs(before: bytes, after: bytes) -> bool:
    """The entries in their order, the metadata but for its format, and every byte of data; these start on a multiple
    of eight."""
    (old, data), (new, written) = header(before), header(after)
    wanted = {**(old.pop("__metadata__", None) or {}), "format": "pt"}
    return (
        new.pop("__metadata__") == wanted
        and list(new.items()) == list(old.items())
        and written == data
        and (len(after) - len(written)) % 8 == 0
    )


@pytest.mark.parametrize("metadata", [{}, {"note": "x"}, {"format": ""}, {"note": "x", "format": ""}])
def test_one_file(metadata: dict[str, str], model, tmp_path: Path) -> None:
    """The finding names the command, and after it the finding is gone; the other files are those of the source."""
    folder = model("llama-tied")
    before = stamped(folder, FILE, metadata)
    (finding,) = tieconv.inspect(folder).findings
    assert (finding.rule, finding.remedy.command) == ("IDX012", f"tieconv reindex {folder} --add-format -o OUT")
    document = plan("reindex --add-format", folder, "-o", tmp_path / "out")
    assert operations(document) == {FILE: "SetMetadata"} and document["summary"] == "format pt added to 1 file"
    before_files, after_files = snapshot(folder), snapshot(tmp_path / "out")
    assert before_files.pop(FILE) == before and only_the_format_differs(before, after_files.pop(FILE))
    assert before_files == after_files and tieconv.inspect(tmp_path / "out").findings == ()
    assert ok("diff", folder, tmp_path / "out").exit_code == 0


def test_only_the_shards_that_lack_it(model, tmp_path: Path) -> None:
    """A shard that names a format stays the file that it is, and so does a right index; a wrong one is mended too."""
    folder = model("llama-tied-sharded")
    first, second, third = sorted(path.name for path in folder.glob("*.safetensors"))
    before = stamped(folder, first, {"note": "x"})
    stamped(folder, second, {"format": "mlx"})
    plain = stamped(folder, third, None)
    command = f"tieconv reindex {folder} --add-format -o OUT"
    assert {finding.remedy.command for finding in tieconv.inspect(folder).findings} == {command}
    ok("reindex --add-format", folder, "-o", tmp_path / "out")
    before_files, after_files = snapshot(folder), snapshot(tmp_path / "out")
    assert only_the_format_differs(before, after_files.pop(first))
    assert only_the_format_differs(plain, after_files.pop(third))
    assert {name: data for name, data in before_files.items() if name not in (first, third)} == after_files
    (folder / INDEX_NAME).unlink()
    document = plan("reindex --add-format", folder, "-o", tmp_path / "both")
    assert document["summary"].endswith("; format pt added to 2 files")
    written = snapshot(tmp_path / "both")
    assert json.loads(written[INDEX_NAME])["weight_map"] == json.loads(before_files[INDEX_NAME])["weight_map"]


def test_a_lone_file_and_in_place(model, tmp_path: Path) -> None:
    """A file is written alone; in place the model is replaced, and a second run has nothing to do."""
    folder = model("llama-tied")
    before = stamped(folder, FILE, {})
    ok("reindex --add-format", folder / FILE, "-o", tmp_path / "out.safetensors")
    assert only_the_format_differs(before, (tmp_path / "out.safetensors").read_bytes())
    ok("reindex --add-format --in-place", folder)
    assert (folder / FILE).read_bytes() == (tmp_path / "out.safetensors").read_bytes()
    assert "nothing to change" in plan("reindex --add-format --in-place", folder)["summary"]


KEYS, KINDS = st.just("format") | st.text(max_size=6), st.sampled_from(("pt", "tf", "flax", "mlx", "np", ""))
METADATA = st.none() | st.dictionaries(KEYS, KINDS | st.text(max_size=9), max_size=3)


@given(metadata=METADATA, rows=st.integers(0, 9), columns=st.integers(0, 3))
@settings(deadline=None, max_examples=examples(60))
def test_any_metadata(metadata: dict[str, str] | None, rows: int, columns: int) -> None:
    """Whatever is noted there and whatever the tensors are: bytes, order and notes stay; a format that is known too."""
    tensors = {"b": matrix(rows, columns), "a": matrix(3, 1).astype("<f2"), "c": matrix(columns, 2, seed=1)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, FILE)
        path.write_bytes(before := weights(tensors, metadata))
        tieconv.plan_reindex(path, add_format=True).execute(in_place=True)
        after = path.read_bytes()
    named = (metadata or {}).get("format") in ("pt", "tf", "flax", "mlx")
    assert after == before if named else only_the_format_differs(before, after)


@pytest.mark.parametrize("named", ["np", "PT", "torch", "pt\n"])
def test_a_format_that_no_loader_takes(named: str, model, tmp_path: Path) -> None:
    """transformers 4 refuses it as it does none: the gate says so, and what it says of the tensors is not for `--fix`
    to change."""
    folder = model("llama-tied")
    before = stamped(folder, FILE, {"note": "x", "format": named})
    result = run("check --fix --in-place", folder)
    assert result.exit_code == 1 and (folder / FILE).read_bytes() == before
    assert f"has the format {shown(named)}. transformers 4 refuses the file." in " ".join(result.stdout.split())
    ok("reindex --add-format", folder, "-o", tmp_path / "out")
    assert only_the_format_differs(before, (tmp_path / "out" / FILE).read_bytes())
    assert ok("check --for transformers", tmp_path / "out").exit_code == 0


def test_check_fixes_it(model, tmp_path: Path) -> None:
    """A warning that `check --fix` ends, with no loader named."""
    folder = model("llama-tied")
    stamped(folder, FILE, {"note": "x"})
    assert "IDX012" in run("check", folder).stdout
    assert ok("check --fix -o", tmp_path / "out", folder).exit_code == 0
    assert ok("check --for transformers", tmp_path / "out").exit_code == 0


def test_what_save_model_of_safetensors_writes(model, tmp_path: Path) -> None:
    """It drops the embedding's name and notes that, without a format: two commands, each told of the user's model."""
    folder = model("llama-tied")
    edit(folder, lambda tensors: tensors.update({HEAD: tensors.pop(EMBED)}))
    stamped(folder, FILE, {EMBED: HEAD})
    fixed = [line for line in ok("check --fix -o", tmp_path / "out", folder).stderr.splitlines() if "fixed: " in line]
    commands = (f"tieconv retie {folder}", f"tieconv reindex {folder} --add-format")
    assert [line.endswith(command) for line, command in zip(fixed, commands, strict=True)] == [True, True]
    assert tieconv.inspect(tmp_path / "out").findings == ()


def test_a_tensor_in_two_shards_with_the_same_bytes(tmp_path: Path) -> None:
    """No loader gets other values, whichever of the two copies it takes."""
    ok("reindex --add-format", FIXTURES["IDX003 bad"](tmp_path / "model"), "-o", tmp_path / "out")
    assert (tmp_path / "out").is_dir()


def test_beside_another_format(tmp_path: Path) -> None:
    """The command says that the other format is left out, which is not for `--fix` to decide."""
    folder = save(tmp_path / "model", flagged(LLAMA, True), llama())
    stamped(folder, FILE, {})
    ok("convert --to torch", folder, "-o", tmp_path / "torch")
    (tmp_path / "torch" / "pytorch_model.bin").rename(folder / "pytorch_model.bin")
    (finding,) = [entry for entry in tieconv.inspect(folder).findings if entry.rule == "IDX012"]
    assert finding.remedy is not None and not finding.remedy.safe
    assert "--add-format --drop-other-formats" in finding.remedy.command


def test_torch_files_name_no_format(model, tmp_path: Path) -> None:
    """What the option is about is not there: refused, in one file and in shards, with the command without it."""
    folder = model("llama-tied")
    ok("convert --to torch", folder, "-o", tmp_path / "one")
    ok("convert --to torch --max-shard-size 3KB", folder, "-o", tmp_path / "shards")
    for out in ("one", "shards"):
        assert 'only safetensors has a "format" entry' in refused("reindex --add-format", tmp_path / out)


def test_without_the_option_one_file_has_no_index(model) -> None:
    """As before: there is nothing to index."""
    assert "is a single file and needs no index" in refused("reindex", model("llama-tied"))
