"""`diff`, `dedup` and `set-tie` on what transformers saves, for one class of each way to tie, bias and scale."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv
from tests.reload.judge import differences, load, save

KINDS = (
    "LlamaForCausalLM", "GPT2LMHeadModel", "PhiForCausalLM", "BertForMaskedLM", "XLMRobertaForMaskedLM",
    "ModernBertForMaskedLM", "BartForConditionalGeneration", "MarianMTModel", "T5ForConditionalGeneration",
    "SwitchTransformersForConditionalGeneration", "WhisperForConditionalGeneration", "Gemma3ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
)  # fmt: skip
FAST = {
    "LlamaForCausalLM": "sharded", "GPT2LMHeadModel": "single", "PhiForCausalLM": "single",
    "BertForMaskedLM": "sharded", "MarianMTModel": "single", "T5ForConditionalGeneration": "single",
    "WhisperForConditionalGeneration": "sharded", "Gemma3ForConditionalGeneration": "single",
}  # fmt: skip
"""The layout in which a class is judged in every run."""
SAVED_FALSE_BELOW = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        pytest.param(name, layout, marks=() if layout == FAST.get(name) else pytest.mark.slow)
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
