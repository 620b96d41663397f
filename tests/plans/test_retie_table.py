"""`plan_retie` on each layout: the code of its refusal, or every operation that it plans."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.checks.fixtures.model import (
    BART,
    BERT,
    HEAD,
    LLAMA,
    Config,
    Tensors,
    bert,
    flagged,
    llama,
    matrix,
    save,
    vector,
)
from tests.checks.fixtures.tie import bart
from tieconv.errors import RefusedError
from tieconv.plans.verbs.retie import Survivor

TIED, UNTIED = flagged(LLAMA, True), flagged(LLAMA, False)
FORCE = {"force": True}
CASES: dict[str, tuple[Config, Tensors, dict[str, object]]] = {
    "untied copy": (UNTIED, llama(head=matrix()), {}),
    "tied copy": (TIED, llama(head=matrix()), {}),
    "already tied": (TIED, llama(), {}),
    "head alone": (TIED, {HEAD: matrix(), "model.norm.weight": vector(4)}, {}),
    "placeholder": (TIED, llama(head=np.zeros((0, 4), "<f4")), {}),
    "other": (UNTIED, llama(head=matrix(seed=1)), {}),
    "other, survivor without force": (UNTIED, llama(head=matrix(seed=1)), {"survivor": Survivor.HEAD}),
    "other, force without survivor": (UNTIED, llama(head=matrix(seed=1)), FORCE),
    "other, keep the embedding": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.EMBED}),
    "other, keep the head": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.HEAD}),
    "other, keep the mean": (UNTIED, llama(head=matrix(seed=1)), {**FORCE, "survivor": Survivor.MEAN}),
    "transposed": (TIED, llama(head=matrix().T), {}),
    "transposed, by force": (TIED, llama(head=matrix().T), {**FORCE, "survivor": Survivor.HEAD}),
    "longer": (TIED, llama(head=matrix(9)), {}),
    "longer, by force": (TIED, llama(head=matrix(9)), {**FORCE, "survivor": Survivor.EMBED}),
    "scaled": (TIED, llama(head=matrix() * 2), {}),
    "biases differ": (flagged(BERT, True), bert(outer=vector(), inner=vector(seed=1)), {}),
    "biases differ, by force": (
        flagged(BERT, True),
        bert(outer=vector(), inner=vector(seed=1)),
        {**FORCE, "survivor": Survivor.EMBED},
    ),
    "BART, every copy": (flagged(BART, False), {**bart("encoder", "decoder"), HEAD: matrix()}, {}),
    "BART, one copy": (flagged(BART, False), {**bart("encoder"), HEAD: matrix()}, {}),
    "BART, head of its own": (flagged(BART, False), bart("encoder", "decoder"), {}),
    "BART, keep the head": (flagged(BART, False), bart("encoder", "decoder"), {**FORCE, "survivor": Survivor.HEAD}),
    "BART, halves alone": (
        flagged(BART, True),
        {key: one for key, one in bart("encoder", "decoder").items() if "coder" in key},
        {},
    ),
}
EXPECTED = json.loads(Path(__file__).with_name("retie.json").read_text(encoding="utf-8"))
"""The code of each refusal, or the operations and notes of each plan."""


def answer(path: Path, options: dict[str, object]) -> list[str]:
    try:
        plan = tieconv.plan_retie(path, **options).plan
    except RefusedError as error:
        assert error.hint
        return [error.code]
    return [*map(str, plan.operations), *plan.notes]


def test_every_entry_has_a_case() -> None:
    """No answer is left of a case that is gone."""
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.parametrize("case", CASES)
def test_answer(case: str, tmp_path: Path) -> None:
    """The exact code, or the exact operations in their order and every note."""
    config, tensors, options = CASES[case]
    assert answer(save(tmp_path / "model", config, tensors), options) == EXPECTED[case]
