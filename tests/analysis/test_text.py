"""What is measured on a text, against the model that is really changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.analysis.lm import PADDING, VOCABULARY, build, configure, loss_change, mean_kl, write_text
from tests.analysis.test_bounds import opened
from tests.analysis.test_rows import figure
from tests.cli.run import ok, refused
from tests.cli.stored import edit, editing, tensors
from tests.lazy import torch
from tests.refusals import failure_of
from tieconv.analysis.retie_section import load_model, on_text
from tieconv.analysis.subject import split
from tieconv.errors import TieconvError
from tieconv.reference.windows import Apart
from tieconv.reporters.html.analyze_page import plots
from tieconv.sources.local import open_files


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt")


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    """An untied model whose head moved a little."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        head = values["model.embed_tokens.weight"]
        values["lm_head.weight"] = head + 0.02 * torch.randn(head.shape, generator=torch.manual_seed(3))
    return tmp_path


def reference(folder: Path, text: Path) -> Apart:
    with open_files(folder) as files:
        return load_model(opened(folder, files), text.read_text())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("survivor", ["embed", "head", "mean"])
def test_the_measured_cost_is_that_of_the_retied_model(
    drifted: Path, text: Path, survivor: str, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Mean KL and change of the loss equal those between the model and what `retie --force` writes, rounding too."""
    edit(
        drifted, lambda values: values.update({name: value.to(getattr(torch, dtype)) for name, value in values.items()})
    )
    out = tmp_path_factory.mktemp("tied") / "out"
    ok(f"retie --from {survivor} --force", drifted, "-o", out)
    analysis = tieconv.analyze(drifted, text=text)
    assert analysis.relation == "drift"
    one, two = reference(drifted, text), reference(out, text)
    kl, loss = [], []
    with torch.no_grad():
        for window in one.windows:
            before, after = one.log_probabilities(window), two.log_probabilities(window)
            kl.append(mean_kl(before, after))
            loss.append(loss_change(before, after, window[1:]))
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
    rows = tieconv.analyze(tmp_path, text=text).section("Rows")
    assert (
        rows is not None and f"their tokens still get probability ({told:.2g}, measured on the text)" in rows.sentence
    )


def test_both_tables_are_those_of_the_file(tmp_path: Path, text: Path) -> None:
    """A flag that says tied over two different tables does not make the reference drop one."""
    build(tmp_path, tied=False)
    configure(tmp_path, tie_word_embeddings=True)
    found, stored = reference(tmp_path, text), tensors(tmp_path)
    assert torch.equal(found.embed, stored["model.embed_tokens.weight"])
    assert torch.equal(found.head, stored["lm_head.weight"])
    assert found.model.get_output_embeddings().weight is found.head


def counted(text: Path) -> np.ndarray:
    """How often each of the text's words, which are ids, stands in it."""
    return np.bincount([int(word[1:]) for word in text.read_text().split()], minlength=VOCABULARY)


def with_bias_on_frequency(folder: Path, counts: np.ndarray, slope: float) -> torch.Tensor:
    """A head bias of ``slope``·log p + 0.25 on the tokens of the text."""
    build(folder, "phi", tied=False)
    log_p = np.log(np.maximum(counts, 1) / counts.sum())
    bias = torch.from_numpy(slope * log_p + 0.25).float()
    edit(folder, lambda values: values.update({"lm_head.bias": bias}))
    return bias


def test_bias_and_frequency_are_told_token_by_token(tmp_path: Path, text: Path) -> None:
    """A bias of a·log p + k: slope, start and R² come back, and the series hold log p and both biases of each token."""
    counts = counted(text)
    bias = with_bias_on_frequency(tmp_path, counts, 0.5)
    section = tieconv.analyze(tmp_path, text=text).section("Bias")
    assert section is not None
    assert "Word frequency explains 100% of the bias: 0.5·log p + 0.25." in section.sentence
    told = section.detail["on_log_p"]["bias"].to_dict()
    assert told["slope"] == pytest.approx(0.5, rel=1e-4) and told["start"] == pytest.approx(0.25, rel=1e-3)
    assert told["r2"] == pytest.approx(1, abs=1e-6) and told["tokens"] == np.count_nonzero(counts)
    seen = sorted(np.flatnonzero(counts), key=lambda token: (counts[token], token))
    assert section.series["log_p"] == pytest.approx(np.log(counts[seen] / counts.sum()), rel=1e-4)
    assert section.series["bias_at_log_p"] == pytest.approx(bias.numpy()[seen], rel=1e-4)
    assert len(section.series["implicit_bias_at_log_p"]) == len(seen)
    headings = [plot.heading for plot in plots(section)]
    assert headings[:2] == ["Bias against word frequency", "Implicit bias U·mean(h) against word frequency"]
    assert "0.5 × log p" in plots(section)[0].says


def test_the_implicit_bias_is_the_head_on_the_mean_hidden_state(tmp_path: Path, text: Path) -> None:
    """U·mean(h), h being what the head is applied to at every predicted place."""
    build(tmp_path, tied=False)
    section = tieconv.analyze(tmp_path, text=text).section("Bias")
    found, counts = reference(tmp_path, text), counted(text)
    heard: list[torch.Tensor] = []
    hook = found.model.get_output_embeddings().register_forward_pre_hook(lambda _, given: heard.append(given[0][0]))
    with torch.no_grad():
        for window in found.windows:
            found.log_probabilities(window)
    hook.remove()
    expected = (found.head @ torch.stack(heard)[:, :-1].mean((0, 1))).numpy()
    seen = sorted(np.flatnonzero(counts), key=lambda token: (counts[token], token))
    assert section is not None
    assert section.series["implicit_bias_at_log_p"] == pytest.approx(expected[seen], rel=1e-3, abs=1e-4)


def test_stripping_the_bias_is_measured(tmp_path: Path, text: Path) -> None:
    """With a text: the KL of the model without its bias, within the certificate."""
    bias = with_bias_on_frequency(tmp_path, counted(text), 0.2)
    analysis = tieconv.analyze(tmp_path, text=text)
    found = reference(tmp_path, text)
    kl = []
    with torch.no_grad():
        for window in found.windows:
            before = found.log_probabilities(window)
            after = (before - bias).log_softmax(-1)
            kl.append(mean_kl(before, after))
    told = figure(analysis, "Bias", "KL measured, bias stripped").value
    bound = figure(analysis, "Bias", "KL bound, bias stripped").value
    assert told == pytest.approx(sum(kl) / len(kl), rel=1e-3) and bound is not None and told < bound


def test_top1_agreement_is_that_of_the_two_models(drifted: Path, text: Path) -> None:
    """The share of places where both tables in turn have the same likeliest token."""
    told = figure(tieconv.analyze(drifted, text=text), "Re-tying", "top-1 agreement, mean survives").value
    found = reference(drifted, text)
    mean = torch.nn.Parameter((found.embed + found.head) / 2, requires_grad=False)
    same = []
    with torch.no_grad():
        for window in found.windows:
            before = found.log_probabilities(window).argmax(-1)
            with found.tables(mean, mean):
                same.append(float((before == found.log_probabilities(window).argmax(-1)).float().mean()))
    assert told == pytest.approx(sum(same) / len(same)) and 0 < told <= 1


def test_words_of_one_frequency_have_no_line(tmp_path: Path) -> None:
    """A text in which every token is as frequent as the others says nothing of frequency, and nothing is warned of."""
    build(tmp_path / "model", tied=True)
    (tmp_path / "text.txt").write_text(" ".join(f"w{number}" for number in range(VOCABULARY - PADDING)) + " ")
    (tmp_path / "text.txt").write_text((tmp_path / "text.txt").read_text() * 4)
    analysis = tieconv.analyze(tmp_path / "model", text=tmp_path / "text.txt")
    measure = figure(analysis, "Bias", "R², implicit bias U·mean(h) from log p")
    assert measure.value is None and "different frequencies" in measure.says


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, text: Path) -> None:
    """Ids that the table has no row for: one sentence instead of an index error."""
    build(tmp_path, tied=True, vocab_size=100)
    with pytest.raises(TieconvError, match="the tables have only 100 rows"):
        tieconv.analyze(tmp_path, text=text)


def test_maps_are_coloured_by_difference_and_by_frequency(drifted: Path, text: Path) -> None:
    """With two tables a map shows how they differ, with a text how often it has each token; norms are there always."""
    analysis = tieconv.analyze(drifted, text=text, maps=True)
    section = analysis.section("Map: output embedding")
    assert section is not None
    names = [name for name in section.series if name.startswith("plane_colour")]
    shown = "difference of the two rows", "log10(1 + times in the text)", "row norm"
    assert names == [f"plane_colour {name}" for name in shown]
    values, counts = tensors(drifted), counted(text)
    apart = (values["lm_head.weight"] - values["model.embed_tokens.weight"]).norm(dim=1).numpy()
    assert section.series[names[0]] == pytest.approx(apart, rel=1e-3)
    assert section.series[names[1]] == pytest.approx(np.log10(1 + counts), rel=1e-3)
    only = tieconv.analyze(drifted, maps=True).section("Map: output embedding")
    assert only is not None and names[1] not in only.series and names[0] in only.series


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
    assert failure_of(tieconv.analyze, TieconvError, folder, text=given).hint


@pytest.mark.parametrize("survivor", ["embed", "head", "mean"])
def test_what_is_not_a_number_is_within_no_budget(drifted: Path, text: Path, tmp_path: Path, survivor: str) -> None:
    """A NaN in the head: nothing can be measured, and no budget writes it."""
    with editing(drifted) as values:
        values["lm_head.weight"][5, 3] = float("nan")
    assert "1 row of lm_head.weight holds NaN or infinity." in ok("analyze", drifted).stdout
    out = tmp_path / "out"
    assert "NaN or infinite" in refused(f"retie --from {survivor} --max-kl 1e9 --text {text}", drifted, "-o", out)
    assert not out.exists()


@pytest.mark.slow
def test_a_survivor_that_breaks_the_model_is_not_measured(
    drifted: Path, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A NaN in an embedding that the text does not read: the model runs, but not where that table is the head too."""
    with editing(drifted) as values:
        values["model.embed_tokens.weight"][-1, 0] = float("nan")
    out = tmp_path_factory.mktemp("tied") / "out"
    analysis = tieconv.analyze(drifted, text=text)
    assert figure(analysis, "Re-tying", "KL measured, embed survives").value is None
    assert figure(analysis, "Re-tying", "KL bound, embed survives").value is None
    head = figure(analysis, "Re-tying", "KL measured, head survives").value
    assert head is not None and "if the head survives" in analysis.verdict
    told = refused(f"retie --from embed --max-kl 1e9 --text {text}", drifted, "-o", out)
    assert "could not measure the KL" in told
    ok(f"retie --from head --max-kl {head * 3} --text {text}", drifted, "-o", out)


def test_a_text_that_repeats_itself_counts_once(drifted: Path, tmp_path: Path) -> None:
    """The same window thirty times has no standard error: it is one window, and one is too few."""
    given = tmp_path / "again.txt"
    given.write_text("w1 " * 5000)
    told = refused(f"retie --from mean --max-kl 1e9 --text {given}", drifted, "-o", tmp_path / "out")
    assert "repeats itself: 1 different window of 128 tokens, not 39" in told


def test_a_masking_bias_is_measured(tmp_path: Path, text: Path) -> None:
    """−∞ in the bias of a row without a token: what stripping it costs is what that row then takes."""
    build(tmp_path, "phi", tied=False)
    with editing(tmp_path) as values:
        values["lm_head.bias"][:] = 0
        values["lm_head.bias"][-1] = float("-inf")
    value = figure(tieconv.analyze(tmp_path, text=text), "Bias", "KL measured, bias stripped").value
    found = reference(tmp_path, text)
    taken = []
    for window in found.windows:
        found.model.lm_head.bias.data[:] = 0
        taken.append(-torch.log1p(-found.log_probabilities(window).exp()[:, -1]).mean())
    assert value == pytest.approx(float(torch.stack(taken).mean()), rel=1e-4)


def test_a_divergence_is_never_negative(tmp_path: Path, text: Path) -> None:
    """A gauge leaves the probabilities as they are: what rounding leaves of the sum is cut off at 0."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"] + torch.randn(values["lm_head.weight"].shape[1])
    head = tensors(tmp_path)["lm_head.weight"].numpy()
    found = on_text(reference(tmp_path, text), np.zeros(VOCABULARY, bool), {"embed": None, "mean": head})
    assert all(0 <= value < 1e-6 for value in found.effects["embed survives"].kl)


def test_a_proof_comes_before_a_measurement(tmp_path: Path, text: Path) -> None:
    """Rows that no token has: the verdict is yes with a text as without; the zero rows are part of the estimate."""
    build(tmp_path, tied=False)
    with editing(tmp_path) as values:
        values["lm_head.weight"] = values["model.embed_tokens.weight"].clone()
        values["lm_head.weight"][-PADDING:] = 0
    analysis = tieconv.analyze(tmp_path, text=text)
    assert analysis.verdict.startswith("Yes, if the head survives")
    estimate = figure(analysis, "Re-tying", "KL estimate, embed survives").value
    measured = figure(analysis, "Re-tying", "KL measured, embed survives").value
    assert estimate is not None and measured is not None and 0 < measured / 10 < estimate


@pytest.mark.slow
def test_retie_within_a_budget(drifted: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """--max-kl re-ties where the certificate or the measurement is within it, and refuses where neither is."""
    room = tmp_path_factory.mktemp("out")
    analysis = tieconv.analyze(drifted, text=text)
    bound = figure(analysis, "Re-tying", "KL bound, embed survives").value
    measured = figure(analysis, "Re-tying", "KL measured, embed survives").value
    assert bound is not None and measured is not None
    proved = ok(f"retie --survivor embed --max-kl {bound * 1.01}", drifted, "-o", room / "proved").stderr
    assert f"the outputs change by at most {bound:.3g} nats a token" in " ".join(proved.split())
    assert "lm_head.weight" not in tensors(room / "proved")
    assert "the outputs may change by" in refused(
        f"retie --survivor embed --max-kl {bound / 2}", drifted, "-o", room / "no"
    )
    assert "the weights give no KL bound" in refused("retie --from head --max-kl 100", drifted, "-o", room / "no")
    ok(f"retie --from embed --max-kl {measured * 2} --text {text}", drifted, "-o", room / "measured")
    over = refused(f"retie --from embed --max-kl {measured / 2} --text {text}", drifted, "-o", room / "no")
    assert "the measured KL is" in over and not (room / "no").exists()


@pytest.mark.slow
def test_the_mean_within_a_budget(drifted: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """--survivor mean is written where the text says that it may be, never by the weights alone."""
    room = tmp_path_factory.mktemp("out")
    measured = figure(tieconv.analyze(drifted, text=text), "Re-tying", "KL measured, mean survives").value
    assert measured is not None
    told = refused("retie --survivor mean --max-kl 100", drifted, "-o", room / "no")
    assert "the weights give no KL bound" in told and "if the mean survives" in told
    over = refused(f"retie --survivor mean --max-kl {measured / 2} --text {text}", drifted, "-o", room / "no")
    assert "the measured KL is" in over and not (room / "no").exists()
    before = tensors(drifted)
    told = ok(f"retie --survivor mean --max-kl {measured * 2} --text {text}", drifted, "-o", room / "mean").stderr
    assert f"the outputs change by {measured:.3g} ± " in " ".join(told.split())
    embed, head = before["model.embed_tokens.weight"], before["lm_head.weight"]
    assert torch.equal(tensors(room / "mean")["model.embed_tokens.weight"], (embed + head) / 2)
    assert "lm_head.weight" not in tensors(room / "mean")


@pytest.mark.parametrize("survivor", ["embed", "head", "mean"])
def test_independent_tables_are_refused_whatever_the_budget(tmp_path: Path, survivor: str) -> None:
    """No budget ties two tables that have nothing in common."""
    build(tmp_path / "model", tied=False)
    told = refused(f"retie --survivor {survivor} --max-kl 1e9", tmp_path / "model", "-o", tmp_path / "out")
    assert "independent" in told


def test_few_windows_are_worth_little() -> None:
    """The interval is Student's: its quantiles integrate t's density to 97.5 %, and three windows widen it twofold."""
    from math import gamma, inf, pi, sqrt

    from tieconv.analysis.retie_section import _STUDENT, Effect

    for freedom, quantile in enumerate(_STUDENT, 1):
        at = np.linspace(0, quantile, 200_001)
        scale = gamma((freedom + 1) / 2) / (sqrt(freedom * pi) * gamma(freedom / 2))
        density = scale * (1 + at**2 / freedom) ** (-(freedom + 1) / 2)
        assert abs(0.5 + np.trapezoid(density, at) - 0.975) < 5e-5
    three = Effect(kl=[0.01, 0.02, 0.03])
    assert three.worst == pytest.approx(0.02 + 4.303 * three.error)
    many = Effect(kl=[0.01, 0.03] * 500)
    assert many.worst == pytest.approx(0.02 + 2.042 * many.error)
    assert Effect(kl=[0.01]).worst == inf
