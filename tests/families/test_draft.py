"""Draft models borrow from their target: nothing is missing from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tieconv as api
from tests.checks.fixtures.model import EMBED, LLAMA, Array, matrix, save, vector

MAPS = {"d2t": vector(4), "t2d": vector(8)}


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, {"fc.weight": matrix(4, 12)}),
        ({**LLAMA, "draft_vocab_size": 4}, {"fc.weight": matrix(4, 12), "lm_head.weight": matrix(4)}),
        (LLAMA, {"fc.weight": matrix(4, 12), "lm_head.weight": matrix(4), **MAPS}),
    ],
    ids=["class", "config", "tensors"],
)
@pytest.mark.parametrize("tied", [True, False, None])
def test_drafts_are_silent(
    config: dict[str, Any], tensors: dict[str, Array], tied: bool | None, tmp_path: Path
) -> None:
    flag = {} if tied is None else {"tie_word_embeddings": tied}
    inspection = api.inspect(save(tmp_path / "model", config | flag, tensors))
    assert (inspection.findings, inspection.ties) == ((), ())
    assert "draft" in inspection.config.why


def test_vision_language_models_named_eagle_are_no_drafts(tmp_path: Path) -> None:
    config = {**LLAMA, "architectures": ["Eagle2_5_VLForConditionalGeneration"]}
    inspection = api.inspect(save(tmp_path / "model", config, {EMBED: matrix()}))
    assert "draft" not in inspection.config.why


def test_other_models_are_not_taken_for_drafts(tmp_path: Path) -> None:
    inspection = api.inspect(save(tmp_path / "model", LLAMA, {EMBED: matrix()}))
    assert [finding.rule for finding in inspection.findings] == ["TIE003"]
