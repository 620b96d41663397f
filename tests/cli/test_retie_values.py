"""`retie --fold-norm` and `--from mean`: the tied table has other values, and only where that means something."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tieconv
from tests.analysis.lm import build
from tests.cli.run import ok, refused, run
from tests.cli.stored import (
    all_tensors,
    bits_equal,
    config,
    configure,
    edit,
    editing,
    logits,
    operations,
    plan,
    same,
    snapshot,
    tensors,
)  # fmt: skip
from tests.lazy import torch

NORMS = {"llama": "model.norm.weight", "gemma2": "model.norm.weight", "gpt2": "transformer.ln_f.weight"}
EMBEDS = {"gpt2": "transformer.wte.weight"}
SHIFT, HEAD = "transformer.ln_f.bias", "lm_head.weight"


def made(folder: Path, model_type: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A tied model, all of one type; its tensors."""
    build(folder, model_type, tied=True)
    with editing(folder) as values:
        for name, value in values.items():
            values[name] = value.to(dtype)
        if model_type == "gpt2":
            values[SHIFT] = torch.tensor([0.0, 0.5, -2.0, 1.0]).repeat(8).to(dtype)
    configure(folder, dtype=str(dtype).removeprefix("torch."))
    return tensors(folder)


def fold(folder: Path, out: Path, model_type: str) -> None:
    """As rotation and quantisation tools leave it: the norm's scale multiplied into an untied head, the norm at one."""
    ok("untie", folder, "-o", out)
    norm, embed = NORMS[model_type], EMBEDS.get(model_type, "model.embed_tokens.weight")
    with editing(out) as values:
        gains = values[norm].float() + (1 if model_type == "gemma2" else 0)
        values[HEAD] = (values[embed].float() * gains).to(values[embed].dtype)
        values[norm] = torch.zeros_like(values[norm]) if model_type == "gemma2" else torch.ones_like(values[norm])
        if SHIFT in values:  # β' = β / γ, where the quotient is exact
            values[SHIFT] = torch.zeros_like(values[SHIFT])


def test_the_refusal_offers_the_fold_or_the_measurement(tmp_path: Path) -> None:
    """A head that is four times the embedding fits into the norm; for others `analyze` says what a re-tie loses."""
    made(tmp_path / "tied", "llama", torch.float32)
    ok("untie", tmp_path / "tied", "-o", tmp_path / "m")
    edit(tmp_path / "m", lambda values: values.update({HEAD: values[HEAD] * 4}))
    hint = run("retie", tmp_path / "m").stderr
    assert f"; move the factor into the last norm: tieconv retie {tmp_path / 'm'} --fold-norm; or choose" in hint
    edit(tmp_path / "m", lambda values: values.update({HEAD: values[HEAD].flip(0)}))
    hint = run("retie", tmp_path / "m").stderr
    assert f"; measure what a re-tie loses: tieconv analyze {tmp_path / 'm'}; or choose" in hint


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
def test_the_original_comes_back(tmp_path: Path, model_type: str, dtype: str) -> None:
    """Fold, then unfold: the tied model again, every byte but for a norm that the bytes of the head leave open."""
    original = made(tmp_path / "tied", model_type, getattr(torch, dtype))
    fold(tmp_path / "tied", tmp_path / "folded", model_type)
    analysis = tieconv.analyze(tmp_path / "folded")
    assert analysis.relation == "diagonal"
    assert analysis.verdict.startswith("Yes, exactly") and "--fold-norm" in analysis.verdict
    result = ok("retie --fold-norm", tmp_path / "folded", "-o", tmp_path / "out")
    after = tensors(tmp_path / "out")
    assert after.keys() == original.keys()
    for name, value in original.items():
        if name != NORMS[model_type]:
            assert bits_equal(after[name], value), name
    tolerance = 2e-3 if dtype == "bfloat16" else 1e-5  # what 160 rows of eight digits say of 1 + weight
    assert torch.allclose(logits(tmp_path / "out"), logits(tmp_path / "tied"), rtol=tolerance, atol=tolerance)
    if dtype == "bfloat16" and model_type == "llama":
        assert bits_equal(after[NORMS[model_type]], original[NORMS[model_type]])
    assert "were rounded" in result.stderr
    assert config(tmp_path / "out")["tie_word_embeddings"] is True
    assert ok("check", tmp_path / "out").exit_code == 0


def test_layer_norm_with_its_shift(tmp_path: Path) -> None:
    """GPT-2: the factors go into weight and bias of the last norm, where both hold the products."""
    made(tmp_path / "tied", "gpt2", torch.bfloat16)
    fold(tmp_path / "tied", tmp_path / "folded", "gpt2")
    shift = torch.tensor([0.0, 0.5, -2.0, 1.0]).repeat(8).bfloat16()
    edit(tmp_path / "folded", lambda values: values.update({SHIFT: shift}))
    gains = tensors(tmp_path / "tied")[NORMS["gpt2"]]
    ok("retie --fold-norm", tmp_path / "folded", "-o", tmp_path / "out")
    after = tensors(tmp_path / "out")
    assert bits_equal(after[NORMS["gpt2"]], gains) and bits_equal(after[SHIFT], shift * gains)
    assert torch.allclose(logits(tmp_path / "out"), logits(tmp_path / "folded"), rtol=2e-2, atol=2e-2)
    edit(tmp_path / "folded", lambda values: values.update({SHIFT: gains.flip(0)}))
    message = refused("retie --fold-norm", tmp_path / "folded", "-o", tmp_path / "no")
    assert "can hold exactly" in message and not (tmp_path / "no").exists()


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2"])
def test_a_factor_of_four_changes_no_logit(tmp_path: Path, model_type: str) -> None:
    """A power of two is exact everywhere: the logits are the same bits, and the note says that the function is."""
    build(tmp_path / "m", model_type, tied=False)
    embed, norm = EMBEDS.get(model_type, "model.embed_tokens.weight"), NORMS[model_type]
    with editing(tmp_path / "m") as values:
        values[HEAD] = values[embed] * 4
        values[norm] = values[norm].bfloat16().float()  # 4·(1 + weight) − 1 has room
    result = ok("retie --fold-norm", tmp_path / "m", "-o", tmp_path / "out")
    assert "the logits stay the same" in result.stderr
    assert torch.equal(logits(tmp_path / "m"), logits(tmp_path / "out"))


@pytest.mark.parametrize("form", ["sharded", "torch", "in-place"])
def test_every_layout(tmp_path: Path, form: str) -> None:
    """Shards, torch files and the directory itself: the norm and the config change, the head goes, all else stays."""
    original = made(tmp_path / "tied", "llama", torch.bfloat16)
    fold(tmp_path / "tied", tmp_path / "folded", "llama")
    source, out = tmp_path / "folded", tmp_path / "out"
    if form != "in-place":
        to = {"sharded": "safetensors --max-shard-size 20KB", "torch": "torch"}[form]
        ok(f"convert --to {to}", source, "-o", tmp_path / form)
        source = tmp_path / form
        assert len(list(source.glob("*.safetensors"))) != 1
    target = ["--in-place"] if form == "in-place" else ["-o", str(out)]
    ok("retie --fold-norm", source, *target)
    assert same(all_tensors(source if form == "in-place" else out), original)


def test_the_plan_says_so(tmp_path: Path) -> None:
    """--json names the norm that changes and the head that goes; nothing is written without -o."""
    made(tmp_path / "tied", "llama", torch.bfloat16)
    fold(tmp_path / "tied", tmp_path / "folded", "llama")
    before = snapshot(tmp_path / "folded")
    document = plan("retie --fold-norm", tmp_path / "folded")
    assert operations(document)["model.norm.weight"] == "SetTensor" and operations(document)[HEAD] == "DropTensor"
    assert snapshot(tmp_path / "folded") == before


def test_a_head_that_the_config_calls_tied(tmp_path: Path) -> None:
    """transformers 4 never read it, so the fold changes what that version computes; an equal copy is called equal."""
    build(tmp_path / "tied", "mbart", tied=True)
    ok("untie --keep-flag", tmp_path / "tied", "-o", tmp_path / "folded")
    edit(tmp_path / "folded", lambda stored: stored.update({HEAD: stored[HEAD] * 2}))
    document = plan("retie --fold-norm", tmp_path / "folded")
    assert any("transformers 4 ignored" in note for note in document["notes"])
    dropped = [line for line in ok("retie --fold-norm", tmp_path / "folded").stdout.splitlines() if " drop " in line]
    assert sum("equal to model.shared.weight, byte for byte" in line for line in dropped) == 2 and len(dropped) == 3
    configure(tmp_path / "folded", tie_word_embeddings=False)
    assert len(plan("retie --fold-norm", tmp_path / "folded")["notes"]) == 1


def test_a_base_model_has_names_of_its_own(models: Path, tmp_path: Path) -> None:
    """A checkpoint without the base model's prefix: the norm is changed under the name that is stored."""
    shutil.copytree(models / "gpt2-unprefixed", tmp_path / "m")
    configure(tmp_path / "m", tie_word_embeddings=False)
    edit(tmp_path / "m", lambda values: values.update({HEAD: values["wte.weight"] * 4}))
    before = tensors(tmp_path / "m")
    section = tieconv.analyze(tmp_path / "m").section("Re-tying")
    assert section is not None and section.detail["fold"].tensor == "ln_f.weight"
    ok("retie --fold-norm", tmp_path / "m", "-o", tmp_path / "out")
    after = tensors(tmp_path / "out")
    assert HEAD not in after
    assert all(bits_equal(after[f"ln_f.{part}"], before[f"ln_f.{part}"] * 4) for part in ("weight", "bias"))


def test_what_is_no_fold_is_refused(tmp_path: Path, models: Path) -> None:
    """Independent tables, a class whose last norm is not known, and a survivor beside it."""
    assert "no factor maps column" in refused("retie --fold-norm", models / "llama-untied", "-o", tmp_path / "out")
    assert run("retie --fold-norm --from head --force", models / "llama-untied").exit_code == 2
    ok("untie", models / "t5", "-o", tmp_path / "t5")
    edit(tmp_path / "t5", lambda values: values[HEAD].mul_(3))
    assert "tieconv knows no norm" in refused("retie --fold-norm", tmp_path / "t5", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_equal_tables_are_simply_tied(models: Path, tmp_path: Path) -> None:
    """Where there is nothing to fold the copy goes and no norm is touched."""
    document = plan("retie --fold-norm", models / "llama-duplicated", "-o", tmp_path / "out")
    assert "SetTensor" not in operations(document).values()
    assert operations(plan("retie --fold-norm", models / "llama-tied")) == {}


EMBED, MEAN_HEAD = "model.embed_tokens.weight", "lm_head.weight"
Copy = Callable[[str], Path]


def halfway(values: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean in float64; the fixtures hold bfloat16, of which 53 bits lose nothing before the one rounding."""
    return ((values[EMBED].double() + values[MEAN_HEAD].double()) / 2).to(values[EMBED].dtype)


@pytest.mark.parametrize("form", ["safetensors", "torch"])
@pytest.mark.parametrize("name", ["llama-diverged", "llama-untied-sharded"])
def test_the_mean_is_written(model: Copy, tmp_path: Path, name: str, form: str) -> None:
    """In one file or in shards, safetensors or torch: the mean alone is stored, all else stays, the config is tied."""
    folder, out = model(name), tmp_path / "out"
    if form == "torch":
        ok("convert --to torch", folder, "-o", tmp_path / "torch")
        folder = tmp_path / "torch"
    before = all_tensors(folder)
    result = ok("retie --from mean --force", folder, "-o", out)
    assert "by their mean (" in result.stderr and "review first" in result.stderr
    after = all_tensors(out)
    assert bits_equal(after[EMBED], halfway(before))
    assert after.keys() == before.keys() - {MEAN_HEAD}
    assert all(bits_equal(after[key], before[key]) for key in after if key != EMBED)
    assert ok("check", out).exit_code == 0


def test_the_plan_of_a_mean_says_so(model: Copy) -> None:
    """--json: one operation, both tables read, one written, and nothing is touched without -o."""
    folder = model("llama-diverged")
    before = snapshot(folder)
    document = plan("retie --from mean --force", folder)
    assert operations(document)[EMBED] == "AverageTensor" and operations(document)[MEAN_HEAD] == "DropTensor"
    (operation,) = (entry for entry in document["operations"] if entry["op"] == "AverageTensor")
    assert (operation["first"], operation["second"]) == (EMBED, MEAN_HEAD)
    assert not document["executed"] and snapshot(folder) == before


def test_in_place(model: Copy) -> None:
    """The mean replaces both in the directory itself."""
    folder = model("llama-diverged")
    expected = halfway(tensors(folder))
    ok("retie --from mean --force --in-place", folder)
    assert bits_equal(tensors(folder)[EMBED], expected) and MEAN_HEAD not in tensors(folder)
    assert "nothing to change" in ok("retie", folder).stdout


def test_equal_tables_have_no_other_mean(model: Copy, tmp_path: Path) -> None:
    """Where the copy is bit-equal it is dropped, and nothing is computed."""
    document = plan("retie --from mean --force", model("llama-duplicated"), "-o", tmp_path / "out")
    assert "AverageTensor" not in operations(document).values()


def test_the_same_values_in_another_dtype_go(tmp_path: Path) -> None:
    """Only the forced command drops them, and `check --fix` runs it, because the values stay."""
    values = made(tmp_path / "m", "llama", torch.bfloat16)
    edit(tmp_path / "m", lambda stored: stored.update({HEAD: stored[EMBED].float()}))
    assert "it has the same values in another dtype" in refused("retie", tmp_path / "m")
    result = run("check --fix", tmp_path / "m", "-o", tmp_path / "out")
    assert "TIE002" in result.output and "review first" not in result.output
    assert all(torch.equal(value, values[name]) for name, value in tensors(tmp_path / "out").items())
    assert HEAD not in tensors(tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda embed, head: head.float() + 0.01, "the dtype of their mean is not clear"),
        (lambda embed, head: head.to(torch.int8), "tieconv does not know how lm_head.weight is quantised"),
        (lambda embed, head: embed * 2, "no useful mean: lm_head.weight is 2.0 times as large"),
        (lambda embed, head: head[:-3].clone(), "shape"),
    ],
    ids=["types", "codes", "doubled", "shorter"],
)
def test_a_doubtful_mean_is_refused(model: Copy, tmp_path: Path, change: Any, message: str) -> None:
    """Two types, codes of a quantised table, a multiple, other rows: one sentence and nothing is written."""
    folder = model("llama-diverged")
    edit(folder, lambda values: values.update({MEAN_HEAD: change(values[EMBED], values[MEAN_HEAD])}))
    assert message in refused("retie --from mean --force", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_infinity_is_refused_while_it_is_written(model: Copy, tmp_path: Path) -> None:
    """What no plan can know is refused by the writer, which leaves nothing."""
    folder = model("llama-diverged")
    edit(folder, lambda values: values[MEAN_HEAD].__setitem__((5, 5), torch.inf))
    message = refused("retie --from mean --force", folder, "-o", tmp_path / "out", after_plan=True)
    assert "lm_head.weight holds infinities or NaNs" in message and not (tmp_path / "out").exists()


def test_a_strided_head_is_refused(model: Copy, tmp_path: Path) -> None:
    """A torch file may hold the head column after column: it has to be converted first, and then has a mean."""
    folder = model("llama-diverged")
    ok("convert --to torch", folder, "-o", tmp_path / "torch")
    file = tmp_path / "torch" / "pytorch_model.bin"
    values = torch.load(file, weights_only=True)
    values[MEAN_HEAD] = values[MEAN_HEAD].t().contiguous().t()
    torch.save(values, file)
    assert "as contiguous rows" in refused("retie --from mean --force", tmp_path / "torch", "-o", tmp_path / "out")
    ok("convert --to safetensors", tmp_path / "torch", "-o", tmp_path / "dense")
    ok("retie --from mean --force", tmp_path / "dense", "-o", tmp_path / "out")
    assert bits_equal(tensors(tmp_path / "out")[EMBED], halfway(values))


def test_a_rescaled_head_is_refused(model: Copy, tmp_path: Path) -> None:
    """T5 multiplies the logits of a tied head: no mean, as no other survivor, is written by force."""
    folder = model("t5")
    ok("untie", folder, "-o", tmp_path / "untied")
    edit(tmp_path / "untied", lambda values: values[MEAN_HEAD].add_(0.01))
    assert "rescale" in refused("retie --from mean --force", tmp_path / "untied", "-o", tmp_path / "out")


def test_the_flag_may_say_tied_already(model: Copy, tmp_path: Path) -> None:
    """Two tables that differ under a flag that ties them: the mean settles it."""
    folder, out = model("llama-untied-sharded"), tmp_path / "out"
    configure(folder, tie_word_embeddings=True)
    expected = halfway(tensors(folder))
    ok("retie --from mean --force", folder, "-o", out)
    assert bits_equal(tensors(out)[EMBED], expected)
    assert "tied" in ok("inspect", out).stdout
