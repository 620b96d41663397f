"""Models that are as they should be get no error and no warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv
import tieconv as api
from fixtures import zoo
from tests.checks.fixtures.model import (
    BART,
    BERT,
    GEMMA,
    GEMMA3,
    KIMI,
    LLAMA,
    NESTED_EMBED,
    T5,
    Config,
    Tensors,
    bert,
    flagged,
    gptq,
    llama,
    matrix,
    save,
    vector,
)
from tests.checks.measure import RECORD, TIES, measure
from tieconv.checkpoint.inspection import Depth
from tieconv.checks import is_plain
from tieconv.checks.registry import run_all

QWEN2_VL: Config = {
    **LLAMA,
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "vision_config": {"depth": 1},
}
SHARED = {"model.shared.weight": matrix(), "final_logits_bias": np.zeros((1, 8), "<f4")}

PLAIN: dict[str, tuple[Config | None, Tensors]] = {
    "a tied Llama": (flagged(LLAMA, True), llama()),
    "an untied Llama": (flagged(LLAMA, False), llama(head=matrix(seed=1))),
    "a Llama without the flag": (LLAMA, llama(head=matrix(seed=1))),
    "a Gemma without the flag": (GEMMA, llama()),
    "an encoder without head": (
        {**BERT, "architectures": ["BertModel"]},
        {"embeddings.word_embeddings.weight": matrix()},
    ),
    "a reward model": (
        {**LLAMA, "architectures": ["LlamaForSequenceClassification"], "tie_word_embeddings": True},
        {**llama(), "score.weight": matrix(1)},
    ),
    "a bare sequence-to-sequence body": ({**BART, "architectures": ["BartModel"]}, {"shared.weight": matrix()}),
    "a BERT of transformers 4": (BERT, bert(outer=vector())),
    "a BERT with both names of its bias": (BERT, bert(outer=vector(), inner=vector())),
    "an untied BERT": (flagged(BERT, False), bert(head=matrix(seed=1), outer=vector(), inner=vector())),
    "a tied BART": (BART, SHARED),
    "a T5": (T5, {"shared.weight": matrix()}),
    "a T5 with a head of its own": (flagged(T5, False), {"shared.weight": matrix(), "lm_head.weight": matrix(seed=1)}),
    "a class that never ties": (flagged(KIMI, True), llama(head=matrix(seed=1))),
    "a vision-language model": (flagged(GEMMA3, True, text_config=True), {NESTED_EMBED: matrix()}),
    "a vision-language model with a flat config": (flagged(QWEN2_VL, True), llama()),
    "a quantised untied head": (flagged(LLAMA, False), {**llama(), **gptq()}),
    "small equal tensors": (
        flagged(LLAMA, True),
        {**llama(), "model.layers.0.norm.weight": vector(4), "model.layers.1.norm.weight": vector(4)},
    ),
}


@pytest.mark.parametrize("case", PLAIN)
@pytest.mark.parametrize("depth", ["header", "candidates", "full"])
def test_plain_model_has_no_finding(case: str, depth: str, tmp_path: Path) -> None:
    """Silence is the promise that makes findings worth reading."""
    config, tensors = PLAIN[case]
    assert api.inspect(save(tmp_path / "model", config, tensors), depth=depth).findings == ()


@pytest.mark.matrix
@pytest.mark.parametrize("title", list(TIES))
def test_every_class_as_saved_is_silent(title: str) -> None:
    """What `save_pretrained` of the installed transformers writes has neither errors nor warnings."""
    pytest.importorskip("transformers")
    measured: Any = measure({title: TIES[title]})
    assert measured["runs"][title]["loud"] == {}


def test_the_published_count_is_of_every_class_and_zero() -> None:
    """docs/check.md quotes this record: all classes that build, no error, no warning.

    The config of one class makes the flag true in a file. Built untied in memory, it has tables that transformers 4.57
    ignores.
    """
    record = json.loads(RECORD.read_text())
    assert record["classes"] == len(set(zoo.classes()) - set(zoo.UNBUILDABLE))
    for title, run in record["runs"].items():
        assert [*run["loud"]] == ["Pop2PianoForConditionalGeneration"] * (title == "untied"), title
        assert run["checked"] + len(run["refused"]) == record["classes"]


def test_the_shortcut_for_plain_models_hides_nothing(models: Path, tmp_path: Path) -> None:
    """Where a model is called plain, all rules together find nothing; and some models are called plain."""
    plain = 0
    for folder in models.iterdir():
        for depth in Depth:
            inspection = tieconv.inspect(folder, depth=depth)
            if is_plain(inspection):
                plain += 1
                assert run_all(inspection) == ()
    assert plain >= 9
