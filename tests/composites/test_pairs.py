"""Classes on other text parts than their own, as files: what transformers makes of them, and of what verbs write."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tieconv as api
from fixtures import families, zoo
from tests.composites import pairs
from tests.reload.layouts import Subject
from tests.reload.record import kind
from tests.reload.walk import Walk
from tieconv.architectures import class_table as table, lookup
from tieconv.errors import RefusedError

SAMPLE = (
    "VisionEncoderDecoderModel[decoder=roberta]",
    "VisionEncoderDecoderModel[decoder=trocr]",
    "SpeechEncoderDecoderModel[decoder=bart]",
    "Blip2ForConditionalGeneration[text_config=t5]",
    "EncoderDecoderModel[decoder=gpt2]",
    "LlavaForConditionalGeneration[text_config=gpt_neox]",
    "LlavaForConditionalGeneration[text_config=qwen2]",
)
"""Those that were the gravest: TrOCR, Donut's kind, speech to text, BLIP-2 on T5, LLaVA on other models."""
WALKED = (SAMPLE[0], SAMPLE[3], SAMPLE[6])


def shipped(spec: str) -> object:
    """The record that the lookup composes for a pair."""
    chosen = zoo.pair(spec)
    assert chosen is not None
    name, level, model_type = chosen
    composite, own = table.composite(name), table.record(5, name)
    assert composite is not None and own is not None
    part = next(part for part in composite["parts"] if part["level"] == level)
    record = composite.get("measured", {}).get(f"{level}={model_type}") or lookup.composed(own, part, model_type)
    return record and {key: value for key, value in json.loads(json.dumps(record)).items() if key != "notes"}


def measured(spec: str) -> object:
    """The record of the pair itself."""
    record = json.loads(json.dumps(families.measure(spec)))
    return {key: value for key, value in record.items() if key != "notes"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", SAMPLE)
def test_the_composed_record_is_the_measured_one(spec: str) -> None:
    """The rows of both classes, composed by prefix, say what the built pair does."""
    assert shipped(spec) == measured(spec)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spec", SAMPLE)
def test_what_transformers_saved_passes_and_predictions_hold(spec: str, tmp_path: Path) -> None:
    """No finding above a note on a healthy model, and transformers 5 loads what was predicted."""
    assert pairs.wrong(spec, tmp_path) == []


def walked(spec: str, folder: Path) -> list[str]:
    """The verbs whose result does not load as the same function."""
    try:
        subject = Subject(spec)
    except AttributeError:  # transformers 5 cannot build it tied: there is nothing to untie
        assert "E" in pairs.family(spec).truth
        return []
    verdicts = Walk(subject, "single", folder).run()
    kinds = {kind(verdict) for verdict in verdicts.values()}
    if kinds == {"not judged"}:
        pytest.skip(next(iter(verdicts.values())))
    assert "exact" in kinds
    return [f"{verb}: {verdict}" for verb, verdict in verdicts.items() if kind(verdict) == "wrong"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("spec", WALKED)
def test_verbs_keep_the_function(spec: str, tmp_path: Path) -> None:
    """What each verb writes loads with equal logits, or is refused with a reason."""
    assert walked(spec, tmp_path) == []


def test_a_tie_that_transformers_5_cannot_build_is_an_error(tmp_path: Path) -> None:
    """LLaVA on GPT-NeoX with a true flag: neither version is claimed to load it, and `set-tie true` is refused."""
    spec = "LlavaForConditionalGeneration[text_config=gpt_neox]"
    with pytest.raises(AttributeError):
        zoo.build(spec, tie=True)
    folder = tmp_path / "m"
    zoo.build(spec, tie=False).save_pretrained(folder)
    with pytest.raises(RefusedError, match="always has a separate head"):
        api.plan_set_tie("true", folder)
    config = json.loads((folder / "config.json").read_text())
    config["tie_word_embeddings"] = config["text_config"]["tie_word_embeddings"] = True
    (folder / "config.json").write_text(json.dumps(config))
    inspection = api.inspect(folder)
    found = pairs.predictions(inspection)
    assert (found["5.x"][0], found["4.57"][0]) == ("error", "unknown")
    assert inspection.config.effect.startswith("Not loaded: transformers 5 cannot build")
    assert [(finding.rule, finding.level) for finding in inspection.findings] == [("CON003", "error")]


@pytest.mark.parametrize(
    ("spec", "changed"), [("GlmAsrForConditionalGeneration[text_config=gpt2]", ["n_embd", "n_layer"]), (SAMPLE[6], [])]
)
def test_sizes_that_are_not_read_back_are_named(spec: str, changed: list[str], tmp_path: Path) -> None:
    """GLM-ASR puts the sizes of its own text part into every other."""
    assert pairs.resized(spec, tmp_path) == changed


@pytest.mark.matrix
@pytest.mark.parametrize("spec", pairs.specs())
def test_every_pair(spec: str, tmp_path: Path) -> None:
    """All that was measured: the record, the gate, the predictions and the verbs."""
    one, other = shipped(spec), measured(spec)
    assert one == other
    if changed := pairs.resized(spec, tmp_path / "config"):
        pytest.skip(f"transformers 5 does not read back {', '.join(changed)} as it saved it")
    assert walked(spec, tmp_path / "verbs") == []
    assert pairs.wrong(spec, tmp_path / "files") == []
