"""The recipe of the guide to LoRA with the real peft: untie the base, load the same adapter, merge."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import tieconv
from fixtures import zoo
from tests.cli.run import run
from tests.lazy import torch

KIND = "LlamaForCausalLM"
LIMIT = 2e-6
"""Merging adds W + s·B·A once instead of at each step: equal up to rounding in float32."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tied base, and an adapter trained (here: made up) on both names of its tied pair."""
    import peft

    folder = tmp_path_factory.mktemp("lora")
    zoo.build(KIND, tie=True).save_pretrained(folder / "base")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["embed_tokens", "lm_head", "q_proj"])
    model = adapted(load(folder / "base"), config)
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    tieconv.plan_untie(folder / "base").execute(folder / "untied")
    return folder


def load(folder: Path) -> Any:
    return zoo.model_class(KIND).from_pretrained(folder, dtype=torch.float32).eval()


def adapted(model: Any, config: Any) -> Any:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft warns of the tie, which is what this is about
        return peft.get_peft_model(model, config).eval()


def with_adapter(base: Path, adapter: Path) -> Any:
    import peft

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(load(base), adapter).eval()


def logits(model: Any) -> torch.Tensor:
    ids = (torch.arange(24).reshape(2, 12) * 7) % 48 + 8
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=ids).logits
    return found


def saved(model: Any, folder: Path) -> Any:
    """The merged model as a user gets it: saved and loaded again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.merge_and_unload().save_pretrained(folder)
    return load(folder)


def test_unmerged_the_bases_agree(place: Path) -> None:
    """Before the merge the tied base and the untied one compute the same with the adapter."""
    tied, untied = (logits(with_adapter(place / base, place / "adapter")) for base in ("base", "untied"))
    assert torch.equal(tied, untied)


def test_merging_on_the_tied_base_is_wrong(place: Path) -> None:
    """C02: both deltas go into one matrix; the saved model computes something else."""
    meant = logits(with_adapter(place / "base", place / "adapter"))
    merged = saved(with_adapter(place / "base", place / "adapter"), place / "wrong")
    assert (logits(merged) - meant).abs().max() > 1.0


def test_merging_on_the_untied_base_is_exact(place: Path) -> None:
    """The recipe: the merged, saved and reloaded model computes what the adapter computed; its head is its own."""
    meant = logits(with_adapter(place / "untied", place / "adapter"))
    merged = saved(with_adapter(place / "untied", place / "adapter"), place / "right")
    assert (logits(merged) - meant).abs().max() <= LIMIT * meant.abs().max()
    found = tieconv.inspect(place / "right")
    assert found.config.effective is False and found.findings == ()


def test_the_merged_model_cannot_be_tied_again(place: Path) -> None:
    """`retie` proves that the two matrices differ, and refuses."""
    saved(with_adapter(place / "untied", place / "adapter"), place / "again")
    with pytest.raises(tieconv.TieconvError, match="not a byte-identical copy"):
        tieconv.plan_retie(place / "again")


def differences(a: Path, b: Path) -> dict[str, str]:
    """What `tieconv diff` says of each tensor that differs."""
    lines = run("diff", a, b).stdout.splitlines()
    told = (line.split(maxsplit=1) for line in lines if ": " in line and line.startswith("  "))
    return {name: said.strip() for name, said in told}


def test_from_garbage_to_a_good_model(place: Path, tmp_path: Path) -> None:
    """The steps of the guide: the symptom, what base and adapter tell, the command, the merge, the comparison."""
    merged, good, untied = tmp_path / "merged", tmp_path / "good", tmp_path / "base-untied"
    saved(with_adapter(place / "base", place / "adapter"), merged)
    assert tieconv.inspect(merged).findings == ()
    one = differences(place / "base", merged)
    assert one["embed_tokens.weight"] == one["lm_head.weight"] and "distinct" in one["lm_head.weight"]
    result = run("check", place / "adapter")  # it reads no base model outside the adapter, so it names no command
    assert result.exit_code == 1 and "PEF001" in result.stdout
    told = run("inspect", place / "adapter", "--base", place / "base").stdout
    command = told.partition("Run: tieconv ")[2].split("\n")[0].strip()
    assert command == f"untie {place / 'base'} -o OUT"
    assert run(command.replace("OUT", str(untied))).exit_code == 0
    meant = logits(with_adapter(untied, place / "adapter"))
    found = logits(saved(with_adapter(untied, place / "adapter"), good))
    assert (found - meant).abs().max() <= LIMIT * meant.abs().max()
    two = differences(untied, good)
    assert two["embed_tokens.weight"] != two["lm_head.weight"]
