"""What was written is judged by transformers: the sample in every run, held to the record of all classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures import zoo
from tests.reload.judge import head_factor
from tests.reload.layouts import LAYOUTS, Subject
from tests.reload.record import counts, flat, kind, read
from tests.reload.sample import FAST, SAMPLE
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
