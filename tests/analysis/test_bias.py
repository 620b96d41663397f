"""The head's bias: what it is made of, and what stripping it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.analysis.constructed import table
from tests.analysis.lm import VOCABULARY, build, write_text
from tests.analysis.test_rows import figure
from tests.cli.stored import edit, editing
from tests.lazy import torch
from tieconv.analysis.bias_section import explain


@pytest.fixture
def model(tmp_path: Path) -> Path:
    build(tmp_path, "phi", tied=False)
    return tmp_path


def set_bias(folder: Path, bias: torch.Tensor) -> None:
    with editing(folder) as values:
        values["lm_head.bias"] = bias.float()


def test_constant_and_zero_are_free(model: Path) -> None:
    """A bias of one value changes nothing; its bound is 0."""
    for value, word in ((0.0, "all zero"), (0.7, "0.7")):
        set_bias(model, torch.full((VOCABULARY,), value))
        analysis = tieconv.analyze(model)
        section = analysis.section("Bias")
        assert section is not None and word in section.sentence
        assert figure(analysis, "Bias", "KL bound, bias stripped").value == 0


def test_a_mask_is_not_stripped(model: Path) -> None:
    """Entries of minus infinity mask rows: no bound, and said."""
    bias = torch.zeros(VOCABULARY)
    bias[-4:] = -torch.inf
    set_bias(model, bias)
    section = tieconv.analyze(model).section("Bias")
    assert section is not None and "mask" in section.sentence and section.measures[0].value is None


@pytest.mark.parametrize("stored", ["not at all", "as codes"])
def test_a_bias_without_values_is_not_said_to_be_none(model: Path, stored: str) -> None:
    """A class with a bias whose checkpoint has no floats for it: said, instead of *no bias*."""
    with editing(model) as values:
        bias = values.pop("lm_head.bias")
        if stored == "as codes":
            values["lm_head.bias"] = bias.to(torch.int8)
    section = tieconv.analyze(model).section("Bias")
    assert section is not None
    assert ("not stored as floats" if stored == "as codes" else "it is not stored. Loaders") in section.sentence


def test_strip_bound_and_estimate(model: Path) -> None:
    """range² / 8 bounds the KL of stripping for any logits, and the estimate lies below it."""
    rng = np.random.default_rng(0)
    bias = rng.standard_normal(VOCABULARY) * 0.3
    set_bias(model, torch.from_numpy(bias))
    analysis = tieconv.analyze(model)
    bound, estimate = (figure(analysis, "Bias", f"KL {word}, bias stripped").value for word in ("bound", "estimate"))
    assert bound is not None and estimate is not None and 0 < estimate < bound
    assert bound == pytest.approx(np.ptp(bias) ** 2 / 8, rel=1e-6)
    logits = rng.standard_normal((200, VOCABULARY)) * rng.uniform(0, 5, (200, 1))
    before, after = (torch.log_softmax(torch.from_numpy(part), -1).numpy() for part in (logits + bias, logits))
    assert (np.exp(before) * (before - after)).sum(1).max() <= bound


def test_a_bias_that_the_head_makes_is_recognised() -> None:
    """b = U·c + k: adjusted R² is 1, c is found, and what is left has no range; a random bias has adjusted R² of 0."""
    rng = np.random.default_rng(1)
    values, vector = rng.standard_normal((1000, 24)), rng.standard_normal(24)
    head = table(values, "F64")
    made = explain(head, values @ vector + 3)
    assert made.adjusted == pytest.approx(1) and np.allclose(made.vector, vector) and made.left < 1e-9
    noise = explain(head, rng.standard_normal(1000))
    assert abs(noise.adjusted) < 0.03 and noise.r2 == pytest.approx(24 / 1000, abs=0.02)


@pytest.mark.parametrize(("value", "entries"), [(np.nan, 1), (np.inf, 2), (-np.inf, VOCABULARY)])
def test_what_leaves_no_probabilities_is_no_mask(model: Path, value: float, entries: int) -> None:
    """NaN, +∞, and −∞ all over: the sentence says that the model gives no numbers, not that rows are masked."""
    bias = torch.zeros(VOCABULARY)
    bias[:entries] = value
    set_bias(model, bias)
    section = tieconv.analyze(model).section("Bias")
    assert section is not None and section.measures[0].value is None and "mask" not in section.sentence
    expected = (
        "can predict no token" if entries == VOCABULARY else f"{'1 entry' if entries == 1 else '2 entries'} of the bias"
    )
    assert expected in section.sentence and section.measures[0].says.startswith("no bound: ")


def test_a_bias_beyond_any_range_is_no_error(model: Path, recwarn: pytest.WarningsRecorder) -> None:
    """float64 numbers whose squares overflow: a bound that is infinite, no traceback, and nothing on stderr."""
    edit(model, lambda values: values.update({"lm_head.bias": values["lm_head.bias"].double() * 1e200}))
    assert figure(tieconv.analyze(model), "Bias", "KL bound, bias stripped").value == np.inf
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


def test_a_bias_that_the_class_lacks_is_not_read(tmp_path: Path) -> None:
    """Llama has no bias of the head: what is stored beside it is described, with who leaves it out."""
    build(tmp_path, "llama", tied=False)
    set_bias(tmp_path, torch.arange(VOCABULARY) / VOCABULARY)
    section = tieconv.analyze(tmp_path).section("Bias")
    assert section is not None
    assert section.sentence.endswith("LlamaForCausalLM has no parameter lm_head.bias, so transformers ignores it.")


def test_a_bias_of_the_class_is_read(model: Path) -> None:
    """Phi has one."""
    section = tieconv.analyze(model).section("Bias")
    assert section is not None and "no parameter" not in section.sentence


def test_a_masked_token_of_the_text_has_no_loss(model: Path, tmp_path: Path) -> None:
    """−∞ for a token that the text has: the KL is a number, the change of an infinite loss is not given."""
    bias = torch.zeros(VOCABULARY)
    bias[5] = -torch.inf
    set_bias(model, bias)
    analysis = tieconv.analyze(model, text=write_text(tmp_path / "text.txt"))
    assert figure(analysis, "Bias", "KL measured, bias stripped").value is not None
    loss = figure(analysis, "Bias", "change of the loss, bias stripped")
    assert loss.value is None and "no probability" in loss.says
