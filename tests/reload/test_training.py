"""Checkpoints of a training run: whether it can go on from the model that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tieconv
from fixtures import zoo
from tests.reload.judge import save

NAME, SAVED = "LlamaForCausalLM", "optimizer.pt"


def optimizer(folder: Path) -> Any:
    return torch.optim.AdamW(zoo.model_class(NAME).from_pretrained(folder).parameters())


@pytest.mark.parametrize("tie", [True, False])
def test_what_training_cannot_resume_from_is_said(tie: bool, tmp_path: Path) -> None:
    """Tied and untied models have another number of parameters, and torch refuses the optimizer of the other."""
    model = save(NAME, tmp_path / "model", "single", tie=tie)
    if not tie:
        tieconv.plan_untie(save(NAME, tmp_path / "tied", "single", tie=True)).execute(model, overwrite=True)
    torch.save(optimizer(model).state_dict(), model / SAVED)
    planned = tieconv.plan_untie(model) if tie else tieconv.plan_retie(model)
    planned.execute(tmp_path / "out")
    with pytest.raises(ValueError, match="parameter group"):
        optimizer(tmp_path / "out").load_state_dict(torch.load(tmp_path / "out" / SAVED))
    assert [note for note in planned.plan.notes if SAVED in note and "cannot resume" in note]


def test_a_copy_that_is_dropped_stops_no_training(tmp_path: Path) -> None:
    """Where the model stays tied its parameters do, and nothing is said."""
    tied = save(NAME, tmp_path / "tied", "single", tie=True)
    tieconv.plan_untie(tied, keep_flag=True).execute(tmp_path / "copied")
    torch.save(optimizer(tied).state_dict(), tmp_path / "copied" / SAVED)
    planned = tieconv.plan_retie(tmp_path / "copied")
    planned.execute(tmp_path / "out")
    optimizer(tmp_path / "out").load_state_dict(torch.load(tmp_path / "out" / SAVED))
    assert planned.plan.notes == ()
