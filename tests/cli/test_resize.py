"""Config, embedding, head and head bias agree on the size of the vocabulary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tieconv
from tests.checks.fixtures.more import inkling
from tests.cli.run import ok, refused, run
from tieconv.checkpoint.finding import Finding

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def model(tmp_path: Path):
    """A copy of a fixture, its config changed, with a tokenizer of so many tokens where ``tokens`` is given."""

    def copy(name: str, tokens: int | None = None, **config: object) -> Path:
        folder = Path(shutil.copytree(MODELS / name, tmp_path / "model"))
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config, indent=2))
        if tokens is not None:
            vocab = {f"t{number}": number for number in range(tokens)}
            model = {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}
            (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
            (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
        return folder

    return copy


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_too_large_is_named(model, tmp_path: Path, name: str) -> None:
    """The finding and the refusal say which file was not read, not that there is no tokenizer."""
    folder = model("llama-untied", tokens=20, vocab_size=180)
    with (folder / name).open("r+b") as file:
        file.truncate(101_000_000)
    sentence = f"{name} is larger than tieconv reads"
    finding = voc(folder)
    assert finding and sentence in finding.message and "no tokenizer" not in finding.message
    assert sentence in refused("resize --to config", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def voc(folder: Path) -> Finding | None:
    return next((finding for finding in tieconv.inspect(folder).findings if finding.rule == "VOC001"), None)


def vocab_size(folder: Path) -> int:
    return json.loads((folder / "config.json").read_text())["vocab_size"]


def test_the_finding_names_all_sides_and_the_short_one(model) -> None:
    """vocab_size, both tables and the tokenizer stand side by side, and the command is there to copy."""
    finding = voc(model("llama-untied", tokens=192, vocab_size=190))
    assert finding is not None and finding.remedy is not None
    assert finding.message.startswith("vocab_size is smaller than the tables: ")
    for part in ("vocab_size 190", f"{EMBED} 192 rows", f"{HEAD} 192 rows", "tokenizer ids below 192"):
        assert part in finding.message
    assert "tieconv resize" in finding.remedy.command and "--to rows" in finding.remedy.command and finding.remedy.safe


def test_tables_shorter_than_the_tokenizer(model) -> None:
    """The tables are what is wrong: rows are added, which the user reviews."""
    finding = voc(model("llama-untied", tokens=200, vocab_size=200))
    assert finding is not None and finding.remedy is not None
    assert finding.message.startswith("The tables are too short: ")
    assert "--to 200 --fill mean" in finding.remedy.command and not finding.remedy.safe


def test_a_config_that_is_too_large(model) -> None:
    """Without a tokenizer the rows that are stored win, since that loses nothing."""
    finding = voc(model("llama-untied", vocab_size=256))
    assert finding is not None and finding.remedy is not None
    assert finding.message.startswith("vocab_size is larger than the tables: ")
    assert "no tokenizer read" in finding.message
    assert "--to rows" in finding.remedy.command


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-untied-sharded"])
def test_to_rows_changes_the_config_alone(model, tmp_path: Path, name: str) -> None:
    """Every other file is the same, byte for byte, and transformers loads the model."""
    folder, out = model(name, vocab_size=190), tmp_path / "out"
    ok("resize --to rows", folder, "-o", out)
    assert vocab_size(out) == 192 and voc(out) is None
    for file in folder.iterdir():
        assert file.name == "config.json" or (out / file.name).read_bytes() == file.read_bytes()
    transformers.AutoModelForCausalLM.from_pretrained(out)


def test_fix_runs_it(model, tmp_path: Path) -> None:
    """`check --fix` applies the safe repair."""
    out = tmp_path / "out"
    result = run("check --fix", model("llama-untied", vocab_size=190), "-o", out)
    assert result.exit_code == 0, result.output
    assert "fixed: VOC001" in result.stderr and vocab_size(out) == 192


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-untied-sharded"])
@pytest.mark.parametrize("fill", ["zeros", "mean"])
def test_new_rows(model, tmp_path: Path, name: str, fill: str) -> None:
    """The rows that were there stay byte for byte; the new ones are zero, or the mean of the others."""
    folder, out = model(name, tokens=200, vocab_size=200), tmp_path / "out"
    plan = ok(f"resize --to config --fill {fill}", folder, "-o", out).stderr
    assert "8 rows added at the end" in plan and "are not trained" in plan
    before = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    after = {k: v for file in out.glob("*.safetensors") for k, v in load_file(file).items()}
    for table in {EMBED, HEAD} & before.keys():
        old, new = before.pop(table), after.pop(table)
        assert new.shape == (200, old.shape[1]) and torch.equal(new[:192], old)
        mean = torch.from_numpy(old.double().numpy().mean(axis=0)).to(old.dtype)
        expected = mean if fill == "mean" else torch.zeros_like(mean)
        assert all(torch.equal(row, expected) for row in new[192:])
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert loaded(torch.tensor([[199]])).logits.shape[-1] == 200
    assert voc(out) is None


def test_a_bias_goes_along(model, tmp_path: Path) -> None:
    """The head bias gets as many elements as the head has rows, zeros at its end."""
    folder, out = model("bert-mlm"), tmp_path / "out"
    rows = vocab_size(folder)
    ok(f"resize --to {rows + 8} --fill mean", folder, "-o", out)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(out)
    assert vocab_size(out) == rows + 8 and loaded.cls.predictions.bias.shape == (rows + 8,)
    assert not loaded.cls.predictions.bias[rows:].any()


def test_rows_that_no_token_has_are_cut(model, tmp_path: Path) -> None:
    """The tokenizer says that nothing uses them."""
    folder, out = model("llama-untied", tokens=180, vocab_size=180), tmp_path / "out"
    ok("resize --to config", folder, "-o", out)
    cut, whole = load_file(out / "model.safetensors"), load_file(folder / "model.safetensors")
    assert torch.equal(cut[EMBED], whole[EMBED][:180]) and torch.equal(cut[HEAD], whole[HEAD][:180])
    transformers.AutoModelForCausalLM.from_pretrained(out)


def test_rows_of_tokens_are_never_cut(model, tmp_path: Path) -> None:
    """Nor where nobody can tell: one sentence, and nothing is written."""
    folder = model("llama-untied", tokens=185, vocab_size=180)
    assert "tokens up to row 184" in refused("resize --to config", folder, "-o", tmp_path / "out")
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer shows" in refused("resize --to config", folder, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_cut_asked_for_by_number_needs_the_tokenizer_too(model, tmp_path: Path) -> None:
    """Also where config and tables agree, so that nothing was wrong before."""
    folder = model("llama-untied", tokens=185)
    assert "tokens up to row 184" in refused("resize --to 100", folder, "-o", tmp_path / "out")
    ok("resize --to 185", folder, "-o", tmp_path / "out")
    assert vocab_size(tmp_path / "out") == 185


def test_what_does_not_fit_is_refused(model, tmp_path: Path) -> None:
    """Tables that disagree, and words that are not a target."""
    folder = model("llama-untied")
    tensors = load_file(folder / "model.safetensors")
    tensors[HEAD] = tensors[HEAD][:100].contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert "disagree" in refused("resize --to rows", folder, "-o", tmp_path / "out")
    for word in ("0", "-1", "many", "1.5", "٣"):
        assert run("resize", folder, "--to", word).exit_code == 2


def test_python(model, tmp_path: Path) -> None:
    """The same plan as a function; a target that is none is a `ValueError`."""
    folder = model("llama-untied", vocab_size=190)
    tieconv.plan_resize(folder, to=194, fill="mean").execute(tmp_path / "out")
    assert vocab_size(tmp_path / "out") == 194
    with pytest.raises(ValueError, match="is not rows, config or a number"):
        tieconv.plan_resize(folder, to="all")
    assert np.isfinite(load_file(tmp_path / "out" / "model.safetensors")[EMBED].float().numpy()).all()


@pytest.mark.parametrize(
    ("unpadded", "tokens", "reported"), [(6, 8, True), (8, 8, False), (6, 6, False), (6, None, False)]
)
def test_a_head_that_the_config_cuts(tmp_path: Path, unpadded: int, tokens: int | None, reported: bool) -> None:
    """Inkling has a second size for the head. Without a tokenizer nothing is compared."""
    folder = inkling(tmp_path / "model", unpadded, tokens)
    assert [finding.rule for finding in tieconv.inspect(folder).findings] == ["VOC002"] * reported
    assert "cannot tell which config key counts" in refused("resize --to 9", folder, "-o", tmp_path / "out")
