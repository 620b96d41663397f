"""What was written is judged by transformers: every verb, class and layout, held to the record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tieconv
from fixtures import zoo
from tests.reload.judge import differences, head_factor, load, save
from tests.reload.layouts import FAST, LAYOUTS, SAMPLE, Subject
from tests.reload.record import PROPERTY, counts, flat, kind, read
from tests.reload.walk import EXACT, VERBS, Walk
from tests.slow import fast_only
from tieconv.architectures import find
from tieconv.checkpoint.family import FlagMeaning, Tying

REFUSED = {
    "UMT5ForConditionalGeneration": "scales its logits by the flag in one transformers major version",
    "MT5ForConditionalGeneration": "scales its logits by the flag in one transformers major version",
    "ReformerModelWithLMHead": "never ties",
    "RemBertForMaskedLM": "never ties",
    "ZambaForCausalLM": "share one transformer block",
    "ElectraForPreTraining": "no output embedding",
    "PerceiverForMaskedLM": "no second tensor",
    "Pop2PianoForConditionalGeneration": "never ties",
}
ROTATED = tuple(layout for layout in LAYOUTS if layout != "bin")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", fast_only(SAMPLE, FAST))
def test_every_verb_keeps_the_function(name: str, tmp_path: Path) -> None:
    """In `.bin` and in one more layout, in turn: exact or refused, as the record of the matrix says."""
    recorded = read()[1][name]
    subject = Subject(name)
    for layout in ("bin", ROTATED[SAMPLE.index(name) % len(ROTATED)]):
        verdicts = Walk(subject, layout, tmp_path / layout).run()
        assert kind(verdicts["untie"]) == ("refused" if name in REFUSED else "exact"), verdicts["untie"]
        assert REFUSED.get(name, "") in verdicts["untie"]
        expected = {verb: kind(verdict) for verb, verdict in recorded[layout].items()}
        assert {verb: kind(verdict) for verb, verdict in verdicts.items()} == expected, verdicts


def test_the_sample_is_wide() -> None:
    """At least 60 classes that can be untied, from every auto mapping."""
    assert len(set(SAMPLE)) == len(SAMPLE)
    assert set(SAMPLE) <= set(zoo.classes())
    assert len(set(SAMPLE) - REFUSED.keys()) >= 60


def test_the_record_is_whole() -> None:
    """Every class that builds, every layout, every verb; nothing wrong and nothing unjudged."""
    header, rows = read()
    assert sorted(rows) == zoo.built()
    assert (tuple(header["layouts"]), tuple(header["verbs"])) == (LAYOUTS, VERBS)
    assert {kind(verdict) for *_, verdict in flat(rows)} == {"exact", "refused", "not reached"}
    assert header["unbuildable"] == zoo.UNBUILDABLE


@pytest.mark.slow
def test_what_ties_by_the_flag_alone_is_exact() -> None:
    """A class that the table says to tie by a flag about storage is refused by no verb, in no layout."""
    plain = VERBS[: VERBS.index("convert back") + 1]
    for name, layouts in read()[1].items():
        family = find({"architectures": [name]})
        scales = {family.meaning_v5, family.meaning_v4} != {FlagMeaning.STORAGE} or head_factor(name) != 1.0
        if family.tying is not Tying.CAN or family.unflippable or scales:
            continue
        for layout, verdicts in layouts.items():
            assert {verdicts[verb].split(",")[0] for verb in plain} == {EXACT}, (name, layout, verdicts)


def test_another_head_is_never_dropped() -> None:
    """Where the two tables differ, retie and `set-tie true` refuse, or transformers gives the same logits."""
    found = counts(read()[1])
    assert set().union(*(words for words in found["retie, heads differ"].values())) == {"refused"}
    assert sum(words["refused"] for words in found["set-tie true, heads differ"].values()) > 300 * len(LAYOUTS)


KINDS = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "PhiForCausalLM", "BertForMaskedLM", "XLMRobertaForMaskedLM",
    "ModernBertForMaskedLM", "BartForConditionalGeneration", "MarianMTModel", "T5ForConditionalGeneration",
    "SwitchTransformersForConditionalGeneration", "WhisperForConditionalGeneration", "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
)  # fmt: skip
FAST_VERBS = {
    "LlamaForCausalLM": "sharded", "GPT2LMHeadModel": "single", "PhiForCausalLM": "single",
    "BertForMaskedLM": "sharded", "MarianMTModel": "single", "T5ForConditionalGeneration": "single",
    "WhisperForConditionalGeneration": "sharded", "Gemma3ForConditionalGeneration": "single",
}  # fmt: skip
"""The layout in which a class is judged in every run."""
SAVED_FALSE_BELOW = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=() if layout == FAST_VERBS.get(name) else pytest.mark.slow)
        for name in KINDS
        for layout in ("single", "sharded")
    ],
)
def test_copies_are_seen_through_and_dropped_again(name: str, layout: str, tmp_path: Path) -> None:
    """Untied, and tied with every copy written out, it is the same function; dedup gives back the first names."""
    tied = save(name, tmp_path / "tied", layout, tie=True)
    tieconv.plan_untie(tied).execute(tmp_path / "untied")
    tieconv.plan_untie(tied, keep_flag=True).execute(tmp_path / "copies")
    for other in ("untied", "copies"):
        comparison = tieconv.diff(tied, tmp_path / other)
        assert comparison.same_function, comparison.reasons
    tieconv.plan_dedup(tmp_path / "copies").execute(tmp_path / "once")
    names = [set(tieconv.inspect(path).checkpoint.tensors) for path in (tied, tmp_path / "once")]
    assert names[0] == names[1]
    assert tieconv.plan_set_tie("auto", tied).plan.changes_nothing
    before, after = load(name, tied), load(name, tmp_path / "once")
    assert differences(before, after, shares_head=before.shares_head) == []


@pytest.mark.parametrize("name", SAVED_FALSE_BELOW)
def test_a_nested_flag_that_transformers_4_obeys(name: str, tmp_path: Path) -> None:
    """5.23 saves these with a nested flag of false: version 4 then has no head, which untying cures and diff tells."""
    tied = save(name, tmp_path / "tied", "single", tie=True)
    tieconv.plan_untie(tied).execute(tmp_path / "untied")
    comparison = tieconv.diff(tied, tmp_path / "untied")
    assert [found.loaders for found in comparison.tensors] == [("transformers 4",)]
    outcome = tieconv.plan_set_tie("auto", tied).execute(tmp_path / "cured")
    assert not outcome.plan.changes_nothing
    assert tieconv.diff(tmp_path / "cured", tmp_path / "untied").same_function


CLASSES = sorted(read()[1])  # `zoo.built()`, as `test_the_record_is_whole` says


@pytest.mark.matrix
@pytest.mark.parametrize("name", CLASSES)
def test_every_class(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """What each verb writes loads as the same function, bit for bit; what it does not write, it refuses with a reason.

    The end of the run prints the counts, and records docs/measured/matrix.json when all classes were judged.
    """
    subject = Subject(name)
    verdicts = {}
    for layout in LAYOUTS:
        verdicts[layout] = Walk(subject, layout, tmp_path / layout).run()
        shutil.rmtree(tmp_path / layout)
    record_property(PROPERTY, {"class": name, "total": len(CLASSES), "layouts": verdicts})
    each = [(layout, *verb) for layout, found in verdicts.items() for verb in found.items()]
    assert not [f"{layout} {verb}: {verdict}" for layout, verb, verdict in each if kind(verdict) == "wrong"]
