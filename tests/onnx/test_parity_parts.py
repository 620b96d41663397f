"""The small decisions of a parity run: which plot a batch goes to, what an input is fed, what is suspected."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tieconv.checkpoint.results.parity import Case
from tieconv.onnx.parity.batches import Cell, Layout, cells, compared, make_batch
from tieconv.onnx.parity.bindings import Bindings, Kind, Role, switched
from tieconv.onnx.parity.causes import uncounted
from tieconv.onnx.parity.graph_file import Value
from tieconv.onnx.parity.judge import CELL_LIMIT
from tieconv.onnx.parity.passes import make_work

IDS, POSITIONS = Value("input_ids", "INT64", (None, None)), Value("position_ids", "INT64", (None, None))


def bindings(kind: Kind, *, positions: bool = False) -> Bindings:
    inputs = {Role.IDS: IDS} | ({Role.POSITIONS: POSITIONS} if positions else {})
    return Bindings(kind, inputs, (), (), "logits")


def case(padding: int, ratio: float | None) -> Case:
    return Case("no past", 2, 4, 0, padding, 0, None, None, ratio, None)


@pytest.mark.parametrize(
    ("sequence", "past", "padding", "steps", "group"),
    [(1, 0, 0, 0, "one token"), (2, 0, 0, 0, "no past"), (1, 3, 0, 0, "past"), (4, 3, 0, 2, "cached steps")],
)
def test_the_plot_of_a_batch(sequence: int, past: int, padding: int, steps: int, group: str) -> None:
    """Each batch goes to one plot."""
    assert Cell(1, sequence, past, padding, 0, steps).group == group


@pytest.mark.parametrize(
    ("layout", "masked", "group"),
    [
        (Layout.LEFT, [[0, 1, 2], [0]], "left padding"),
        (Layout.RIGHT, [[6, 7, 8], [8]], "right padding"),
        (Layout.HOLE, [[3, 4, 5], [3]], "hole in the mask"),
    ],
)
def test_where_a_row_is_masked(layout: Layout, masked: list[list[int]], group: str) -> None:
    """On either side or in the middle; each row has two masked positions fewer than the one before."""
    cell = Cell(2, 9, 0, 3, 0, layout=layout)
    batch = make_batch(cell, Kind.MASKED, SimpleNamespace(vocab_size=50, pad_token_id=7), types=False)
    assert [(row == 0).nonzero().flatten().tolist() for row in batch.mask] == masked
    assert (batch.ids[batch.mask == 0] == 7).all()
    assert torch.equal(compared(cell, Kind.MASKED, batch), batch.mask.bool())
    assert cell.group == group


def test_a_decoder_mask_is_fed_and_judged() -> None:
    """An encoder-decoder with a mask of its decoder is padded on both sides; without one the decoder is full."""
    value = Value("decoder_attention_mask", "INT64", ("b", "d"))
    bound = bindings(Kind.SEQ2SEQ)
    config = SimpleNamespace(vocab_size=50, pad_token_id=7)
    cell = next(cell for cell in make_work(bound, config).cells if cell.padding and cell.layout is Layout.RIGHT)
    assert make_work(bound, config).batch(cell).decoder_mask is None
    work = make_work(replace(bound, inputs=bound.inputs | {Role.DECODER_MASK: value}), config)
    batch = work.batch(cell)
    assert not batch.mask[0, -cell.padding :].any() and batch.mask[0, : -cell.padding].all()
    assert (batch.decoder_mask[0] == 0).sum() == min(cell.padding, cell.sequence - 1)
    assert torch.equal(compared(cell, Kind.SEQ2SEQ, batch), batch.decoder_mask.bool())


@pytest.mark.parametrize(
    ("kind", "right"), [(Kind.MASKED, True), (Kind.SEQ2SEQ, True), (Kind.PAIR, True), (Kind.CACHED, False)]
)
def test_which_models_are_padded_on_the_right(kind: Kind, right: bool) -> None:
    """Masked models and encoder-decoders, besides one shape on the left; decoders only on the left."""
    padded = [cell.layout for cell in cells(kind, 1 << 20) if cell.padding]
    assert (Layout.RIGHT in padded) is right and Layout.LEFT in padded


@pytest.mark.parametrize(
    ("kind", "positions", "holes"),
    [(Kind.MASKED, False, True), (Kind.SEQ2SEQ, False, True), (Kind.CACHED, True, True), (Kind.CACHED, False, False)],
)
def test_which_graphs_take_a_hole(kind: Kind, positions: bool, holes: bool) -> None:
    """Not a decoder that numbers its positions itself: how it counts those of a hole is its own choice."""
    work = make_work(bindings(kind, positions=positions), SimpleNamespace())
    assert any(cell.layout is Layout.HOLE for cell in work.cells) is holes


@pytest.mark.parametrize(
    ("kind", "positions", "placed"),
    [(Kind.MASKED, False, False), (Kind.MASKED, True, True), (Kind.PLAIN, False, True), (Kind.PLAIN, True, True)],
)
def test_who_numbers_the_positions(kind: Kind, positions: bool, placed: bool) -> None:
    """A masked model numbers its own, unless the graph asks for them; a decoder must be told."""
    assert make_work(bindings(kind, positions=positions), None).placed is placed


@pytest.mark.parametrize(
    ("padded", "plain", "suspected"),
    [
        (None, 1.0, True),
        (CELL_LIMIT + 1, 1.0, True),
        (CELL_LIMIT, 1.0, False),
        (None, None, False),
        (CELL_LIMIT + 1, CELL_LIMIT + 1, False),
    ],
)
def test_uncounted_padding_is_suspected(padded: float | None, plain: float | None, suspected: bool) -> None:
    """Where rows with padding alone err, or do not run at all."""
    found = list(uncounted([case(2, padded), case(0, plain)], bindings(Kind.PLAIN)))
    assert bool(found) is suspected
    assert list(uncounted([case(2, padded), case(0, plain)], bindings(Kind.PLAIN, positions=True))) == []


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Value("logits_to_keep", "INT64", ()), np.array(0, np.int64)),
        (Value("num_logits_to_keep", "INT32", (1,)), np.array([0], np.int32)),
        (Value("cache_position", "INT32", ("s",)), np.array([3, 4], np.int32)),
        (Value("use_cache_branch", "BOOL", (1,)), np.array([True])),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_a_switch_is_fed(value: Value, expected: np.ndarray) -> None:
    """All logits, the places of the tokens, and the branch with a cache."""
    found = switched(value, 3, 5)
    assert found.dtype == expected.dtype and found.shape == expected.shape and (found == expected).all()
