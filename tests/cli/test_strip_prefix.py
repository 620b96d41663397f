"""Names that a training wrapper left: ties are seen through them, and one command takes them away."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import tieconv
from tests.cli.run import ok, refused, run
from tieconv.architectures.stored_names import unwrapping, wrappers_of

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SHARDED = "llama-tied-sharded"


def ddp(name: str) -> str:
    return f"module.{name}"


def compiled(name: str) -> str:
    return f"_orig_mod.{name}"


def both(name: str) -> str:
    return f"module._orig_mod.{name}"


def fsdp(name: str) -> str:
    """FSDP wraps the model and each layer; activation checkpointing wraps the layers once more."""
    inner = name.replace("layers.0.", "layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.")
    return f"_fsdp_wrapped_module.{inner}"


def peft(name: str) -> str:
    return f"base_model.model.{name}"


WRAPPERS = {
    ddp: "DistributedDataParallel",
    compiled: "torch.compile",
    both: "DistributedDataParallel and torch.compile",
    fsdp: "FullyShardedDataParallel and activation checkpointing",
    peft: "PEFT",
}


def wrapped(source: Path, folder: Path, rename) -> Path:
    """A copy of a fixture whose tensors, and whose index, have other names."""
    shutil.copytree(source, folder)
    for file in folder.glob("*.safetensors"):
        save_file({rename(name): value for name, value in load_file(file).items()}, file, {"format": "pt"})
    for index in folder.glob("*.index.json"):
        value = json.loads(index.read_text())
        value["weight_map"] = {rename(name): shard for name, shard in value["weight_map"].items()}
        index.write_text(json.dumps(value))
    return folder


@pytest.mark.sampled(5)
@pytest.mark.parametrize("rename", WRAPPERS, ids=lambda entry: entry.__name__)
@pytest.mark.parametrize("name", ["llama-tied", "llama-duplicated", SHARDED])
def test_the_prefix_goes_and_the_model_loads(tmp_path: Path, name: str, rename) -> None:
    """Weights and index get the names that transformers loads, and no byte of a tensor changes."""
    model = wrapped(MODELS / name, tmp_path / "model", rename)
    (finding,) = [entry for entry in tieconv.inspect(model).findings if entry.rule == "TIE006"]
    assert f"{WRAPPERS[rename]} left " in finding.message
    assert finding.remedy is not None and finding.remedy.safe
    assert "reindex" in finding.remedy.command and "--strip-prefix" in finding.remedy.command
    out = tmp_path / "out"
    ok("reindex --strip-prefix", model, "-o", out)
    assert ok("diff", out, MODELS / name).stdout.endswith("A and B compute the same function.\n")
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    expected = transformers.AutoModelForCausalLM.from_pretrained(MODELS / name)
    ids = torch.arange(8)[None]
    assert torch.equal(loaded(ids).logits, expected(ids).logits)


def test_ties_are_seen_through_the_prefix(tmp_path: Path) -> None:
    """The pair is compared byte for byte under the names that the file has."""
    model = wrapped(MODELS / "llama-duplicated", tmp_path / "model", ddp)
    evidence = tieconv.inspect(model)
    assert evidence.ties == ()
    (tie,) = evidence.wrapped_ties
    states = {member.name: str(member.state) for member in tie.members}
    assert states == {"module.model.embed_tokens.weight": "canonical", "module.lm_head.weight": "identical"}
    assert evidence.to_dict()["wrapped_ties"][0]["canonical"] == "module.model.embed_tokens.weight"
    assert "none known" not in ok("inspect", model).stdout
    assert "wrapped_ties" not in tieconv.inspect(MODELS / "llama-duplicated").to_dict()


def test_fix_strips_the_prefix_and_what_is_wrong_behind_it(tmp_path: Path) -> None:
    """`check --fix` renames, then drops the copy that the names had hidden."""
    model = wrapped(MODELS / "llama-duplicated", tmp_path / "model", both)
    out = tmp_path / "out"
    result = run("check --fix", model, "-o", out)
    assert result.exit_code in (0, 1), result.output
    assert "fixed: TIE006" in result.stderr
    assert "TIE006" not in run("check", out).stdout


def test_a_torch_file_too(tmp_path: Path) -> None:
    """`torch.save(ddp_model.state_dict())` is where the prefix comes from."""
    model = tmp_path / "model"
    shutil.copytree(MODELS / "llama-tied", model)
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save({ddp(name): value for name, value in tensors.items()}, model / "pytorch_model.bin")
    out = tmp_path / "out"
    ok("reindex --strip-prefix", model, "-o", out)
    after = torch.load(out / "pytorch_model.bin", map_location="cpu", weights_only=True)
    assert after.keys() == tensors.keys() and all(torch.equal(after[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("name", ["llama-tied", "bert-mlm"])
def test_a_model_without_a_wrapper_is_refused(name: str, tmp_path: Path) -> None:
    """One sentence, and nothing is written."""
    sentence = refused("reindex --strip-prefix", MODELS / name, "-o", tmp_path / "out")
    assert "no removable prefix of a training wrapper" in sentence
    assert list(tmp_path.iterdir()) == []


def test_options_that_do_not_go_together() -> None:
    """A second change of the index is a second run."""
    assert "--strip-prefix cannot be used with" in refused("reindex --strip-prefix --prune", MODELS / SHARDED)


def test_what_is_not_a_wrapper_stays() -> None:
    """A prefix that some names lack, names that would become one, and adapters are left alone."""
    assert unwrapping(["module.a", "b"]) == {}
    assert unwrapping(["_orig_mod.a", "a"]) == {}
    assert unwrapping(["module.module", "module.x._orig_mod"]) == {"module.module": "module", "module.x._orig_mod": "x"}
    assert unwrapping(["module"]) == unwrapping(["_orig_mod"]) == unwrapping([]) == {}
    assert unwrapping(["base_model.model.q.lora_A.weight", "base_model.model.q.base_layer.weight"]) == {}
    assert unwrapping(["base_model.model.head.modules_to_save.default.weight"]) == {}


STEPS = st.lists(
    st.sampled_from(["a", "b", "0", "module", "_orig_mod", "_fsdp_wrapped_module", "weight"]), min_size=1, max_size=5
)


@given(st.lists(STEPS.map(".".join), unique=True, max_size=6))
def test_no_two_tensors_become_one(names: list[str]) -> None:
    """Whatever the names, as many remain as there were, none is empty, and a second run finds nothing inside."""
    changed = unwrapping(names)
    after = [changed.get(name, name) for name in names]
    assert len(set(after)) == len(names) and all(after)
    assert all("_orig_mod" not in changed[name].split(".") for name in changed)
    assert not changed or wrappers_of(changed)
