"""Predictions are what the loaders do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.consumers import grid
from tests.consumers.compare import match

RESULTS = Path(__file__).parents[2] / "docs" / "measured" / "consumers.json"
STEP = 5
"""The ordinary run judges every fifth checkpoint: no property has five values, so all of them occur."""


def spread(kind: str) -> list[grid.Cell]:
    return [cell for place, cell in enumerate(grid.cells()) if place % STEP == 0 and cell.kind == kind]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", grid.PLAN)
def test_transformers_does_what_is_predicted(kind: str, tmp_path: Path) -> None:
    """Tied, untied, random, discarded or refused, and which bias is lost: as `from_pretrained` has it."""
    wrong = [str(found) for found in match(spread(kind), "transformers>=5.4", tmp_path) if not found.agrees]
    assert not wrong


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", grid.PLAN)
def test_load_model_does_what_is_predicted(kind: str, tmp_path: Path) -> None:
    """The same for `safetensors.torch.load_model`."""
    wrong = [str(found) for found in match(spread(kind)[::2], "safetensors", tmp_path) if not found.agrees]
    assert not wrong


@pytest.mark.matrix
@pytest.mark.parametrize("spec", ["transformers>=5.4", "safetensors"])
def test_the_whole_grid(spec: str, tmp_path: Path) -> None:
    """Every checkpoint of the grid."""
    wrong = [str(found) for found in match(grid.cells(), spec, tmp_path) if not found.agrees]
    assert not wrong


def test_the_grid_is_wide() -> None:
    """At least 500 checkpoints, each flag at each level, each state of head, embedding and bias."""
    cells = list(grid.cells())
    assert len(cells) == len(set(cells)) >= 500
    assert {cell.head for cell in cells} == set(grid.HEADS)
    assert {flag for cell in cells for flag in cell.flags} == set(grid.FLAGS)
    assert {len(cell.flags) for cell in cells} == {1, 2}
    assert {cell.format for cell in cells} == {"safetensors", "torch"}


def test_the_published_figures_are_of_this_grid() -> None:
    """docs/measured/consumers.json covers the grid for transformers and safetensors, without a wrong claim."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    from tieconv.loaders.registry import CONSUMERS

    here = ("transformers", "safetensors")
    measured = {f"{consumer.name} {consumer.version}" for consumer in CONSUMERS if consumer.name in here}
    measured.remove("transformers 5.0")  # docs/measured/oracles has it

    assert {entry["consumer"] for entry in results} == measured
    for entry in results:
        assert entry["checkpoints"] == len(list(grid.cells()))
        assert entry["agree"] + entry["no_claim"] + len(entry["wrong"]) == entry["checkpoints"]
        assert entry["wrong"] == []
