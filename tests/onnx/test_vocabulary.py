"""Every id goes through the lookup of words, and ids that are treated differently go through the whole graph."""

from __future__ import annotations

from functools import partial
from math import prod
from pathlib import Path

import pytest
import torch
from onnx import TensorProto, helper

import tieconv
from fixtures import exporters
from tests.loops import case
from tests.onnx import faults
from tests.onnx.exported import ROWS
from tests.onnx.planted import tokens
from tieconv import inspect
from tieconv.checkpoint.results.parity import Vocabulary
from tieconv.onnx.parity import batches as one_token
from tieconv.onnx.parity import lookups
from tieconv.onnx.parity.batches import spread_ids, token_cells
from tieconv.onnx.parity.bindings import Kind, Padding
from tieconv.onnx.parity.judge import lookup_gates
from tieconv.onnx.parity.lookups import every_lookup
from tieconv.onnx.parity.measured_pair import open_subject


def seen(graph: Path, model: Path) -> Vocabulary | None:
    return every_lookup(open_subject(str(graph), inspect(model, depth="header"), "cpu"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", exporters.COMPARED)
def test_other_exporters_look_up_the_checkpoints_rows(name: str) -> None:
    """Each id gets its own row. A lookup in a branch is not visible."""
    (graph,) = (exporters.HERE / name).glob("*.onnx")
    found = seen(graph, exporters.HERE / "checkpoints" / name)
    assert found == (None if name.startswith("merged") else Vocabulary(88))


FAULTS = [
    ("llama", tokens.shifted(700), (700,), ()),
    ("llama", tokens.clipped(ROWS - 2), (ROWS - 1,), ()),
    ("llama", tokens.acted_on(700), (), (700,)),
    ("llama", tokens.acted_on(ROWS // 2), (), (ROWS // 2,)),  # the id that others are compared with
    ("gemma2", tokens.acted_on(3, 1.0001), (), (3,)),
    ("bert", tokens.clipped(ROWS - 2), (ROWS - 1,), ()),
    ("t5", tokens.shifted(9), (9,), ()),
]


def test_which_nodes_look_up_words() -> None:
    """A Gather of rows of the table by ids, also of a cast or turned table; not by columns, nor of another table."""
    find = partial(helper.make_node, "Gather", inputs=["seen", "token"], outputs=["x"])
    tables = {"words": (6, 4), "turned words": (4, 6), "deep": (6, 4, 1), "places": (9, 4)}
    for made, found in (
        (helper.make_node("Identity", ["words"], ["seen"]), True),
        (helper.make_node("Cast", ["words"], ["seen"], to=TensorProto.FLOAT), True),
        (helper.make_node("Transpose", ["turned words"], ["seen"]), True),
        (helper.make_node("Identity", ["turned words"], ["seen"]), False),
        (helper.make_node("Transpose", ["words"], ["seen"]), False),
        (helper.make_node("Transpose", ["deep"], ["seen"], perm=[2, 1, 0]), False),
        (helper.make_node("Neg", ["words"], ["seen"]), False),
        (helper.make_node("Identity", ["places"], ["seen"]), False),
    ):
        nodes = [
            helper.make_node("Neg", ["places"], ["unused"]),
            helper.make_node("Identity", ["ids"], ["token"]),
            made,
            find(axis=0) if made.op_type == "Cast" else find(),
            helper.make_node("Neg", ["x"], ["hidden"]),
            helper.make_node("MatMul", ["hidden", "turned words"], ["logits"]),
        ]
        tensors = [
            helper.make_tensor(name, TensorProto.FLOAT, side, [0.0] * prod(side)) for name, side in tables.items()
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "logits")]
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])
        model = helper.make_model(helper.make_graph(nodes, "g", [ids], outputs, tensors))
        first = lookups.first_nodes(model, ("ids",), (6, 4))
        with case(made.op_type, *made.input):
            assert (first and (first.rows, first.results)) == ((("x",), ("x", "hidden")) if found else None)
        nodes[3].ClearField("attribute")
        nodes[3].attribute.append(helper.make_attribute("axis", 1))
        graph = helper.make_graph(nodes, "g", [ids], outputs, tensors)
        assert lookups.first_nodes(helper.make_model(graph), ("ids",), (6, 4)) is None


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "fault", "wrong", "special"), FAULTS)
def test_an_id_with_a_fault_is_named(
    exported, tmp_path: Path, name: str, fault: faults.Fault, wrong: tuple[int, ...], special: tuple[int, ...]
) -> None:
    """Another row is wrong; a node that acts on one id behind the lookup is seen by what it gives for other ids."""
    made = exported(name)
    assert seen(made.graph, made.model) == Vocabulary(ROWS)
    assert seen(faults.plant(made.graph, fault, tmp_path / "m.onnx"), made.model) == Vocabulary(ROWS, wrong, special)


def test_blocks_of_ids_are_joined(exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large vocabulary goes through in blocks; the data of a large graph stays in its file."""
    made = exported("llama")
    assert (made.graph.parent / "model.onnx.data").exists()
    monkeypatch.setattr(lookups, "_VALUES", 100 * 32)
    assert seen(made.graph, made.model) == Vocabulary(ROWS)
    graph = faults.plant(made.graph, tokens.shifted(900), tmp_path / "m.onnx")
    assert seen(graph, made.model) == Vocabulary(ROWS, (900,))


@pytest.mark.slow
def test_an_id_that_is_special_ids_goes_through_the_whole_graph(
    exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where few ids can go through, those that are treated differently are among them, and the logits judge them."""
    made = exported("llama")
    monkeypatch.setattr(one_token, "LEAST", 8)
    monkeypatch.setattr(one_token, "FEW", 8)
    monkeypatch.setattr(one_token, "_WORK", 0)
    graph = faults.plant(made.graph, tokens.acted_on(701, 1.5), tmp_path / "m.onnx")
    report = tieconv.parity(graph, made.model, provider="cpu")
    assert "every token" in {case.group for case in report.cases if case.ratio and case.ratio > 5}
    assert "max_ratio" in {gate.name for gate in report.gates if not gate.passed}
    assert report.metrics is not None and report.metrics.vocabulary == Vocabulary(ROWS, (), (701,), 9)
    assert report.structure is not None
    assert report.structure.notes[-1] == f"9 of {ROWS} ids went through the whole graph"


def test_which_ids_go_through() -> None:
    """All of a small model; at least 64 of a large one, with the first, the last and those treated differently."""
    assert spread_ids(1021, 10**5, None) == tuple(range(1021))
    assert len(spread_ids(1021, 10**5, None, few=True)) == 64
    assert spread_ids(1021, 10**5, Vocabulary(1021, (), (7,)), few=True)[-1] == 7
    large = spread_ids(256_000, 10**10, Vocabulary(256_000, (7,), (255_998,)))
    assert len(large) == 66 and {0, 7, 255_998, 255_999} <= set(large)
    cells = list(token_cells(Kind.SEQ2SEQ, tuple(range(300)), Padding.FRONT))
    assert [(cell.batch, cell.sequence, cell.past, cell.group) for cell in cells] == [
        (256, 1, 1, "every token"),
        (44, 1, 1, "every token"),
    ]


def test_the_gate_counts_ids() -> None:
    """No gate without a visible lookup; each wrong id counts."""
    assert list(lookup_gates(None)) == []
    (good,), (bad,) = lookup_gates(Vocabulary(9)), lookup_gates(Vocabulary(9, (3, 4)))
    assert (good.passed, bad.passed, bad.value) == (True, False, 2.0)
    assert "for 2 ids: 3, 4" in bad.sentence


def test_rows_are_compared_by_their_bytes() -> None:
    """NaN equals itself, and -0 is not 0; a value without rows counts for all rows."""
    one = torch.tensor([[float("nan")], [0.0], [1.0]])
    two = torch.tensor([[float("nan")], [-0.0], [1.0]])
    assert lookups._differing_ids(one, two, 3).tolist() == [False, True, False]
    assert lookups._differing_ids(torch.tensor(1), torch.tensor(2), 2).tolist() == [True, True]
