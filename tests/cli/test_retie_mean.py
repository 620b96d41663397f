"""`tieconv retie --from mean`: the mean of both tables becomes the tied one, where that means something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.run import ok, refused
from tests.cli.stored import bits_equal, configure, edit, operations, plan, snapshot, tensors

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
Copy = Callable[[str], Path]


def halfway(values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean in float64; the fixtures hold bfloat16, of which 53 bits lose nothing before the one rounding."""
    return ((values[EMBED].double() + values[HEAD].double()) / 2).to(values[EMBED].dtype)


def stored(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of safetensors and torch files."""
    by_name = tensors(folder)
    for file in sorted(folder.glob("*.bin")):
        by_name |= torch.load(file, weights_only=True)
    return by_name


@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize("name", ["llama-diverged", "llama-untied-sharded"])
def test_the_mean_is_written(model: Copy, tmp_path: Path, name: str, form: str) -> None:
    """In one file or in shards, safetensors or torch: the mean alone is stored, all else stays, the config is tied."""
    folder, out = model(name), tmp_path / "out"
    if form == "torch":
        ok("convert --to torch", folder, "-o", tmp_path / "torch")
        folder = tmp_path / "torch"
    before = stored(folder)
    result = ok("retie --from mean --force", folder, "-o", out)
    assert "by their mean (" in result.stderr and "review first" in result.stderr
    after = stored(out)
    assert bits_equal(after[EMBED], halfway(before))
    assert after.keys() == before.keys() - {HEAD}
    assert all(bits_equal(after[key], before[key]) for key in after if key != EMBED)
    assert ok("check", out).exit_code == 0


def test_the_plan_says_so(model: Copy) -> None:
    """--json: one operation, both tables read, one written, and nothing is touched without -o."""
    folder = model("llama-diverged")
    before = snapshot(folder)
    document = plan("retie --from mean --force", folder)
    assert operations(document)[EMBED] == "AverageTensor" and operations(document)[HEAD] == "DropTensor"
    (operation,) = (entry for entry in document["operations"] if entry["op"] == "AverageTensor")
    assert (operation["first"], operation["second"]) == (EMBED, HEAD)
    assert not document["executed"] and snapshot(folder) == before


def test_in_place(model: Copy) -> None:
    """The mean replaces both in the directory itself."""
    folder = model("llama-diverged")
    expected = halfway(tensors(folder))
    ok("retie --from mean --force --in-place", folder)
    assert bits_equal(tensors(folder)[EMBED], expected) and HEAD not in tensors(folder)
    assert "nothing to change" in ok("retie", folder).stdout


def test_equal_tables_have_no_other_mean(model: Copy, tmp_path: Path) -> None:
    """Where the copy is bit-equal it is dropped, and nothing is computed."""
    document = plan("retie --from mean --force", model("llama-duplicated"), "-o", tmp_path / "out")
    assert "AverageTensor" not in operations(document).values()


def _cast(values: dict[str, Any]) -> None:
    values[HEAD] = values[HEAD].float() + 0.01


def _codes(values: dict[str, Any]) -> None:
    values[HEAD] = values[HEAD].to(torch.int8)


def _doubled(values: dict[str, Any]) -> None:
    values[HEAD] = values[EMBED] * 2


def _shorter(values: dict[str, Any]) -> None:
    values[HEAD] = values[HEAD][:-3].clone()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_cast, "the dtype of their mean is not clear"),
        (_codes, "tieconv does not know how lm_head.weight is quantised"),
        (_doubled, "no useful mean: lm_head.weight is 2.0 times as large"),
        (_shorter, "shape"),
    ],
)
def test_a_doubtful_mean_is_refused(model: Copy, tmp_path: Path, change: Any, message: str) -> None:
    """Two types, codes of a quantised table, a multiple, other rows: one sentence and nothing is written."""
    folder = model("llama-diverged")
    edit(folder, change)
    assert message in refused("retie --from mean --force", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_infinity_is_refused_while_it_is_written(model: Copy, tmp_path: Path) -> None:
    """What no plan can know is refused by the writer, which leaves nothing."""
    folder = model("llama-diverged")
    edit(folder, lambda values: values[HEAD].__setitem__((5, 5), torch.inf))
    message = refused("retie --from mean --force", folder, "-o", tmp_path / "out", after_plan=True)
    assert "lm_head.weight holds infinities or NaNs" in message and not (tmp_path / "out").exists()


def test_a_strided_head_is_refused(model: Copy, tmp_path: Path) -> None:
    """A torch file may hold the head column after column: it has to be converted first, and then has a mean."""
    folder = model("llama-diverged")
    ok("convert --to torch", folder, "-o", tmp_path / "torch")
    file = tmp_path / "torch" / "pytorch_model.bin"
    values = torch.load(file, weights_only=True)
    values[HEAD] = values[HEAD].t().contiguous().t()
    torch.save(values, file)
    assert "as contiguous rows" in refused("retie --from mean --force", tmp_path / "torch", "-o", tmp_path / "out")
    ok("convert --to safetensors", tmp_path / "torch", "-o", tmp_path / "dense")
    ok("retie --from mean --force", tmp_path / "dense", "-o", tmp_path / "out")
    assert bits_equal(tensors(tmp_path / "out")[EMBED], halfway(values))


def test_a_rescaled_head_is_refused(model: Copy, tmp_path: Path) -> None:
    """T5 multiplies the logits of a tied head: no mean, as no other survivor, is written by force."""
    folder = model("t5")
    ok("untie", folder, "-o", tmp_path / "untied")
    edit(tmp_path / "untied", lambda values: values[HEAD].add_(0.01))
    assert "rescale" in refused("retie --from mean --force", tmp_path / "untied", "-o", tmp_path / "out")


def test_the_flag_may_say_tied_already(model: Copy, tmp_path: Path) -> None:
    """Two tables that differ under a flag that ties them: the mean settles it."""
    folder, out = model("llama-untied-sharded"), tmp_path / "out"
    configure(folder, tie_word_embeddings=True)
    expected = halfway(tensors(folder))
    ok("retie --from mean --force", folder, "-o", out)
    assert bits_equal(tensors(out)[EMBED], expected)
    assert "tied" in ok("inspect", out).stdout
