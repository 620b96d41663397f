"""What the commands do with public shapes: adapters stay adapters, clones say what is missing, models are taken out."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tieconv as api
from fixtures.public import PUBLIC, directories, layouts
from tests.lazy import load_file, save_file, torch
from tests.onnx.graphs import write_graph
from tieconv.architectures import guess as pattern
from tieconv.cli import main

VERBS = (
    ("inspect",),
    ("check", "--no-config"),
    ("untie",),
    ("retie",),
    ("dedup",),
    ("set-tie", "auto"),
    ("bias", "zero"),
    ("convert", "--to", "torch"),
    ("convert", "--to", "safetensors"),
    ("analyze",),
)
WRITING = [verb for verb in VERBS if verb[0] not in ("inspect", "check", "analyze")]


def run(verb: tuple[str, ...], model: Path, *options: str) -> Result:
    """The command with MODEL in the place where it is expected."""
    first = 2 if verb[0] in ("set-tie", "bias") else 1
    return CliRunner().invoke(main, [*verb[:first], str(model), *verb[first:], *options])


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def made(name: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return PUBLIC[name].build(folder)


# --- adapters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in PUBLIC if name.startswith("lora-")])
def test_an_adapter_stays_an_adapter(name: str, tmp_path: Path) -> None:
    """What a trainer leaves beside it changes nothing: no finding, and no verb writes a byte."""
    folder = made(name, tmp_path / "adapter")
    before = content(folder)
    evidence = api.inspect(folder)
    assert evidence.checkpoint.format == "peft" and not evidence.findings
    assert run(("check", "--no-config"), folder).exit_code == 0
    for verb in WRITING:
        result = run(verb, folder, "--in-place")
        assert result.exit_code == 2 and "which tieconv reads but never writes" in result.output
    assert content(folder) == before


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth"])
def test_a_state_of_a_trainer_is_never_a_model(name: str, tmp_path: Path) -> None:
    """Neither by its own name nor as the only file of a directory."""
    path = directories.adapter(tmp_path) / name
    (tmp_path / "alone").mkdir()
    shutil.copy(path, tmp_path / "alone")
    for model in (path, tmp_path / "alone"):
        result = run(("inspect",), model)
        assert result.exit_code == 2
        assert f"{name} is a trainer's state, not a model" in result.output


@pytest.mark.parametrize(
    ("names", "subject"),
    [
        (["optimizer.pt"], "optimizer.pt is"),
        (["optimizer.pt", "scheduler.pt"], "optimizer.pt and 1 more file are"),
        (["optimizer.pt", "scaler.pt", "scheduler.pt"], "optimizer.pt and 2 more files are"),
    ],
)
def test_states_of_a_trainer_are_counted(names: list[str], subject: str, tmp_path: Path) -> None:
    """A directory that holds nothing else."""
    for name in names:
        (tmp_path / name).write_bytes(b"")
    result = run(("inspect",), tmp_path)
    assert result.exit_code == 2
    assert f"error: {subject} a trainer's state, not a model\n" in result.output


def test_a_model_with_an_adapter_beside_it_is_a_model(tmp_path: Path) -> None:
    """The other way round: what transformers looks for by name goes first."""
    shutil.copytree(Path(directories.__file__).parents[1] / "models" / "llama-tied", tmp_path / "m")
    directories.adapter(tmp_path / "m")
    assert api.inspect(tmp_path / "m").checkpoint.format == "safetensors"


# --- clones ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pointer", "link"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_every_command_says_what_git_left(kind: str, name: str, tmp_path: Path) -> None:
    """One sentence with the file, and the command that mends it; nothing is written."""
    folder = made(f"git-{kind}-{name}", tmp_path / "clone")
    before = content(folder)
    sentence = {"pointer": f"{name} is a Git LFS pointer", "link": f"{name} holds only the path ../base/{name}"}[kind]
    hint = {"pointer": "git lfs pull", "link": f"git checkout -- {name}"}[kind]
    for verb in VERBS:
        result = run(verb, folder)
        assert result.exit_code == 2, (verb, result.output)
        assert sentence in result.output and hint in result.output, (verb, result.output)
    assert content(folder) == before


def test_an_external_file_of_a_graph_can_be_a_pointer(tmp_path: Path) -> None:
    """The graph itself is whole: Git LFS kept the data beside it."""
    path = write_graph(tmp_path / "model.onnx", {"w": torch.ones(64, 32)}, external=True)
    (data,) = (file for file in tmp_path.iterdir() if file != path)
    data.write_text(directories.POINTER)
    result = run(("inspect",), path)
    assert result.exit_code == 2 and f"{data.name} is a Git LFS pointer" in result.output


def test_a_pointer_beside_the_model_is_no_matter(tmp_path: Path) -> None:
    """`git lfs pull --include "*.safetensors"` leaves the other formats as pointers."""
    folder = directories.clone(tmp_path / "m", "tf_model.h5", directories.POINTER)
    assert run(("inspect",), folder).exit_code == 0
    (folder / "pytorch_model.bin").write_text(directories.POINTER)
    assert run(("inspect",), folder).exit_code == 0


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_hint_for_a_link_gives_the_link_back(tmp_path: Path) -> None:
    """The printed command, run in a repository that was checked out without symlinks."""
    (tmp_path / "base").mkdir()
    shutil.copytree(Path(directories.__file__).parents[1] / "models" / "llama-tied", tmp_path / "m")
    (tmp_path / "m" / "config.json").rename(tmp_path / "m" / "base.json")
    (tmp_path / "m" / "config.json").symlink_to("base.json")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "model"], ["config", "core.symlinks", "false"]):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (tmp_path / "m" / "config.json").unlink()
    subprocess.run([*git, "checkout", "--", "m/config.json"], check=True, capture_output=True)
    assert not (tmp_path / "m" / "config.json").is_symlink()
    result = run(("inspect",), tmp_path / "m")
    hint = result.output.partition("in the model's directory: ")[2].strip()
    assert hint.startswith("git config core.symlinks true")
    subprocess.run(hint, shell=True, cwd=tmp_path / "m", check=True, capture_output=True)
    assert (tmp_path / "m" / "config.json").is_symlink()
    assert run(("inspect",), tmp_path / "m").exit_code == 0


def test_a_short_file_that_is_no_path_is_read(tmp_path: Path) -> None:
    """JSON that is no object keeps its own message."""
    for text in ("null", "1.5", '"a/b.json"', "{}"):
        folder = directories.clone(tmp_path / str(len(text)), "config.json", text)
        assert "Git wrote" not in run(("inspect",), folder).output


# --- training checkpoints --------------------------------------------------------------------------------

TRAINED = [layout for layout in layouts.LAYOUTS if "key" in layout and "refused" not in layout]


@pytest.mark.parametrize("layout", TRAINED, ids=lambda layout: str(layout["name"]))
def test_the_model_is_taken_out_of_a_training_checkpoint(layout: dict[str, object], tmp_path: Path) -> None:
    """Every tensor of the model, and no other, byte for byte; the plan says what is left out; the source stays."""
    source = layouts.build(layout, tmp_path)
    before = source.read_bytes()
    out = tmp_path / "out.safetensors"
    result = run(("convert", "--to", "safetensors"), source, "-o", str(out))
    assert result.exit_code == 0, result.output
    assert "convert writes only the model, not the training state" in result.output
    wanted = dict(api.inspect(source).checkpoint.tensors)
    written = load_file(out)
    assert written.keys() == wanted.keys() >= set(layout["tensors"])  # type: ignore[attr-defined]
    stored = torch.load(source, weights_only=False)[layout["key"]]
    for name, tensor in written.items():
        if name in stored:
            assert torch.equal(tensor, stored[name])
    assert source.read_bytes() == before
    assert api.inspect(out).head.output_head == api.inspect(source).head.output_head
    for verb in (("convert", "--to", "safetensors"), ("dedup",)):
        refused = run(verb, source, "--in-place")
        assert refused.exit_code == 2 and source.read_bytes() == before


def test_two_models_in_one_file_are_not_chosen_between(tmp_path: Path) -> None:
    """An average beside the model may be what was meant: nothing is written, and the hint loads on any machine."""
    result = run(
        ("convert", "--to", "safetensors"), made("checkpoint-with-average", tmp_path), "-o", str(tmp_path / "o")
    )
    assert result.exit_code == 2
    assert 'torch.save(torch.load(FILE, map_location="cpu")[KEY], OUT)' in result.output
    assert not (tmp_path / "o").exists()


def test_one_slice_is_no_model_and_one_file_is(tmp_path: Path) -> None:
    """Named or not, a slice of several is refused; a single consolidated file is read."""
    folder = directories.slices(tmp_path)
    for model in (folder, folder / "consolidated.01.pth"):
        assert "slices of one model-parallel model" in run(("inspect",), model).output
    (folder / "consolidated.01.pth").unlink()
    assert run(("inspect",), folder).exit_code == 0


# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["blocks.0.att.output.weight", "output.weight", "head.weight", "lm_head.weight"])
def test_a_head_has_the_sides_of_the_vocabulary(name: str) -> None:
    """A square matrix of the model's width is no head, whatever its name; one with the vocabulary's columns is."""
    assert pattern.guess({"emb.weight": (96, 32), name: (32, 32)}) == ("emb.weight", None)
    assert pattern.guess({"emb.weight": (96, 32), name: (32, 96)})[1] == name
    assert pattern.guess({name: (32, 32)}, 96) == (None, None)


def test_shared_storage_names_a_head_that_no_table_knows() -> None:
    """The partner of the embedding, where its own name says nothing; a second input table is no head."""
    names = {"tok_emb.weight": (96, 32), "rows": (96, 32)}
    assert pattern.guess(names) == ("tok_emb.weight", None)
    assert pattern.guess(names, None, [("tok_emb.weight", "rows")]) == ("tok_emb.weight", "rows")
    names = {"tok_emb.weight": (96, 32), "encoder.embed_tokens.weight": (96, 32)}
    assert pattern.guess(names, None, [tuple(names)])[1] is None


# --- loaders ---------------------------------------------------------------------------------------------


def test_loaders_of_files_without_a_config_leave_no_hole(tmp_path: Path) -> None:
    """No sentence misses a name, and safetensors is not said to need a config."""
    for name in ("gpt-j-style", "mingpt", "nanogpt-checkpoint", "gguf-vocabulary", "lora-pickled"):
        (tmp_path / name).mkdir()
        for prediction in api.inspect(made(name, tmp_path / name), consumers="all").consumers:
            assert "  " not in prediction.detail and " with is " not in prediction.detail, prediction
    lone = made("gpt-j-style", tmp_path / "again")
    (prediction,) = api.inspect(lone, consumers="safetensors").consumers
    assert str(prediction.outcome) == "unknown" and "needs no config" in prediction.detail


def test_gguf_is_for_llama_cpp(tmp_path: Path) -> None:
    """Of all loaders it alone is asked; another is said to be no reader of it only when it is asked for."""
    model = made("gguf-vocabulary", tmp_path)
    (prediction,) = api.inspect(model, consumers="all").consumers
    assert (prediction.name, prediction.detail) == ("llama.cpp", "the file holds no tensors")
    (prediction,) = api.inspect(model, consumers="vllm>=0.29").consumers
    assert str(prediction.outcome) == "unknown"
    assert CliRunner().invoke(main, ["check", str(model), "--for", "vllm"]).exit_code == 0


def test_one_parameter_is_one(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "one.pt")
    assert "1 tensor, 1 parameter, 4 B stored" in run(("inspect",), tmp_path / "one.pt").output


def test_a_second_head_is_named(tmp_path: Path) -> None:
    """Two heads and no class that chooses: the finding names both. A head of an added block is not one of them."""
    head = {"a.lm_head.weight": torch.ones(96, 32), "b.c.lm_head.weight": torch.ones(96, 16)}
    save_file({**head, "mtp.0.lm_head.weight": torch.ones(96, 32)}, tmp_path / "model.safetensors")
    (finding,) = api.inspect(tmp_path).findings
    assert finding.rule == "TIE012" and finding.tensors == tuple(head)
    assert finding.message.endswith("b.c.lm_head.weight has a name of the same kind.")


def test_a_tie_of_an_unknown_class_needs_one_shape(tmp_path: Path) -> None:
    """No finding says what an unknown class needs or what its loaders do."""
    tables = {"model.embed_tokens.weight": torch.ones(96, 32), "lm_head.weight": torch.ones(32, 96)}
    save_file(tables, tmp_path / "model.safetensors")
    config = {"architectures": ["AcmeForCausalLM"], "model_type": "acme", "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    messages = {finding.rule: finding.message for finding in api.inspect(tmp_path).findings}
    assert set(messages) == {"TIE010", "TIE012"} and messages["TIE010"].endswith("A tie needs one shape for both.")
