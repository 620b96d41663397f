"""`--text` for masked language models and encoder-decoders: what is measured, fed by hand beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv
from tests.analysis.lm import PADDING, VOCABULARY, build, configure, loss_change, mean_kl, write_text
from tests.analysis.test_rows import figure
from tests.analysis.test_text import reference
from tests.cli.run import ok, refused
from tests.cli.stored import edit, editing
from tests.lazy import torch
from tieconv.analysis.subject import split
from tieconv.errors import RefusedError, UnreadableError
from tieconv.reference.windows import EVERY, Causal, EncoderDecoder, Masked

CLASSES = ("bert", "roberta", "distilbert", "electra", "bart", "marian", "mbart", "m2m_100")
CLS, SEP, MASK, START = 1, 2, 3, 0


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("text") / "text.txt", tokens=4000)


def ids_of(text: Path) -> torch.Tensor:
    """The text's words are ids."""
    ids = torch.tensor([int(word[1:]) for word in text.read_text().split()])
    return ids[: len(ids) // 128 * 128].reshape(-1, 128)


def by_hand(model: Any, window: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, targets) of one window, by the model's own forward pass."""
    if model.config.is_encoder_decoder:
        read, rest = window[:64], window[64:]
        read = torch.cat([read, torch.tensor([SEP])])
        given = torch.cat([torch.tensor([START]), rest[:-1]])
        logits = model(input_ids=read[None], decoder_input_ids=given[None]).logits[0]
        return logits.float().log_softmax(-1), rest
    places = [place for place in range(128) if place % 7 == 3]
    hidden = [MASK if place in places else int(token) for place, token in enumerate(window)]
    logits = model(input_ids=torch.tensor([[CLS, *hidden, SEP]])).logits[0, [1 + place for place in places]]
    return logits.float().log_softmax(-1), window[places]


def head_of(model_type: str, folder: Path) -> tuple[str, str]:
    """The names under which `untie` stores the two tables."""
    view = tieconv.inspect(folder).head
    assert view.input_embedding is not None and view.output_head is not None
    return view.input_embedding.name, view.output_head.name


@pytest.fixture
def drifted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Any]:
    """A model whose head moved a little, and the same as transformers holds it."""
    model = build(tmp_path / "m", request.param, tied=True)
    ok("untie", tmp_path / "m", "-o", tmp_path / "apart")
    embed, head = head_of(request.param, tmp_path / "apart")
    with editing(tmp_path / "apart") as values:
        values[head] = values[embed] + 0.02 * torch.randn(values[embed].shape, generator=torch.manual_seed(3))
    return tmp_path / "apart", type(model).from_pretrained(tmp_path / "apart").eval()


SURVIVORS = ("embed", "head", "mean")
MEASURED = [
    pytest.param(name, survivor, marks=[] if survivor == SURVIVORS[number % 3] and number < 3 else pytest.mark.slow)
    for number, name in enumerate(CLASSES)
    for survivor in SURVIVORS
]
"""Every class with every survivor; the fast suite takes three classes, each with another survivor."""


@pytest.mark.slow
@pytest.mark.parametrize(("drifted", "survivor"), MEASURED, indirect=["drifted"])
def test_the_measured_cost_is_that_of_the_retied_model(
    drifted: tuple[Path, Any], text: Path, survivor: str, tmp_path: Path
) -> None:
    """KL, agreement and loss between the model and what `retie --force` writes, both fed by hand."""
    folder, model = drifted
    ok(f"retie --from {survivor} --force", folder, "-o", tmp_path / "out")
    tied = type(model).from_pretrained(tmp_path / "out").eval()
    analysis = tieconv.analyze(folder, text=text)
    kl, same, loss, count = [], [], [], 0
    with torch.no_grad():
        for window in ids_of(text):
            (before, targets), (after, _) = by_hand(model, window), by_hand(tied, window)
            kl.append(mean_kl(before, after))
            same.append(float((before.argmax(-1) == after.argmax(-1)).float().mean()))
            loss.append(loss_change(before, after, targets))
            count += len(targets)
    told = figure(analysis, "Re-tying", f"KL measured, {survivor} survives")
    assert told.value == pytest.approx(sum(kl) / len(kl), rel=1e-3) and told.value > 1e-6 and told.n == count
    agreement = figure(analysis, "Re-tying", f"top-1 agreement, {survivor} survives").value
    assert agreement == pytest.approx(sum(same) / len(same), abs=0.02)
    change = figure(analysis, "Re-tying", f"change of the loss, {survivor} survives").value
    assert change == pytest.approx(sum(loss) / len(loss), rel=2e-2, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("drifted", ["bert", pytest.param("bart", marks=pytest.mark.slow)], indirect=True)
def test_a_budget_is_held_against_the_text(drifted: tuple[Path, Any], text: Path, tmp_path: Path) -> None:
    """`retie --max-kl` writes where the measured cost is below the budget and nothing where it is above."""
    measured = figure(tieconv.analyze(drifted[0], text=text), "Re-tying", "KL measured, embed survives").value
    bound = figure(tieconv.analyze(drifted[0]), "Re-tying", "KL bound, embed survives").value
    assert measured is not None and bound is not None and 0 < measured < bound
    ok(f"retie --survivor embed --max-kl {measured * 2} --text {text}", drifted[0], "-o", tmp_path / "out")
    told = refused(f"retie --survivor embed --max-kl {measured / 2} --text {text}", drifted[0], "-o", tmp_path / "no")
    assert "the measured KL is up to" in told


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model_type", ["bert", "bart", "t5", "distilbert"])
def test_the_two_parts_are_the_tied_gradient(model_type: str, tmp_path: Path, text: Path) -> None:
    """The input part, of encoder and decoder, and the output part sum to the gradient of the tied table."""
    model = build(tmp_path, model_type, tied=True)
    found = reference(tmp_path, text)
    into, out = split(found)
    model.zero_grad()
    for window in found.windows:
        log_p, targets = by_hand(model, window)
        (-log_p.gather(-1, targets[:, None]).mean() / len(found.windows)).backward()
    whole = model.get_input_embeddings().weight.grad
    assert float((into + out - whole).abs().max()) <= 2e-6 * float(whole.abs().max())
    assert float(into.norm()) > 0 and float(out.norm()) > 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("model_type", ["bert", "bart"])
def test_stripping_the_bias_is_measured(model_type: str, tmp_path: Path, text: Path) -> None:
    """A head's own bias, and the row of logits that BART keeps."""
    model = build(tmp_path, model_type, tied=True)
    bias = model.get_output_embeddings().bias if model_type == "bert" else model.final_logits_bias[0]
    kl = []
    with torch.no_grad():
        for window in ids_of(text):
            before, _ = by_hand(model, window)
            after = (before - bias).log_softmax(-1)
            kl.append(mean_kl(before, after))
    told = figure(tieconv.analyze(tmp_path, text=text), "Bias", "KL measured, bias stripped").value
    assert told == pytest.approx(sum(kl) / len(kl), rel=1e-3) and told > 1e-3


def test_the_implicit_bias_is_that_of_the_masked_places(tmp_path: Path, text: Path) -> None:
    """What the head is applied to elsewhere predicts nothing."""
    model = build(tmp_path, "bert", tied=True)
    heard: list[torch.Tensor] = []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: heard.append(given[0][0]))
    with torch.no_grad():
        for window in ids_of(text):
            by_hand(model, window)
    places = [1 + place for place in range(128) if place % 7 == 3]
    expected = model.get_output_embeddings().weight.detach() @ torch.stack(heard)[:, places].mean((0, 1))
    section = tieconv.analyze(tmp_path, text=text).section("Bias")
    counts = torch.bincount(torch.tensor([int(word[1:]) for word in text.read_text().split()]), minlength=VOCABULARY)
    seen = sorted(counts.nonzero()[:, 0].tolist(), key=lambda token: (int(counts[token]), token))
    assert section is not None
    assert section.series["implicit_bias_at_log_p"] == pytest.approx(expected[seen].tolist(), rel=1e-3, abs=1e-4)


def test_of_a_head_that_the_tied_class_rescales_no_survivor_is_measured(tmp_path: Path, text: Path) -> None:
    """T5: the text says what rows and gradients do, and nothing of a re-tie that would be another model."""
    build(tmp_path / "m", "t5", tied=True)
    ok("untie", tmp_path / "m", "-o", tmp_path / "apart")
    edit(tmp_path / "apart", lambda values: values["lm_head.weight"].mul_(1.001))
    analysis = tieconv.analyze(tmp_path / "apart", text=text)
    section = analysis.section("Re-tying")
    assert section is not None and section.measures == () and analysis.verdict.startswith("No: if tied")
    assert analysis.section("Gradients") is not None


def test_reading() -> None:
    """Which tokens of a window are fed, where, and which are predicted."""
    window = torch.arange(10, 30)
    causal = Causal().fed(window)
    assert causal.batch.ids.tolist() == [window.tolist()] and causal.targets.tolist() == window[1:].tolist()
    masked = Masked(MASK, (CLS,), (SEP,))
    fed = masked.fed(window)
    expected = window.tolist()
    expected[3] = expected[10] = expected[17] = MASK
    assert fed.batch.ids.tolist() == [[CLS, *expected, SEP]]
    assert fed.targets.tolist() == [13, 20, 27] and fed.batch.ids[0, fed.places].tolist() == [MASK] * 3
    assert window.tolist() == list(range(10, 30)), "the text stays as it is"
    pair = EncoderDecoder(START, (SEP,)).fed(window)
    assert pair.batch.ids.tolist() == [[*range(10, 20), SEP]]
    assert pair.batch.decoder_ids.tolist() == [[START, *range(20, 29)]] and pair.targets.tolist() == list(range(20, 30))
    for reading in (Causal(), masked, EncoderDecoder(START, ())):
        assert reading.predicted(20) == len(reading.fed(window).targets)
    assert EVERY == 7


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "sound": ({"architectures": ["WhisperForConditionalGeneration"], "model_type": "whisper"}, "predicts no tokens"),
    "classes": ({"architectures": ["BertForSequenceClassification"], "model_type": "bert"}, "predicts no tokens"),
    "pictures": ({"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}, "predicts no tokens"),
    "two heads": ({"architectures": ["BertForPreTraining"]}, "predicts no tokens"),
}


@pytest.mark.parametrize("what", CONFIGS)
def test_what_predicts_no_tokens_is_refused(what: str, tmp_path: Path, text: Path) -> None:
    """Before anything is loaded, with the class's name."""
    build(tmp_path, "bert", tied=True)
    config, why = CONFIGS[what]
    configure(tmp_path, **config)
    with pytest.raises(RefusedError, match=why) as caught:
        tieconv.analyze(tmp_path, text=text, embed="bert.embeddings.word_embeddings.weight")
    assert config["architectures"][0] in caught.value.message


def test_a_model_without_a_mask_token_is_refused(tmp_path: Path, text: Path) -> None:
    build(tmp_path, "bert", tied=True)
    configure_tokenizer(tmp_path)
    with pytest.raises(RefusedError, match="has no mask token, which --text needs for BertForMaskedLM"):
        tieconv.analyze(tmp_path, text=text)


def configure_tokenizer(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)


def test_a_decoder_without_a_start_is_refused(tmp_path: Path, text: Path) -> None:
    build(tmp_path, "bart", tied=True)
    configure(tmp_path, decoder_start_token_id=None)
    with pytest.raises(RefusedError, match="has no decoder_start_token_id"):
        tieconv.analyze(tmp_path, text=text)


def test_a_short_text_is_told_how_long_it_must_be(tmp_path: Path) -> None:
    """One token in seven is predicted, so a masked model needs more text than a causal one."""
    build(tmp_path / "m", "bert", tied=True)
    short = write_text(tmp_path / "text.txt", tokens=128 * 14)
    with pytest.raises(UnreadableError, match="too few") as caught:
        tieconv.analyze(tmp_path / "m", text=short)
    assert caught.value.hint is not None and caught.value.hint.endswith("at least 1,920 are needed")
    enough = write_text(tmp_path / "text.txt", tokens=128 * 15)
    assert tieconv.analyze(tmp_path / "m", text=enough).section("Gradients") is not None


def test_the_mask_must_have_a_row(tmp_path: Path, text: Path) -> None:
    """A mask token beyond the table would read another model's tokenizer."""
    build(tmp_path, "bert", tied=True, vocab_size=VOCABULARY - PADDING)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UnreadableError, match=r"gives id 148, but the tables have only 148 rows"):
        tieconv.analyze(tmp_path, text=text)


@pytest.mark.slow
@pytest.mark.parametrize("survivor", [pytest.param("embed", marks=pytest.mark.slow), "head"])
def test_a_third_table_is_replaced_in_the_measurement_too(text: Path, survivor: str, tmp_path: Path) -> None:
    """BART with a decoder table of its own beside equal ends: the KL is that of what `retie --force` writes."""
    cls = type(build(tmp_path / "m", "bart", tied=True))
    ok("untie", tmp_path / "m", "-o", tmp_path / "apart")
    with editing(tmp_path / "apart") as values:
        table = values["model.decoder.embed_tokens.weight"]
        table += 0.5 * torch.randn(table.shape, generator=torch.manual_seed(3))
    ok(f"retie --from {survivor} --force", tmp_path / "apart", "-o", tmp_path / "out")
    before, after = (cls.from_pretrained(tmp_path / name).eval() for name in ("apart", "out"))
    kl = []
    with torch.no_grad():
        for window in ids_of(text):
            one, two = by_hand(before, window)[0], by_hand(after, window)[0]
            kl.append(mean_kl(one, two))
    analysis = tieconv.analyze(tmp_path / "apart", text=text)
    told = figure(analysis, "Re-tying", f"KL measured, {survivor} survives").value
    assert told == pytest.approx(sum(kl) / len(kl), rel=1e-3) and told > 1e-5
    section = analysis.section("Re-tying")
    assert section is not None and not any("mean" in measure.name for measure in section.measures)
    assert "--survivor embed" in section.sentence
    for share, run in ((3, ok), (0.1, refused)):
        run(f"retie --survivor {survivor} --max-kl {told * share} --text {text}", tmp_path / "apart", "-o",
            tmp_path / f"out{share}")  # fmt: skip


POSITIONS = [
    ("gpt2", 64, 64),
    ("roberta", 128, 125),
    ("bart", 32, 62),
    pytest.param("opt", 64, 64, marks=pytest.mark.slow),
    pytest.param("llama", 64, 64, marks=pytest.mark.slow),
    pytest.param("bert", 128, 126, marks=pytest.mark.slow),
    pytest.param("bert", 20, 18, marks=pytest.mark.slow),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("model_type", "positions", "length"), POSITIONS)
def test_windows_are_no_longer_than_the_model_has_positions(
    model_type: str, positions: int, length: int, text: Path, tmp_path: Path
) -> None:
    """With the tokens that begin and end a text: measured, over no fewer predicted tokens than are needed."""
    build(tmp_path, model_type, tied=True, max_position_embeddings=positions, n_positions=positions, pad_token_id=0)
    words = np.random.default_rng(0).integers(4, VOCABULARY - PADDING, 3000)  # no padding, whose position is no other's
    (tmp_path / "text").write_text(" ".join(f"w{word}" for word in words))
    for path in (text, tmp_path / "text"):
        found = reference(tmp_path, path)
        assert found.windows.shape[1] == length
        assert figure(tieconv.analyze(tmp_path, text=path), "Gradients", "share of the output end").n == found.predicted
        assert found.predicted >= 256


def test_what_the_class_cannot_run_is_an_error_of_the_model(text: Path, tmp_path: Path) -> None:
    """MPT counts its positions in a key of its own: one sentence about the model, and no bug in tieconv."""
    build(tmp_path, "mpt", tied=True, max_seq_len=16, d_model=32, n_heads=4, n_layers=2)
    told = refused(f"analyze --text {text}", tmp_path)
    assert "the model cannot be run on 128 tokens of text" in told and "unexpected" not in told
