"""Which level of the config each transformers version reads, with a null beside another level."""

from __future__ import annotations

from pathlib import Path

import pytest

import tieconv as api
from tests.checks.fixtures.model import GEMMA3, INTERNVL, LLAMA, NESTED_EMBED, Config, llama, matrix, save
from tieconv.architectures.effective_flag import levels, reading_v4

ABSENT = object()


def config(base: Config, top: object, nested: object) -> Config:
    """The class with the flag at the top and in the text part; `ABSENT` leaves it out."""
    value = {} if top is ABSENT else {"tie_word_embeddings": top}
    inner = {} if nested is ABSENT else {"tie_word_embeddings": nested}
    return {**base, **value, "text_config": {**base["text_config"], **inner}}


@pytest.mark.parametrize(
    ("top", "nested", "expected", "older"),
    [
        (True, True, {"": True, "text_config": True}, True),
        (True, False, {"": True, "text_config": False}, False),
        (False, True, {"": False, "text_config": True}, True),
        (True, None, {"": True}, False),
        (False, None, {"": False}, False),
        (None, True, {"text_config": True}, True),
        (None, False, {"text_config": False}, False),
        (None, None, {}, False),
        (ABSENT, None, {}, False),
        (None, ABSENT, {}, True),
        (ABSENT, ABSENT, {}, True),
    ],
)
def test_a_null_beside_another_level(
    top: object, nested: object, expected: dict[str, bool], older: bool, tmp_path: Path
) -> None:
    """A null declares nothing; where transformers 4 looks, it replaces the class's default by false."""
    inspection = api.inspect(save(tmp_path / "model", config(GEMMA3, top, nested), {NESTED_EMBED: matrix()}))
    assert levels(inspection) == expected
    assert reading_v4(inspection) is older


def test_only_the_level_that_a_version_reads(tmp_path: Path) -> None:
    """InternVL's text part is read by transformers 4 alone, and the top by 5 alone."""
    inspection = api.inspect(save(tmp_path / "model", config(INTERNVL, ABSENT, ABSENT), {NESTED_EMBED: matrix()}))
    assert (levels(inspection), reading_v4(inspection), inspection.config.effective) == ({}, False, True)


def test_a_null_at_the_only_level(tmp_path: Path) -> None:
    """A flat class has one level; what is not text of it is no level."""
    path = save(
        tmp_path / "model",
        {**LLAMA, "tie_word_embeddings": None, "vision_config": {"tie_word_embeddings": True}},
        llama(),
    )
    inspection = api.inspect(path)
    assert (levels(inspection), reading_v4(inspection)) == ({}, False)
