"""The small decisions of a parity run: plots, what an input is fed, what is suspected, and the reason of a failure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import tieconv
from tests.onnx import faults
from tests.onnx.planted import arithmetic as ar
from tests.onnx.planted.catalogue import FAULTS
from tieconv.checkpoint.results.parity import Case
from tieconv.onnx.parity.batches import Cell, Layout, cells, compared, make_batch
from tieconv.onnx.parity.bindings import Bindings, Kind, Role, switched
from tieconv.onnx.parity.causes import uncounted, wrong_constant
from tieconv.onnx.parity.graph_file import Value
from tieconv.onnx.parity.judge import CELL_LIMIT
from tieconv.onnx.parity.passes import ModelNumbers, make_work

pytest.importorskip("torch")


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


def graph_of(nodes: Sequence[onnx.NodeProto], **numbers: float) -> onnx.ModelProto:
    """A graph of x with these numbers beside it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    tensors = [numpy_helper.from_array(np.array([number], np.float32), name) for name, number in numbers.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def chain(*operators: tuple[str, str]) -> list[onnx.NodeProto]:
    """One operator behind the other, each with a number as its second input if it has a name."""
    names = ["x", *(f"v{at}" for at in range(len(operators) - 1)), "y"]
    return [
        helper.make_node(kind, [names[at], number] if number else [names[at]], [names[at + 1]])
        for at, (kind, number) in enumerate(operators)
    ]


def likely(model: onnx.ModelProto, epsilons: Sequence[float] = (), factors: Sequence[float] = ()) -> list[str]:
    graph = SimpleNamespace(model=ir.serde.deserialize_model(model), embedding=None)
    subject = SimpleNamespace(pair=None, graph=graph, precision="float32")
    return list(wrong_constant(subject, ModelNumbers(frozenset(epsilons), tuple(factors))))  # type: ignore[arg-type]


def test_an_epsilon_is_added_before_a_root() -> None:
    """Any other epsilon than the model's is named, also an attribute and the default of an operator."""
    nodes = chain(("Add", "e"), ("Sqrt", ""), ("Mul", "e"))
    nodes[0].input[1] = "cast"
    nodes.insert(0, helper.make_node("Cast", ["e"], ["cast"], to=TensorProto.FLOAT))
    norm = "a norm of the graph has epsilon 1e-06, but the model's class has 1e-05"
    assert likely(graph_of(nodes, e=1e-6), [1e-5], [1e-3]) == [norm]
    assert likely(graph_of(nodes, e=1e-5), [1e-5], [1e-3]) == []
    default = graph_of([helper.make_node("LayerNormalization", ["x", "w"], ["y"], name="n")], w=0.7)
    assert likely(default, [1e-12], []) == ["a norm of the graph has epsilon 1e-05, but the model's class has 1e-12"]


SCALES = [
    # the constants of the graph, the model's factors, and the constant that is likely wrong
    ({"a": 5.66}, (32**0.5,), "a is 5.66, but the model has 5.65685"),
    ({"a": 0.6}, (8**-0.25, 8**-0.5), "a is 0.6, but the model has 0.594604"),
    ({"a": 5.66, "b": 32**0.5}, (32**0.5,), "a is 5.66, but the model has 5.65685"),
    ({"a": 5.75}, (32**0.5,), ""),
    ({"a": 12.05, "b": 0.3}, (12.0, 0.22), "a is 12.05, but the model has 12"),
    ({"a": 32**0.5, "b": 0.7}, (32**0.5,), ""),
    ({"a": 0.5, "b": 1.0}, (0.51, 1.01), ""),
]


@pytest.mark.parametrize(("constants", "factors", "wrong"), SCALES)
def test_the_nearest_pair_is_named(constants: dict[str, float], factors: tuple[float, ...], wrong: str) -> None:
    """A constant that the model lacks, and a factor that the graph lacks."""
    model = graph_of(chain(*(("Mul", name) for name in constants)), **constants)
    assert likely(model, [], factors) == ([f"the constant {wrong}"] if wrong else [])


def reason(source: Path, model: Path, fault: faults.Fault, out: Path) -> str:
    """What parity says of the graph with the fault, which must fail."""
    report = tieconv.parity(faults.plant(source, fault, out), model, provider="cpu", budget="1s")
    assert str(report.verdict) == "failed"
    return report.reason


@pytest.mark.slow
def test_the_wrong_constant_is_named(exported, tmp_path: Path) -> None:
    """The attention scale of BERT, and no constant for what is no constant's fault."""
    bert, path = exported("bert"), tmp_path / "model.onnx"
    found = reason(bert.graph, bert.model, ar.number(8**-0.25, 0.6), path)
    assert found.startswith("the constant val_") and found.endswith(" is 0.6, but the model has 0.594604")
    assert reason(bert.graph, bert.model, ar.two_swapped("val_69", "val_77"), path) == ""
    assert reason(bert.graph, bert.model, FAULTS["one element of a position table"][0], path) == ""
