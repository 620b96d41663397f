"""Long sequences, sliding windows and large batches: which shapes are measured, and what is left out for memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.onnx.exported import make
from tieconv import inspect
from tieconv.onnx.parity.batches import BEYOND, LONG, single_seed_cells
from tieconv.onnx.parity.bindings import Bindings, Kind
from tieconv.onnx.parity.measured_pair import WIDEST, Subject, planned_window, reference_bytes
from tieconv.onnx.parity.passes import make_work, pieces, run_model
from tieconv.reference import Batch, load, position_limit

FREE = 1 << 30


@pytest.mark.parametrize("kind", Kind)
def test_a_long_sequence_and_six_rows(kind: Kind) -> None:
    """Every kind has a sequence of 144 tokens, and six rows with as many different masks."""
    made = list(single_seed_cells(kind, 1 << 20))
    assert max(max(cell.past, cell.sequence) for cell in made) == LONG >= 128
    six = [cell for cell in made if cell.batch == 6]
    assert six and all(len({str(cell.masked(row, 14)) for row in range(6)}) == 6 for cell in six)
    longer = {cell.length for cell in single_seed_cells(kind, 100)} if not kind.encodes else {100}
    assert max(longer) == 100


@pytest.mark.parametrize("window", [1, 4, 20, 48, 512, WIDEST])
def test_a_window_is_crossed(window: int) -> None:
    """One pass and cached steps begin before the end of the window and end behind it, if nothing shorter does."""
    made = list(single_seed_cells(Kind.CACHED, 1 << 20, window=window))
    assert max(cell.sequence for cell in made if not cell.past) >= window + BEYOND
    stepped = [cell for cell in made if cell.steps]
    assert all(cell.past < window + 1 and cell.length >= window + BEYOND for cell in stepped)
    assert bool(stepped) == (window != 20)  # the prompt of five with 32 steps crosses this one
    assert all(pieces(cell, Kind.CACHED) == (cell.past, *[1] * cell.steps) for cell in stepped)
    long = [cell for cell in made if cell.sequence > LONG]
    assert all(cell.judged == 2 * BEYOND for cell in long)


def test_a_window_beyond_the_positions_is_not_crossed() -> None:
    """A model of 40 positions cannot leave a window of 48."""
    assert not [cell for cell in single_seed_cells(Kind.CACHED, 40, window=48) if cell.steps or cell.judged_last]


def subject(tmp_path: Path, window: int) -> Subject:
    make("mistral-48").save_pretrained(tmp_path)
    config = SimpleNamespace(sliding_window=window, num_attention_heads=4, vocab_size=1021)
    return Subject(None, inspect(tmp_path, depth="header"), "cpu", "float32", None, config)  # type: ignore[arg-type]


def test_a_window_that_is_not_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window wider than the limit, and one whose sequence does not fit into memory."""
    monkeypatch.setattr("tieconv.onnx.parity.measured_pair.available_memory", lambda: FREE)
    assert planned_window(subject(tmp_path, 48)) == (48, "")
    window, note = planned_window(subject(tmp_path, WIDEST + 1))
    assert (window, "4097 tokens was not measured" in note) == (0, True)
    window, note = planned_window(subject(tmp_path, WIDEST))
    assert (window, "needs 1.11 GB of memory, but only 1.07 GB is free" in note) == (0, True), note
    wide = subject(tmp_path, 48)
    assert reference_bytes(wide, 100) == reference_bytes(wide, 0) + 8 * (100 * 1021 + 2 * 4 * 100 * 100)


def test_positions_that_begin_after_the_padding() -> None:
    """RoBERTa numbers positions from the padding token's id on, so a few of its table are never reached."""
    config = SimpleNamespace(max_position_embeddings=130, pad_token_id=1, model_type="roberta")
    assert position_limit(config) == 128
    assert position_limit(SimpleNamespace(max_position_embeddings=130, pad_token_id=1, model_type="bert")) == 130
    assert position_limit(SimpleNamespace()) is None
    assert position_limit(SimpleNamespace(max_position_embeddings=0)) is None


def test_the_reference_runs_once_for_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence in one pass and in steps is one batch of the reference, and only the judged logits are computed."""
    made = subject(tmp_path, 48)
    model = load(str(tmp_path), made.evidence.checkpoint.config_values, "float64")
    bindings = Bindings(Kind.CACHED, {}, (), (), "logits")
    work = make_work(bindings, model.model.config, 48)
    seen: list[Any] = []
    stored: dict[object, torch.Tensor] = {}
    genuine = model.logits

    def logits(batch: Batch, last: int) -> torch.Tensor:
        seen.append((tuple(batch.ids.shape), last))
        return genuine(batch, last)

    monkeypatch.setattr(model, "logits", logits)
    run_model(model, work, SimpleNamespace(put=stored.__setitem__), "reference")  # type: ignore[arg-type]
    assert len(seen) < len(work.cells) == len(stored)
    assert seen.count(((1, 128), 128)) == 1
    for cell in work.cells:
        again = work.judged(cell, genuine(work.batch(cell)))
        assert torch.allclose(again, stored["reference", cell], rtol=0, atol=1e-11)
    assert replace(work, window=0).cells != work.cells
