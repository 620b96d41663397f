"""`tieconv untie` and `tieconv retie` as a user meets them, also where the canonical name is missing (C08, C12)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tieconv
from fixtures import zoo
from tests.cli.run import ok, refused, run
from tests.cli.stored import all_tensors, config, configure, edit, flags, operations, plan, same, snapshot, tensors
from tests.lazy import load_file, save_model, torch, transformers
from tests.reload.judge import differences, load
from tests.schemas import validate
from tieconv.cli import write

E, H = "model.embed_tokens.weight", "lm_head.weight"


def test_typed_in_a_model_directory_it_prints_the_plan(model, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tieconv retie --bias zero` in a model directory prints the plan, writes nothing, exits 0."""
    folder = model("llama-duplicated")
    monkeypatch.chdir(folder)
    before = snapshot(folder)
    result = ok("retie --bias zero")
    assert "drop" in result.stdout
    assert "lm_head.bias" in result.stdout
    assert "ignores it" in result.stdout and "refuses it" in result.stdout
    assert "nothing was written" in result.stderr
    assert snapshot(folder) == before
    assert list(folder.parent.iterdir()) == [folder]


@pytest.mark.parametrize("verb", ["untie", "retie"])
def test_dry_run_writes_nothing_and_meets_refusals(model, tmp_path: Path, verb: str) -> None:
    """--dry-run beside -o prints the same plan, and refuses what the run would refuse."""
    folder, out = model("llama-tied"), tmp_path / "out"
    assert plan(f"{verb} --dry-run", folder, "-o", out)["executed"] is False and not out.exists()
    out.mkdir()
    assert "exists" in refused(f"{verb} --dry-run", folder, "-o", out)


def test_untie_writes_the_head_and_every_level(model, tmp_path: Path) -> None:
    """The head is a tensor of its own with the embedding's bytes; the flag is false at every level."""
    out = tmp_path / "out"
    document = plan("untie", model("qwen2-vl"), "-o", out)
    assert document["executed"] and document["verified"] and document["output"] == str(out)
    assert flags(out) == [False, False]
    assert tensors(out)[H].equal(tensors(out)[E])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["llama-tied", "llama-tied-sharded", "bert-mlm", "bart", "t5", "gemma", "qwen2-vl"])
@pytest.mark.parametrize("command", ["-o", "--in-place", "--hardlink"])
def test_there_and_back_is_the_first_model(model, tmp_path: Path, name: str, command: str) -> None:
    """Untie, then retie: the files are the first ones again, byte for byte, in each way of writing."""
    folder = model(name)
    before = snapshot(folder)
    if command == "--in-place":
        ok("untie --in-place", folder)
        assert snapshot(folder) != before
        ok("retie --in-place", folder)
    else:
        extra = ["--hardlink"] if command == "--hardlink" else []
        ok("untie", folder, "-o", tmp_path / "untied", *extra)
        ok("retie", tmp_path / "untied", "-o", tmp_path / "back", *extra)
        assert snapshot(tmp_path / "back") == before
    assert snapshot(folder) == before


@pytest.mark.parametrize("form", ["safetensors", "torch", "safetensors --max-shard-size 40KB"])
def test_a_head_beside_bare_names_brings_the_prefix(model, tmp_path: Path, form: str) -> None:
    """transformers 4 refuses a head in a file without the prefix: the base model's names get it, in any layout."""
    folder, out, back = tmp_path / "bare", tmp_path / "out", tmp_path / "back"
    ok(f"convert --to {form}", model("gpt2-unprefixed"), "-o", folder)
    result = ok("untie", folder, "-o", out)
    output = " ".join(result.stderr.split())
    assert "rename 28 tensors each name gets the prefix transformer., byte for byte" in output
    assert "keep 0" not in output
    note = "the names get the prefix transformer. because transformers 4 refuses a file with a head and names"
    assert f"note: {note}" in output
    ok("retie", out, "-o", back)
    first, untied, restored = (all_tensors(path) for path in (folder, out, back))
    assert same(restored, {f"transformer.{name}": tensor for name, tensor in first.items()})
    assert untied.keys() - restored.keys() == {H}
    assert torch.equal(untied[H], first["wte.weight"])
    assert tieconv.diff(folder, out).same_function and tieconv.diff(folder, back).same_function
    predictions = tieconv.inspect(out, consumers="transformers<5").consumers
    assert [str(prediction.outcome) for prediction in predictions] == ["untied", "untied"]


def test_a_sharded_untie_leaves_the_shards_alone(model, tmp_path: Path) -> None:
    """The new head goes to a shard of its own; the index names it and its totals are right."""
    folder, out = model("llama-tied-sharded"), tmp_path / "out"
    ok("untie", folder, "-o", out)
    for shard in folder.glob("*.safetensors"):
        assert (out / shard.name).read_bytes() == shard.read_bytes()
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"][H] == "model-head.safetensors"
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors(out).values())
    assert index["weight_map"].keys() == tensors(out).keys()


def test_a_sharded_retie_drops_an_empty_shard(model, tmp_path: Path) -> None:
    """A shard that held only the head goes with it."""
    ok("untie", model("llama-tied-sharded"), "-o", tmp_path / "untied")
    document = plan("retie", tmp_path / "untied", "-o", tmp_path / "tied")
    assert document["files_removed"] == ["model-head.safetensors"]
    assert not (tmp_path / "tied" / "model-head.safetensors").exists()


@pytest.mark.parametrize("side", ["embed", "head"])
@pytest.mark.parametrize("layout", ["single", "sharded"])
def test_force_keeps_the_survivor(model, tmp_path: Path, side: str, layout: str) -> None:
    """--from X --force keeps X's bytes under the canonical name and says what is lost."""
    folder, out = model("llama-diverged" if layout == "single" else "llama-untied-sharded"), tmp_path / "out"
    before = tensors(folder)
    result = ok(f"retie --from {side} --force", folder, "-o", out)
    assert "review first" in result.stderr
    assert H not in tensors(out) and tensors(out)[E].equal(before[{"embed": E, "head": H}[side]])
    assert flags(out) == [True]


@pytest.mark.parametrize(
    ("name", "verb", "rows"),
    [("llama-tied", "untie", 192), ("llama-duplicated", "retie", 192), ("t5", "untie", 160),
     ("llama-tied-sharded", "untie", 192)],
)  # fmt: skip
def test_zero_bias_for_a_class_without_one(model, tmp_path: Path, name: str, verb: str, rows: int) -> None:
    """An all-zero bias in the head's rows and dtype, with a warning; a second time changes nothing more."""
    out = tmp_path / "out"
    result = ok(f"{verb} --bias zero", model(name), "-o", out)
    assert "note:" in result.stderr
    stored = tensors(out)
    head = next(stored[name] for name in (H, E, "shared.weight") if name in stored)
    ((_, bias),) = ((name, tensor) for name, tensor in stored.items() if name.endswith("lm_head.bias"))
    assert "lm_head.bias" in stored
    assert tuple(bias.shape) == (rows,) and bias.dtype == head.dtype and not bias.any()
    again = plan(f"{verb} --bias zero", out)
    assert {operation["op"] for operation in again["operations"]} == {"KeepTensor"}


def test_what_the_bias_note_says_of_loaders_is_true(model, tmp_path: Path) -> None:
    """transformers loads a Llama with a head bias and reports it; safetensors refuses it unless told not to."""
    import safetensors.torch

    ok("untie --bias zero", model("llama-tied"), "-o", tmp_path / "out")
    loaded, info = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert set(info["unexpected_keys"]) == {"lm_head.bias"} and not info["missing_keys"]
    with pytest.raises(RuntimeError, match=r"lm_head\.bias"):
        safetensors.torch.load_model(loaded, tmp_path / "out" / "model.safetensors")
    _, unexpected = safetensors.torch.load_model(loaded, tmp_path / "out" / "model.safetensors", strict=False)
    assert unexpected == ["lm_head.bias"]


def test_an_existing_bias_stays(model, tmp_path: Path) -> None:
    """--bias zero leaves a trained bias as it is; under both names once untied."""
    ok("untie --bias zero", model("bert-mlm"), "-o", tmp_path / "out")
    stored = tensors(tmp_path / "out")
    assert stored["cls.predictions.bias"].any()
    assert stored["cls.predictions.decoder.bias"].equal(stored["cls.predictions.bias"])


def test_bart_bias_is_a_row(model, tmp_path: Path) -> None:
    """The bias of BART is a buffer of shape [1, V] and keeps that shape."""
    folder = model("bart")
    edit(folder, lambda stored: stored.pop("final_logits_bias"))
    ok("untie --bias zero", folder, "-o", tmp_path / "out")
    bias = tensors(tmp_path / "out")["final_logits_bias"]
    assert bias.shape == (1, 160) and not bias.any()


def test_each_drop_says_why(model, tmp_path: Path) -> None:
    """Shared storage, an equal copy, an empty tensor: the plan gives the reason that holds."""
    table = torch.arange(192 * 32).reshape(192, 32).to(torch.bfloat16)
    for head, reason in (
        (table, "it shares its storage with model.embed_tokens.weight"),
        (table.clone(), "equal to model.embed_tokens.weight, byte for byte"),
        (torch.zeros(0, dtype=torch.bfloat16), "it is empty"),
    ):
        folder = model("llama-tied")
        torch.save(tensors(folder) | {E: table, H: head}, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        assert reason in " ".join(ok("retie --dry-run", folder).stdout.split())
        shutil.rmtree(folder)


def test_a_scaling_that_is_not_exact_is_refused(model, tmp_path: Path) -> None:
    """T5 with a width whose root is no power of two cannot be untied; with --keep-flag it can."""
    folder = model("t5")
    configure(folder, d_model=24)
    assert "not a power of two" in refused("untie", folder, "-o", tmp_path / "out")
    ok("untie --keep-flag", folder, "-o", tmp_path / "out")


def test_an_unknown_architecture_needs_names(model, tmp_path: Path) -> None:
    """Without a table what ties is a guess: writing asks for --embed and --head, which the hint names."""
    folder = model("llama-duplicated")
    configure(folder, architectures=["NovelForCausalLM"], model_type="novel")
    result = run("retie", folder, "-o", tmp_path / "out")
    assert result.exit_code == 2 and f"--embed {E} --head {H}" in result.stderr.splitlines()[1]
    ok(f"retie --embed {E} --head {H}", folder, "-o", tmp_path / "out")
    assert H not in tensors(tmp_path / "out")


def test_a_lone_file_is_written_alone(model, tmp_path: Path) -> None:
    """A file in, a file out; where the config beside it must change too, the directory is asked for."""
    file, lone = model("llama-duplicated") / "model.safetensors", tmp_path / "alone" / "weights.safetensors"
    lone.parent.mkdir()
    shutil.copy(file, lone)
    result = ok(f"retie --embed {E} --head {H}", lone, "-o", tmp_path / "out.safetensors")
    assert "tie_word_embeddings true" in result.stderr
    assert H not in load_file(tmp_path / "out.safetensors")
    assert "must change too" in refused("untie", file, "-o", tmp_path / "x")


@pytest.mark.parametrize("verb", ["untie", "retie"])
def test_done_already_is_fine(model, tmp_path: Path, verb: str) -> None:
    """A model that already is as asked is copied as it is, and left alone in place."""
    folder = model("llama-untied" if verb == "untie" else "llama-tied")
    before = snapshot(folder)
    ok(verb, folder, "-o", tmp_path / "out")
    assert snapshot(tmp_path / "out") == before
    result = ok(f"{verb} --in-place", folder)
    assert "already" in result.stderr
    assert snapshot(folder) == before


def test_in_place_from_inside_says_to_enter_again(model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and config change in one exchange of directories; a shell that stands inside is told."""
    folder = model("llama-tied")
    monkeypatch.chdir(folder)
    assert "cd ." in ok("untie --in-place").stderr
    assert "lm_head.weight" in ok("inspect").stdout
    monkeypatch.chdir(folder.parent)
    assert "cd ." not in ok("retie --in-place", folder).stderr


def test_config_keeps_its_own_text(model, tmp_path: Path) -> None:
    """Only the flag's characters change in config.json."""
    folder = model("llama-tied")
    text = (folder / "config.json").read_text().replace("1e-06", "1.0E-6").replace("\n", "\r\n")
    (folder / "config.json").write_bytes(text.encode())
    ok("untie", folder, "-o", tmp_path / "out")
    expected = text.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    assert (tmp_path / "out" / "config.json").read_bytes() == expected.encode()


@pytest.mark.parametrize("line", ["untie --in-place -o OUT", "untie --overwrite", "retie --force", "retie --from head"])
def test_options_that_do_not_go_together(model, line: str) -> None:
    """-o and --in-place, or --overwrite, --force and --from alone, are usage errors."""
    assert run(line, model("llama-tied" if line.startswith("untie") else "llama-diverged")).exit_code == 2


def test_python_api_prints_the_same_json(model, tmp_path: Path) -> None:
    """A plan prints as the command shows it, and `execute` returns an outcome that prints as the command's JSON."""
    folder = model("llama-duplicated")
    planned = tieconv.plan_retie(folder)
    assert f"{planned}\n" == ok("retie", folder).stdout
    assert json.loads(planned.to_json())["executed"] is False
    outcome = planned.execute(tmp_path / "out")
    validate(json.loads(str(outcome)), "plan")
    assert outcome.verified


def test_two_vocabularies_are_not_copied(tmp_path: Path) -> None:
    """FSMT: transformers 5 ties the encoder to the decoder's table whatever its rows, and loads no such table."""
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
             "encoder_attention_heads": 2, "decoder_attention_heads": 2, "tie_word_embeddings": True}  # fmt: skip
    for rows in (64, 80):
        settings = transformers.FSMTConfig(langs=["en", "de"], src_vocab_size=rows, tgt_vocab_size=64, **sizes)
        folder = tmp_path / str(rows)
        transformers.FSMTForConditionalGeneration(settings).save_pretrained(folder)
    sentence = refused("untie", folder)
    assert "the config's src_vocab_size gives" in sentence and "80 rows" in sentence
    ok("untie", tmp_path / "64", "-o", tmp_path / "out")


@pytest.mark.parametrize("level", ["decoder", "text_config"])
def test_a_flag_at_a_level_that_nobody_reads(model, tmp_path: Path, level: str) -> None:
    """T5's factor goes by the flag at the top: a stray false below it does not keep the head from taking it up."""
    folder = model("t5")
    ok("untie", folder, "-o", tmp_path / "plain")
    configure(folder, **{level: {"tie_word_embeddings": False}})
    ok("untie", folder, "-o", tmp_path / "stray")
    plain, stray = (tensors(tmp_path / name)[H] for name in ("plain", "stray"))
    assert torch.equal(plain, stray)


def test_notes_of_many_copies_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of 200,000 equal tensors has as many notes, before the write and after it."""

    class Note(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, note: object) -> bool:
            Note.compared += 1
            return str.__eq__(self, str(note))

    lines: list[str] = []
    monkeypatch.setattr("tieconv.cli.screen.say", lines.append)
    known = tuple(Note(f"{number}") for number in range(500))
    write.say_notes(known, tuple(Note(f"{number}") for number in range(501)))
    assert lines == ["note: 500"] and Note.compared < 2000


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
    edit(folder, lambda stored: [stored.update({name.removeprefix("model."): stored.pop(name)}) for name in [*stored]])
    meant = load("BartForConditionalGeneration", folder)
    ok("untie", folder, "-o", tmp_path / "out")
    added = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", H}
    assert tensors(tmp_path / "out").keys() - tensors(folder).keys() == added
    assert differences(meant, load("BartForConditionalGeneration", tmp_path / "out"), shares_head=False) == []


FIRST = ("untie", "untie --bias zero", "set-tie auto", "dedup", "convert --to torch", "reindex")
LATER = ("untie", "untie --keep-flag", "retie", "set-tie false", "bias zero", "dedup", "convert --to torch", "reindex")


def states(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """Of every file the bytes, the time of the last change in nanoseconds and the mode."""
    by_path = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {str(path.relative_to(folder)): (path.read_bytes(), s.st_mtime_ns, s.st_mode) for path, s in by_path.items()}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ["llama-tied", "llama-tied-sharded", "qwen2-vl", "bart"])
@pytest.mark.parametrize("first", FIRST)
def test_nothing_is_written_through_a_link(model, tmp_path: Path, name: str, first: str) -> None:
    """Whatever verb wrote the links and whatever verb changes the output in place: the source stays as it was."""
    source, out = model(name), tmp_path / "out"
    before = states(source)
    if run(first, source, "-o", out, "--hardlink").exit_code != 0:
        assert not out.exists() and states(source) == before
        return
    linked = [path for path in out.rglob("*") if path.is_file() and path.stat().st_nlink > 1]
    assert linked or first == "reindex"
    for later in LATER:
        run(later, out, "--in-place")
        assert states(source) == before, later


def test_the_source_may_change_too(model, tmp_path: Path) -> None:
    """Written in place afterwards, the source leaves the linked output as it was."""
    source, out = model("llama-tied-sharded"), tmp_path / "out"
    ok("untie", source, "-o", out, "--hardlink")
    before = states(out)
    ok("untie --bias zero --in-place", source)
    ok("convert --to torch --in-place", source)
    assert states(out) == before
