"""The list of planted faults: every fault fails, besides those that parity cannot see, and it says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.onnx.planted.catalogue import FAST, FAULTS, FILE, NAMED, UNSEEN, fault_row, pairs
from tests.onnx.planted.once import torch_once

ROWS: list[dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))["rows"]


def test_the_list_is_whole() -> None:
    """At least 60 planted faults in at least six families, and each of the list was measured."""
    assert sorted((row["fault"], row["model"]) for row in ROWS) == sorted(pairs())
    assert len(ROWS) >= 60 and len(FAULTS) >= 40
    assert len({row["model"].partition("-")[0] for row in ROWS}) >= 6


def test_every_missed_fault_has_a_reason() -> None:
    """A fault that passed is one of those that cannot be seen."""
    for row in ROWS:
        assert row["verdict"] == ("passed" if row["fault"] in UNSEEN else "failed"), row
        assert row.get("unseen", "") == (UNSEEN[row["fault"]] if row["verdict"] == "passed" else "")
        assert bool(row["failed"]) == (row["verdict"] == "failed")


def test_the_cause_is_the_constant_that_is_wrong() -> None:
    """Each wrong constant is named with the model's number, and a constant is never named for another fault."""
    rows = [row for row in ROWS if row["fault"] in NAMED]
    assert len({row["model"] for row in rows}) >= 8
    for row in ROWS:
        cause = row["cause"]
        if row["fault"] in NAMED:
            assert cause.endswith(NAMED[row["fault"]]), row
        else:
            assert not cause or "left padding" in cause, row


def again(exported: Any, folder: Path, label: str, name: str) -> None:
    made = exported(name)
    (published,) = [row for row in ROWS if (row["fault"], row["model"]) == (label, name)]
    row = fault_row(label, name, made.graph, made.model, folder)
    for key in ("verdict", "failed", "cause"):
        assert row[key] == published[key]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for _, name in FAST}))
def test_a_few_faults_fail(exported, tmp_path: Path, name: str) -> None:
    """Measured again, verdict and gates are those of the list."""
    with torch_once():
        for label in (label for label, model in FAST if model == name):
            again(exported, tmp_path, label, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({name for _, name in pairs()}))
def test_the_list_is_true(exported, tmp_path: Path, name: str) -> None:
    """All of it, measured again."""
    with torch_once():
        for label in (label for label, model in pairs() if model == name):
            again(exported, tmp_path, label, name)
