"""What a budget feeds: long sequences, large batches, positions behind a cache, and a reference in float64."""

from __future__ import annotations

import json
import math
import os
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from hypothesis import given, strategies as st

import tieconv
from tests.lazy import (
    adapter,
    batches,
    bindings as graph_bindings,
    float64 as wide,
    ir,
    judge,
    measured_pair,
    ort,
    passes,
    torch,
    validate,
)
from tests.loops import case
from tests.onnx import exported, faults
from tests.onnx.exported import make
from tests.onnx.planted import arithmetic
from tests.onnx.real_faults import FAULTS, FILE, UNSEEN
from tieconv import inspect
from tieconv.api.graphs import seconds_of
from tieconv.reference.model import Batch, load
from tieconv.reference.packages import need
from tieconv.reference.windows import position_limit

LARGE = 1 << 20
BATCHES = Path(__file__).with_name("batches.json")
"""Every batch of each kind of graph: ``python -m tests.onnx.test_budget`` writes it anew."""
POLICY = "OMP_WAIT_POLICY"


def test_a_budget_is_a_time() -> None:
    """Seconds, minutes, hours, or all batches; anything else is refused."""
    assert [seconds_of(text) for text in ("30s", "5m", "1h", "full")] == [30, 300, 3600, math.inf]
    for text in ("", "s", "5", "5d", "-1s", "1.5s", "FULL"):
        with pytest.raises(ValueError, match="is not a time"):
            seconds_of(text)


def test_more_seconds_feed_more() -> None:
    """Every budget has the first cases, a larger one has those of a smaller one, and the rest is said."""
    for kind in graph_bindings.Kind:
        with case(kind):
            work = passes.make_work(graph_bindings.Bindings(kind, {}, (), (), "logits"), SimpleNamespace(vocab_size=99))
            work = replace(work, weights=10**9, ids=tuple(range(99)), first_ids=(0, 98))
            least, every = (replace(work, seconds=seconds) for seconds in (0.0, math.inf))
            enough = sum(cell.seconds(10**9) for cell in least.cells) + 20
            some = replace(work, seconds=enough)
            assert least.cells[:3] == list(batches.first_cells(kind, 1 << 30, holes=work.holes))[:3]
            assert len(least.cells) < len(some.cells) < len(every.cells)
            assert set(least.cells) < set(some.cells) < set(every.cells) == {*some.cells, *some.left_out}
            assert every.left_out == []
            assert sum(cell.seconds(10**9) for cell in some.cells) <= enough


def test_a_full_budget_feeds_one_prompt_of_all_positions() -> None:
    """More seconds alone do not. The report says what they leave out, also of a model with too many positions."""
    for kind in graph_bindings.Kind:
        with case(kind):
            config = SimpleNamespace(vocab_size=99, max_position_embeddings=256)
            full = replace(passes.make_work(graph_bindings.Bindings(kind, {}, (), (), "logits"), config), prompt=256)
            usual = replace(full, full=False)
            assert max(map(full.tokens, full.cells)) == full.longest == 256 and full.left_out == []
            assert max(map(usual.tokens, usual.cells)) == batches.LONG and max(map(usual.tokens, usual.left_out)) == 256
            assert {cell.batch for cell in full.cells} - {cell.batch for cell in usual.cells} == {16}
            assert set(full.cells) - set(usual.cells) == set(usual.left_out)
            assert all(cell.judged <= batches.LONG for cell in full.cells)
            fixed = replace(full, own_shape=(2, 7, 0))
            assert {cell.length for cell in fixed.cells} == {7} and fixed.left_out == []
            short = replace(full, config=SimpleNamespace(vocab_size=99, max_position_embeddings=9), prompt=0)
            assert max((short.tokens(cell) for cell in short.cells if cell.batch == 16), default=0) <= 9
            for work, left in ((full, {}), (replace(full, prompt=0), {"longer prompts": 1}), (fixed, {})):
                assert (
                    dict(
                        judge.Judged("float32", (), dict.fromkeys(work.cells, judge.Errors()), {}, 0).fed(work).left_out
                    )
                    == left
                )


def test_a_prompt_that_does_not_fit_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory, more positions than a full budget feeds, and so few that the usual batches fill them."""
    made = subject(tmp_path, 48)
    monkeypatch.setattr("tieconv.onnx.parity.measured_pair.available_memory", lambda: FREE)
    assert [measured_pair.planned_prompt(made, longest) for longest in (batches.LONG, 2048, 2049)] == [
        (0, ""),
        (2048, ""),
        (0, ""),
    ]
    monkeypatch.setattr("tieconv.onnx.parity.measured_pair.available_memory", lambda: 10**8)
    note = "a prompt of 2,048 tokens needs 285 MB of memory, but only 100 MB is free: it is not fed"
    assert measured_pair.planned_prompt(made, 2048) == (0, note)


def test_a_small_model_gets_all_cases() -> None:
    """Without a budget, all cases of a small model take less than its export; a large one gets the first."""
    bindings, config = (
        graph_bindings.Bindings(graph_bindings.Kind.CACHED, {}, (), (), "logits"),
        SimpleNamespace(vocab_size=99),
    )
    for weights, complete in ((10**5, True), (135 * 10**6, False)):
        work = replace(
            passes.make_work(bindings, config), weights=weights, seconds=measured_pair.Wishes().seconds(weights)
        )
        assert (work.left_out == []) is complete
        assert complete or work.cells == list(
            batches.first_cells(graph_bindings.Kind.CACHED, 1 << 30, holes=work.holes)
        )


def test_the_first_cases_fit() -> None:
    """No case has more tokens than the model has positions, and the pieces of a case are all its tokens."""
    for where in graph_bindings.Padding:
        for longest in [3, 9, 17, 100, LARGE]:
            for kind in graph_bindings.Kind:
                with case(where, longest, kind):
                    made = list(batches.first_cells(kind, longest, where))
                    assert max(max(cell.past, cell.sequence) for cell in made) <= min(batches.LONG, longest)
                    for cell in made:
                        assert not kind.steps or sum(passes.pieces(cell, kind)) == (
                            cell.sequence if kind.encodes else cell.length
                        )
                        assert not cell.padding or where is not graph_bindings.Padding.NONE
                    if longest == LARGE and where is not graph_bindings.Padding.NONE:
                        six = next(cell for cell in made if cell.batch == 6)
                        assert len({str(six.masked(row, 16)) for row in range(6)}) == 6
                        assert (six.layout is batches.Layout.LEFT) == (
                            kind in (graph_bindings.Kind.CACHED, graph_bindings.Kind.PLAIN)
                            and where is not graph_bindings.Padding.FRONT
                        )


def described(cell: batches.Cell) -> str:
    """One batch as a line: rows × tokens after the past, its padding, and how it is fed."""
    words = [f"{cell.batch} × {cell.sequence} after {cell.past}", f"padding {cell.padding}, {cell.layout}"]
    words += [f"seed {cell.seed}", f"steps {cell.steps}", f"judged {cell.judged}", f"later {list(cell.later)}"]
    return "; ".join([*words, str(cell.where), cell.group, f"{cell.seconds(10**9):.3f} s"])


def every_batch() -> dict[str, list[str]]:
    """The batches of each kind of graph, by the positions of its model and the side that it pads on."""
    every = {}
    for kind in graph_bindings.Kind:
        for longest, where in (
            (LARGE, graph_bindings.Padding.FRONT),
            (200, graph_bindings.Padding.FRONT),
            (20, graph_bindings.Padding.FRONT),
            (LARGE, graph_bindings.Padding.BEHIND),
            (9, graph_bindings.Padding.NONE),
        ):
            made = [
                *batches.first_cells(kind, longest, where, holes=longest > 20),
                *batches.cells(kind, longest, where),
            ]
            made += batches.single_seed_cells(kind, longest, where, holes=longest > 20, window=12, length=19, batch=7)
            made += batches.stepped(longest, where, kind)
            if kind is graph_bindings.Kind.CACHED:
                made += batches.embedding_cells(longest, where, blocks=True)
            made += batches.full_cells(kind, longest if longest == 200 else 0, where)
            every[f"{kind.name}, {longest} positions, {where}"] = [described(cell) for cell in made]
    return every


def test_every_batch_is_the_recorded_one() -> None:
    """The shapes, paddings and steps that a report lists; another choice shows in the diff of the record."""
    assert every_batch() == json.loads(BATCHES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bert", "mixtral"])
def test_float32_weights_compute_in_float64(name: str, tmp_path: Path) -> None:
    """The same logits as with all weights in float64; afterwards the weights are float32 again."""
    made = make(name)
    made.float().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    model = load(str(tmp_path), config, "float32")
    ids = torch.arange(24).reshape(2, 12)
    batch = Batch(ids, torch.ones_like(ids))
    before = model.logits(batch)
    with model.in_float64():
        model.widen_all = Mock(side_effect=AssertionError)  # one layer at a time suffices
        logits = model.logits(batch)
    assert logits.dtype is torch.float64
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.float32}
    assert torch.equal(model.logits(batch), before)
    with pytest.raises(ZeroDivisionError), model.in_float64():
        raise ZeroDivisionError
    assert (model.dtype, model.widen_all) == ("float32", None)
    assert not any("forward" in vars(module) for module in model.model.modules())
    # Gemma's class keeps the scale of embeddings in a buffer, which stays float32.
    whole = load(str(tmp_path), config, "float64").logits(batch)
    assert float((whole - logits).abs().max()) < (1e-6 if name == "gemma2" else 1e-11)


@pytest.mark.parametrize("bias", [True, False])
def test_a_head_is_computed_in_blocks_of_rows(bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last block has fewer rows; a block has one row at least."""
    module = torch.nn.Linear(7, 5, bias=bias)
    values = torch.randn(2, 3, 7, dtype=torch.float64)
    whole = deepcopy(module).double()(values)
    for elements in (14, 1, 1000):
        monkeypatch.setattr(wide, "_BLOCK", elements)
        torch.testing.assert_close(wide._by_rows(module, values), whole)


def test_a_class_that_reads_weights_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a layer's weights are not float64 where a class reads them, all weights become float64."""
    make("llama").save_pretrained(tmp_path)
    model = load(str(tmp_path), json.loads((tmp_path / "config.json").read_text()), "float32")
    ids, units = torch.arange(6)[None], list(wide._units(model.model))
    batch = Batch(ids, torch.ones_like(ids))
    with model.in_float64():
        wanted = model.logits(batch)
    for left_out in (slice(0), slice(2, 3), slice(3, 5), slice(len(units) - 1, None)):
        chosen = [] if left_out == slice(0) else [unit for unit in units if unit not in units[left_out]]
        monkeypatch.setattr(wide, "_units", lambda _, chosen=chosen: chosen)
        with model.in_float64():
            assert torch.equal(model.logits(batch), wanted) or (model.logits(batch) - wanted).abs().max() < 1e-11
    assert {parameter.dtype for parameter in model.model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_a_graph_with_fixed_axes_runs_at_its_shape(exported, tmp_path: Path) -> None:
    """The structure fails, and all else is measured at that shape: a healthy graph passes there, a fault does not."""
    bert, path = exported("bert"), tmp_path / "model.onnx"
    for axis, length in ((0, 2), (1, 7)):
        faults.plant(path if axis else bert.graph, faults.frozen(axis, length), path)
    wrong = faults.plant(path, arithmetic.number(8**-0.25, 0.6), tmp_path / "wrong.onnx")
    for graph, more in ((path, set()), (wrong, {"case_ratio", "rms_ratio", "max_ratio"})):
        report = tieconv.parity(graph, bert.model, provider="cpu")
        assert {gate.name for gate in report.gates if not gate.passed} == {"structure", *more}
        assert {(case.batch, case.sequence, case.padding, case.seed) for case in report.cases} == {
            (2, 7, 2, seed) for seed in range(3)
        }
        assert report.structure is not None
        notes = "only batches of 2 rows with 7 tokens were run", "at this shape every other gate passed"
        assert report.structure.notes == notes[: 1 if more else 2]


def test_faults_in_a_real_model() -> None:
    """Each was measured and failed, or has a reason; at least 30 by the logits alone. The healthy graph passed."""
    healthy, *rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"]
    assert (healthy["fault"], healthy["verdict"]) == ("", "passed")
    assert [row["fault"] for row in rows] == list(FAULTS)
    assert {row["fault"] for row in rows if row["verdict"] != "failed"} == UNSEEN.keys()
    stored = {"weights", "graph_weights", "token_lookup"}
    assert sum(bool(row["cases"]) and not stored & set(row["failed"]) for row in rows) >= 30


def test_the_wait_policy_of_the_user_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's OpenMP reads it while it is loaded; the variable is not the program's afterwards."""
    seen: list[str | None] = []
    monkeypatch.setattr("tieconv.reference.packages.import_module", lambda _: seen.append(os.environ.get(POLICY)))
    for own in (None, "ACTIVE"):
        monkeypatch.delenv(POLICY, raising=False)
        if own:
            monkeypatch.setenv(POLICY, own)
        need("torch", "torch", "a test")
        assert os.environ.get(POLICY) == own
    assert seen == ["PASSIVE", "ACTIVE"]


FREE = 1 << 30


def test_a_long_sequence_and_six_rows() -> None:
    """Every kind has a sequence of 144 tokens, and six rows with as many different masks."""
    for kind in graph_bindings.Kind:
        with case(kind):
            made = list(batches.single_seed_cells(kind, 1 << 20))
            assert max(max(cell.past, cell.sequence) for cell in made) == batches.LONG >= 128
            six = [cell for cell in made if cell.batch == 6]
            assert six and all(len({str(cell.masked(row, 14)) for row in range(6)}) == 6 for cell in six)
            longer = {cell.length for cell in batches.single_seed_cells(kind, 100)} if not kind.encodes else {100}
            assert max(longer) == 100


def test_a_window_is_crossed() -> None:
    """One pass and cached steps begin before the end of the window and end behind it, if nothing shorter does."""
    for window in [1, 4, 20, 48, 512, measured_pair.WIDEST]:
        with case(window):
            made = list(batches.single_seed_cells(graph_bindings.Kind.CACHED, 1 << 20, window=window))
            assert max(cell.sequence for cell in made if not cell.past) >= window + batches.BEYOND
            stepped = [cell for cell in made if cell.steps]
            assert all(cell.past < window + 1 and cell.length >= window + batches.BEYOND for cell in stepped)
            assert bool(stepped) == (window != 20)  # the prompt of five with 32 steps crosses this one
            assert all(
                passes.pieces(cell, graph_bindings.Kind.CACHED) == (cell.past, *[1] * cell.steps) for cell in stepped
            )
            long = [cell for cell in made if cell.sequence > batches.LONG]
            assert all(cell.judged == 2 * batches.BEYOND for cell in long)


def test_a_window_beyond_the_positions_is_not_crossed() -> None:
    """A model of 40 positions cannot leave a window of 48."""
    assert not [
        cell
        for cell in batches.single_seed_cells(graph_bindings.Kind.CACHED, 40, window=48)
        if cell.steps or cell.judged_last
    ]


def subject(tmp_path: Path, window: int) -> measured_pair.Subject:
    make("mistral-48").save_pretrained(tmp_path)
    config = SimpleNamespace(sliding_window=window, num_attention_heads=4, vocab_size=1021)
    return measured_pair.Subject(None, inspect(tmp_path, depth="header"), "cpu", "float32", None, config)  # type: ignore[arg-type]


def test_a_window_that_is_not_measured_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window wider than the limit, and one whose sequence does not fit into memory."""
    monkeypatch.setattr("tieconv.onnx.parity.measured_pair.available_memory", lambda: FREE)
    assert measured_pair.planned_window(subject(tmp_path, 48)) == (48, "")
    window, note = measured_pair.planned_window(subject(tmp_path, measured_pair.WIDEST + 1))
    assert (window, "4097 tokens was not measured" in note) == (0, True)
    window, note = measured_pair.planned_window(subject(tmp_path, measured_pair.WIDEST))
    assert (window, "needs 1.11 GB of memory, but only 1.07 GB is free" in note) == (0, True), note
    wide = subject(tmp_path, 48)
    assert measured_pair.reference_bytes(wide, 100) == measured_pair.reference_bytes(wide, 0) + 8 * (
        100 * 1021 + 2 * 4 * 100 * 100
    )


def test_positions_that_begin_after_the_padding() -> None:
    """RoBERTa numbers positions from the padding token's id on, so a few of its table are never reached."""
    config = SimpleNamespace(max_position_embeddings=130, pad_token_id=1, model_type="roberta")
    assert position_limit(config) == 128
    assert position_limit(SimpleNamespace(max_position_embeddings=130, pad_token_id=1, model_type="bert")) == 130
    assert position_limit(SimpleNamespace()) is None
    assert position_limit(SimpleNamespace(max_position_embeddings=0)) is None


def test_positions_under_a_key_of_the_class() -> None:
    """MPT and DBRX say max_seq_len. The sequences that the reference samples end there too."""
    config = SimpleNamespace(max_seq_len=16, vocab_size=99)
    model = SimpleNamespace(logits=lambda batch: torch.zeros(*batch.ids.shape, 99))
    assert position_limit(config) == 16
    tokens = validate._tokens(SimpleNamespace(config=config), model, graph_bindings.Kind.CACHED, None)  # type: ignore[arg-type]
    assert tokens is not None
    assert tokens.ids.shape == (8, 16)


def test_the_reference_runs_once_for_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence in one pass and in steps is one batch of the reference, and only the judged logits are computed."""
    made = subject(tmp_path, 48)
    model = load(str(tmp_path), made.evidence.checkpoint.config_values, "float64")
    bindings = graph_bindings.Bindings(graph_bindings.Kind.CACHED, {}, (), (), "logits")
    work = passes.make_work(bindings, model.model.config, 48)
    seen: list[Any] = []
    stored: dict[object, torch.Tensor] = {}
    genuine = model.logits

    def logits(batch: Batch, last: int) -> torch.Tensor:
        seen.append((tuple(batch.ids.shape), last))
        return genuine(batch, last)

    monkeypatch.setattr(model, "logits", logits)
    passes.run_model(model, work, SimpleNamespace(put=stored.__setitem__), "reference")  # type: ignore[arg-type]
    assert len(seen) < len(work.cells) == len(stored)
    assert seen.count(((1, 128), 128)) == 1
    for cell in work.cells:
        again = work.judged(cell, genuine(work.batch(cell)))
        assert torch.allclose(again, stored["reference", cell], rtol=0, atol=1e-11)
    assert replace(work, window=0).cells != work.cells


def constant(name: str, number: float, kind: ir.TensorType) -> ir.Value:
    made = ir.tensor(np.array(number, kind.dtype.numpy()), name=name)
    return ir.Value(name=name, shape=ir.Shape([]), type=kind, const_value=made)


def summed(
    *, first: float = 0, step: float = 1, shape: tuple[int, ...] = (), dtype: str = "INT64", turned: bool = False
) -> ir.Model:
    """Add(Range(first, length, step), past), with a past of this shape."""
    kind = ir.TensorType(ir.DataType[dtype])
    length = ir.Value(name="length", shape=ir.Shape([]), type=kind)
    past = ir.Value(name="past", shape=ir.Shape(shape), type=kind)
    bounds = [constant("first", first, kind), constant("step", step, kind)]
    counted = ir.node("Range", [bounds[0], length, bounds[1]])
    counted.outputs[0].type, counted.outputs[0].shape = kind, ir.Shape(["n"])
    sides = [past, counted.outputs[0]] if turned else [counted.outputs[0], past]
    total = ir.node("Add", sides)
    total.outputs[0].type, total.outputs[0].shape, total.outputs[0].name = kind, ir.Shape(["n"]), "positions"
    end = ir.node("Identity", [total.outputs[0]])
    end.outputs[0].type, end.outputs[0].shape, end.outputs[0].name = kind, ir.Shape(["n"]), "out"
    graph = ir.Graph([length, past], [end.outputs[0]], nodes=[counted, total, end], initializers=bounds,
                     opset_imports={"": 20}, name="g")  # fmt: skip
    return ir.Model(graph, ir_version=10)


def computed(model: ir.Model, length: object, past: object) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"length": np.asarray(length), "past": np.asarray(past)})[0])


@given(length=st.integers(0, 40), past=st.integers(-(2**40), 2**40), turned=st.booleans())
def test_the_numbers_are_the_same(length: int, past: int, turned: bool) -> None:
    """For any length and any past, on either side of the sum; the sum of the range is gone."""
    model = summed(turned=turned)
    want = computed(model, length, past)
    assert adapter.start_ranges(model) == 1
    assert [node.op_type for node in model.graph] == ["Add", "Range", "Identity"]
    got = computed(model, length, past)
    assert (got.dtype, got.tolist()) == (want.dtype, want.tolist())


@pytest.mark.parametrize(
    "more",
    [{"first": 2}, {"step": 2}, {"shape": (1,)}, {"shape": (1, 1)}, {"dtype": "FLOAT"}],
    ids=["starts elsewhere", "another step", "an axis", "two axes", "floats"],
)
def test_another_sum_stays(more: dict) -> None:
    """A range that does not count from 0 by 1, a summand with axes, and floats, which would round differently."""
    model = summed(**more)
    before = ir.to_proto(model).SerializeToString()
    assert adapter.start_ranges(model) == 0
    assert ir.to_proto(model).SerializeToString() == before


def test_a_sum_that_is_an_output_stays() -> None:
    """Its name is the graph's interface."""
    model = summed()
    total = model.graph[1].outputs[0]
    model.graph.outputs[0] = total
    assert adapter.start_ranges(model) == 0


def test_an_export_computes_no_positions_from_a_range_and_a_length(tmp_path: Path) -> None:
    """In tieconv's export of a decoder no sum of a range is left, and transformers' own graph has one."""
    import tieconv

    def sums(path: Path) -> int:
        model = onnx.load(path, load_external_data=False)
        ranges = {name for node in model.graph.node if node.op_type == "Range" for name in node.output}
        return sum(node.op_type == "Add" and not ranges.isdisjoint(node.input) for node in model.graph.node)

    made = exported.build("llama", "float32", tmp_path)
    tieconv.export(made.model, tmp_path / "out", parity=False)
    assert sums(made.graph) == 1
    assert sums(tmp_path / "out" / "model.onnx") == 0


if __name__ == "__main__":
    BATCHES.write_text(json.dumps(every_batch(), indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
