"""What is measured on a text, against the model that is really changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tieconv
from tests.analysis.lm import build, configure, write_text
from tests.analysis.test_final import opened
from tests.analysis.test_rows import figure
from tests.cli.run import ok, refused
from tests.cli.stored import edit, tensors
from tieconv.analysis.gradients import split
from tieconv.analysis.reference import Reference, load_reference
from tieconv.errors import TieconvError
from tieconv.sources.local import open_files


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    """An untied model whose head moved a little."""
    build(tmp_path, tied=False)

    def change(values: dict[str, Any]) -> None:
        head = values["model.embed_tokens.weight"]
        values["lm_head.weight"] = head + 0.02 * torch.randn(head.shape, generator=torch.manual_seed(3))

    edit(tmp_path, change)
    return tmp_path


def reference(folder: Path, text: Path) -> Reference:
    with open_files(folder) as files:
        return load_reference(opened(folder, files), text.read_text())


@pytest.mark.parametrize("survivor", ["embed", "head"])
def test_the_measured_cost_is_that_of_the_retied_model(
    drifted: Path, text: Path, survivor: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Mean KL and change of the loss equal those between the model and what `retie --force` writes."""
    out = tmp_path_factory.mktemp("tied") / "out"
    ok(f"retie --from {survivor} --force", drifted, "-o", out)
    analysis = tieconv.analyze(drifted, text=text)
    assert analysis.relation == "drift"
    one, two = reference(drifted, text), reference(out, text)
    kl, loss = [], []
    with torch.no_grad():
        for window in one.windows:
            before, after = one.log_probabilities(window), two.log_probabilities(window)
            kl.append(float((before.exp() * (before - after)).sum(-1).mean()))
            loss.append(float((before - after).gather(-1, window[1:, None]).mean()))
    told = figure(analysis, "Re-tying", f"KL measured, {survivor} survives")
    assert told.value == pytest.approx(sum(kl) / len(kl), rel=1e-3) and told.n == one.predicted
    change = figure(analysis, "Re-tying", f"change of the loss, {survivor} survives").value
    assert change == pytest.approx(sum(loss) / len(loss), rel=1e-2, abs=1e-6)


def test_the_measured_cost_is_within_the_certificate(drifted: Path, text: Path) -> None:
    """On a real model the measured KL lies below the bound, and both are above 0."""
    analysis = tieconv.analyze(drifted, text=text)
    bound = figure(analysis, "Re-tying", "KL bound, embed survives").value
    measured = figure(analysis, "Re-tying", "KL measured, embed survives").value
    assert bound is not None and measured is not None and 0 < measured < bound


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "gemma2"])
def test_the_two_parts_are_the_tied_gradient(model_type: str, tmp_path: Path, text: Path) -> None:
    """The input part and the output part of the gradient sum to the gradient of the tied table."""
    model = build(tmp_path, model_type, tied=True)
    found = reference(tmp_path, text)
    into, out = split(found)
    model.zero_grad()
    for window in found.windows:
        given = {"input_ids": window[None], "attention_mask": torch.ones_like(window[None])}
        log_p = torch.log_softmax(model(**given, use_cache=False).logits[0, :-1].float(), -1)
        (-log_p.gather(-1, window[1:, None]).mean() / len(found.windows)).backward()
    whole = model.get_input_embeddings().weight.grad
    assert float((into + out - whole).abs().max()) <= 1e-6 * float(whole.abs().max())
    assert float(into.norm()) > 0 and float(out.norm()) > 0
    assert found.model.get_input_embeddings().weight is found.embed


def test_the_probability_of_zero_rows_is_measured(tmp_path: Path, text: Path) -> None:
    """Zero rows of the head take what a softmax over the real logits gives them."""
    build(tmp_path, tied=False)
    edit(tmp_path, lambda values: values["lm_head.weight"].__setitem__(slice(-12, None), 0))
    told = figure(tieconv.analyze(tmp_path, text=text), "Rows", "measured probability of the rows of zeros").value
    found = reference(tmp_path, text)
    with torch.no_grad():
        real = [found.log_probabilities(window).exp()[:, -12:].sum(-1).mean() for window in found.windows]
    assert told == pytest.approx(float(sum(real) / len(real)), rel=1e-4)


def test_both_tables_are_those_of_the_file(tmp_path: Path, text: Path) -> None:
    """A flag that says tied over two different tables does not make the reference drop one."""
    build(tmp_path, tied=False)
    configure(tmp_path, tie_word_embeddings=True)
    found, stored = reference(tmp_path, text), tensors(tmp_path)
    assert torch.equal(found.embed, stored["model.embed_tokens.weight"])
    assert torch.equal(found.head, stored["lm_head.weight"])
    assert found.model.get_output_embeddings().weight is found.head


@pytest.mark.parametrize("what", ["short", "tokenizer", "class"])
def test_what_cannot_be_measured_is_refused(tmp_path: Path, text: Path, what: str, models: Path) -> None:
    """A text of a few words, a model without a tokenizer, a class that predicts no next token."""
    folder, given = tmp_path / "model", text
    if what == "class":
        folder = models / "bert-mlm"
    else:
        build(folder, tied=True)
    if what == "short":
        given = tmp_path / "short.txt"
        given.write_text("w1 w2 w3")
    if what == "tokenizer":
        for path in folder.glob("tokenizer*"):
            path.unlink()
    with pytest.raises(TieconvError) as caught:
        tieconv.analyze(folder, text=given)
    assert caught.value.hint


def test_retie_within_a_budget(drifted: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """--max-kl re-ties where the certificate or the measurement is within it, and refuses where neither is."""
    room = tmp_path_factory.mktemp("out")
    analysis = tieconv.analyze(drifted, text=text)
    bound = figure(analysis, "Re-tying", "KL bound, embed survives").value
    measured = figure(analysis, "Re-tying", "KL measured, embed survives").value
    assert bound is not None and measured is not None
    ok(f"retie --survivor embed --max-kl {bound * 1.01}", drifted, "-o", room / "proved")
    assert "lm_head.weight" not in tensors(room / "proved")
    assert "bounded by" in refused(f"retie --survivor embed --max-kl {bound / 2}", drifted, "-o", room / "no")
    assert "cannot be bounded" in refused("retie --from head --max-kl 100", drifted, "-o", room / "no")
    ok(f"retie --from embed --max-kl {measured * 2} --text {text}", drifted, "-o", room / "measured")
    over = refused(f"retie --from embed --max-kl {measured / 2} --text {text}", drifted, "-o", room / "no")
    assert "was measured" in over and not (room / "no").exists()


def test_independent_tables_are_refused_whatever_the_budget(tmp_path: Path) -> None:
    """No budget ties two tables that have nothing in common."""
    build(tmp_path / "model", tied=False)
    told = refused("retie --from embed --max-kl 1e9", tmp_path / "model", "-o", tmp_path / "out")
    assert "independent" in told
