"""The small decisions of a parity run: which plot a batch goes to, what an input is fed, what is suspected."""

from __future__ import annotations

import numpy as np
import pytest

from tieconv.checkpoint.results.parity import Case
from tieconv.onnx.parity.cells import Cell
from tieconv.onnx.parity.gate_limits import CELL_LIMIT
from tieconv.onnx.parity.graph.bindings import Bindings, Kind, Role
from tieconv.onnx.parity.graph.file import Value
from tieconv.onnx.parity.graph.switches import switched
from tieconv.onnx.parity.passes import make_work
from tieconv.onnx.parity.weights.suspects import uncounted

IDS, POSITIONS = Value("input_ids", "INT64", (None, None)), Value("position_ids", "INT64", (None, None))


def bindings(kind: Kind, *, positions: bool = False) -> Bindings:
    inputs = {Role.IDS: IDS} | ({Role.POSITIONS: POSITIONS} if positions else {})
    return Bindings(kind, inputs, (), (), "logits")


def case(padding: int, ratio: float | None) -> Case:
    return Case("no past", 2, 4, 0, padding, 0, None, None, ratio, None)


@pytest.mark.parametrize(
    ("sequence", "past", "padding", "steps", "group"),
    [
        (1, 0, 0, 0, "one token"),
        (2, 0, 0, 0, "no past"),
        (1, 3, 0, 0, "past"),
        (4, 3, 0, 2, "cached steps"),
    ],
)
def test_the_plot_of_a_batch(sequence: int, past: int, padding: int, steps: int, group: str) -> None:
    """Each batch goes to one plot."""
    assert Cell(1, sequence, past, padding, 0, steps).group == group


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
