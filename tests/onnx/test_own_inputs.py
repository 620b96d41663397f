"""What a graph is fed: every id, the user's own inputs, and both values of the inputs that say how it runs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tieconv
import tieconv as api
from fixtures import exporters
from tests.cli.run import run
from tests.lazy import (
    batches,
    batches as one_token,
    bindings as graph_bindings,
    graph_forward,
    judge,
    lookups,
    measured_pair,
    ort_session,
    torch,
)
from tests.loops import case
from tests.onnx import faults
from tests.onnx.exported import ROWS
from tests.onnx.nodes import model as model_of, op, save, token_ids, value
from tests.onnx.planted import masks, tokens
from tests.onnx.test_grouped import failing
from tests.slow import fast_only
from tieconv import inspect
from tieconv.checkpoint.results.parity import Parity, Vocabulary
from tieconv.errors import NotRunError, SettingsError, UnreadableError
from tieconv.onnx.parity.graph_file import Graph, Value, read_graph
from tieconv.reference.model import Batch

CONFIG = SimpleNamespace(vocab_size=50, type_vocab_size=2)
IDS = np.array([[3, 4, 5], [6, 7, 8]])


def bindings(*roles: str, padding: str = "left padding") -> graph_bindings.Bindings:
    inputs = {graph_bindings.Role(role): Value(role, "INT64", (None, None)) for role in roles}
    return graph_bindings.Bindings(
        graph_bindings.Kind.CACHED, inputs, (), (), "logits", graph_bindings.Padding(padding)
    )


DECODER = ("input_ids", "attention_mask", "position_ids")


def saved(folder: Path, **arrays: Any) -> str:
    np.savez(folder / "in.npz", **arrays)
    return str(folder / "in.npz")


def test_what_is_not_given_is_counted(tmp_path: Path) -> None:
    """Only token ids: all are tokens of the first type, and the positions follow the mask."""
    batch = measured_pair.read_inputs(
        saved(tmp_path, input_ids=IDS.astype("i4")), bindings(*DECODER, graph_bindings.Role.TYPES), CONFIG, 10
    )
    assert batch.ids.tolist() == IDS.tolist() and batch.ids.dtype is torch.int64
    assert batch.mask.all() and batch.types is not None and not batch.types.any()
    assert batch.positions.tolist() == [[0, 1, 2]] * 2
    mask = np.array([[0, 1, 1], [1, 1, 1]])
    given = measured_pair.read_inputs(
        saved(tmp_path, input_ids=IDS, attention_mask=mask), bindings(*DECODER), CONFIG, 10
    )
    assert given.mask.tolist() == mask.tolist() and given.positions.tolist() == [[0, 0, 1], [0, 1, 2]]
    placed = measured_pair.read_inputs(saved(tmp_path, input_ids=IDS, position_ids=IDS), bindings(*DECODER), CONFIG, 10)
    assert placed.positions.tolist() == IDS.tolist() and placed.until(2).positions.tolist() == IDS[:, :2].tolist()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"attention_mask": IDS}, "has no array input_ids"),
        (
            {"input_ids": IDS, "past_key_values.0.key": IDS},
            "has an array past_key_values.0.key, but parity takes arrays",
        ),
        ({"input_ids": IDS[0]}, r"of int64 \[3\] instead of integers \[batch, sequence\]"),
        ({"input_ids": IDS[:0]}, "instead of integers"),
        ({"input_ids": IDS.astype("f4")}, "of float32"),
        ({"input_ids": IDS + 45}, "has the value 53 in input_ids, outside of 0 to 49"),
        ({"input_ids": IDS - 4}, "has the value -1 in input_ids"),
        ({"input_ids": IDS, "attention_mask": IDS}, "has the value 8 in attention_mask, outside of 0 to 1"),
        ({"input_ids": IDS, "attention_mask": IDS[:, :2] * 0 + 1}, "attention_mask of 2 × 2 beside token ids of 2 × 3"),
        ({"input_ids": IDS, "attention_mask": IDS * 0}, "has a row without a token"),
        ({"input_ids": IDS, "position_ids": IDS + 2}, "has the value 10 in position_ids, outside of 0 to 9"),
        ({"input_ids": np.tile(IDS, 4)}, "has sequences of 12 tokens, but the model has 10 positions"),
        ({"input_ids": np.array([{"a": 1}], object)}, "is not an npz file of number arrays"),
    ],
)
def test_what_cannot_be_fed_is_refused(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    """One sentence with the file and the array; objects are never unpickled."""
    with pytest.raises(UnreadableError, match=message) as refused:
        measured_pair.read_inputs(saved(tmp_path, **arrays), bindings(*DECODER), CONFIG, 10)
    assert "in.npz" in refused.value.message and refused.value.hint


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    """A text and an array alone, with no option told that would load them unsafely; an absent file cannot be read."""
    (tmp_path / "text.npz").write_text("no archive")
    np.save(tmp_path / "one.npy", IDS)
    for name in ("text.npz", "one.npy"):
        with pytest.raises(UnreadableError, match=f"{name} is not an npz file") as refused:
            measured_pair.read_inputs(str(tmp_path / name), bindings(*DECODER), CONFIG, 10)
        assert "pickle" not in refused.value.message
    with pytest.raises(SettingsError, match=r"absent\.npz cannot be read: no such file"):
        measured_pair.read_inputs(str(tmp_path / "absent.npz"), bindings(*DECODER), CONFIG, 10)


def test_sizes_that_a_file_states_are_not_believed(tmp_path: Path) -> None:
    """A header of 80 TB beside no data, and zeros that unpack to more than the limit: nothing is allocated."""
    for name, shape, zeros in (("header", (1_000_000, 10_000_000), 0), ("packed", (4000, 4000), 128_000_000)):
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": "<i8", "fortran_order": False, "shape": shape})
        path = tmp_path / f"{name}.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("input_ids.npy", header.getvalue() + bytes(zeros))
        with pytest.raises(UnreadableError) as refused:
            measured_pair.read_inputs(
                str(path), bindings(graph_bindings.Role.IDS), SimpleNamespace(vocab_size=100), 100
            )
        message = refused.value.message
        assert {"header": "states more values than the file holds", "packed": "takes at most 100 MB"}[name] in message


def test_a_graph_without_padding(tmp_path: Path) -> None:
    """Padding that the graph does not take is refused."""
    file = saved(tmp_path, input_ids=IDS, attention_mask=np.array([[0, 1, 1], [1, 1, 1]]))
    with pytest.raises(UnreadableError, match="has padding, which this graph does not take"):
        measured_pair.read_inputs(file, bindings(*DECODER, padding=graph_bindings.Padding.NONE), CONFIG, 10)


def test_both_sides_of_an_encoder_decoder(tmp_path: Path) -> None:
    """The decoder may have another length, but not another number of rows."""
    both = bindings(graph_bindings.Role.IDS, graph_bindings.Role.MASK, graph_bindings.Role.DECODER_IDS)
    batch = measured_pair.read_inputs(saved(tmp_path, input_ids=IDS, decoder_input_ids=IDS[:, :2]), both, CONFIG, 10)
    assert batch.decoder_ids.tolist() == IDS[:, :2].tolist() and batch.decoder_mask is None
    with pytest.raises(UnreadableError, match="has no array decoder_input_ids"):
        measured_pair.read_inputs(saved(tmp_path, input_ids=IDS), both, CONFIG, 10)
    with pytest.raises(UnreadableError, match="decoder_input_ids of 1 × 3"):
        measured_pair.read_inputs(saved(tmp_path, input_ids=IDS, decoder_input_ids=IDS[:1]), both, CONFIG, 10)


def test_a_length_and_a_number_of_rows() -> None:
    """They come besides the usual shapes, in one pass and with a cache."""
    for kind in graph_bindings.Kind:
        with case(kind):
            usual = list(batches.single_seed_cells(kind, 1 << 20))
            more = [cell for cell in batches.single_seed_cells(kind, 1 << 20, length=300, batch=9) if cell not in usual]
            assert {
                max(cell.sequence, cell.length if kind is graph_bindings.Kind.CACHED else 0)
                for cell in more
                if cell.batch == 1
            } == {300}
            assert {cell.batch for cell in more} == {1, 9}
            assert len(list(batches.single_seed_cells(kind, 1 << 20, length=batches.LONG, batch=6))) == len(usual)


@pytest.mark.slow
def test_a_fault_that_only_the_users_inputs_reach(exported, tmp_path: Path) -> None:
    """Rows from the tenth on read another mask: nothing usual sees it; a batch of the user or more rows do."""
    made = exported("llama")
    graph = faults.plant(made.graph, masks.one_row(9), tmp_path / "model.onnx")
    told = json.loads(run("parity --provider cpu --json", graph, made.model, "--batch", "12").stdout)
    assert {case["batch"] for case in told["cases"] if case["ratio"] > 5} == {12}
    mask = np.ones((12, 6), int)
    mask[10:, :3] = 0
    file = saved(tmp_path, input_ids=np.arange(72).reshape(12, 6), attention_mask=mask)
    page = tmp_path / "page.html"
    told = json.loads(run("parity --provider cpu --json", graph, made.model, "--inputs", file, "--html", page).stdout)
    assert {case["group"] for case in told["cases"] if case["ratio"] > 5} == {"own inputs"}
    assert [(case["batch"], case["sequence"], case["past"]) for case in told["cases"][:2]] == [(12, 6, 0), (12, 1, 5)]
    assert "own inputs" in page.read_text(encoding="utf-8")


def test_a_length_beyond_the_positions(exported) -> None:
    """Refused with the number of positions."""
    made = exported("llama")
    told = run("parity --provider cpu --length 129", made.graph, made.model)
    assert told.exit_code == 2
    assert "--length 129 is more than the 128 positions of the model" in told.stderr


LLAMA, GPT2 = (exporters.HERE / name / "decoder_model_merged.onnx" for name in ("merged-llama", "merged-gpt2"))
OPTIMUM = exporters.HERE / "optimum-llama" / "model.onnx"
"""Versions that every onnxruntime of this project takes."""


def parity(path: Path, name: str) -> Parity:
    return api.parity(path, exporters.HERE / "checkpoints" / name, provider="cpu")


def changed(source: Path, change: Callable[[onnx.GraphProto], None], target: Path) -> Path:
    model = onnx.load(source)
    change(model.graph)
    onnx.save(model, target)
    return target


def norm_of(branch: str) -> Callable[[onnx.GraphProto], None]:
    """The epsilon of the last norm, in one branch of the decoder."""

    def change(graph: onnx.GraphProto) -> None:
        (choice,) = (node for node in graph.node if node.op_type == "If")
        (inner,) = (attribute.g for attribute in choice.attribute if attribute.name == branch)
        for node in inner.node:
            if node.output[0] == "/model/norm/Constant_1_output_0":
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(1e-5, np.float32)))

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("branch", "past"), fast_only([("then_branch", True), ("else_branch", False)], ["else_branch"])
)
def test_a_fault_in_one_branch_fails(tmp_path: Path, branch: str, past: bool) -> None:
    """First tokens run one branch, those after a past the other: each shape sees its own branch's fault alone."""
    report = parity(changed(LLAMA, norm_of(branch), tmp_path / "model.onnx"), "merged-llama")
    assert str(report.verdict) == "failed" and {"case_ratio", "rms_ratio"} <= failing(report)
    assert ("steps_rms_ratio" in failing(report)) == past
    assert {bool(case.past) for case in report.cases if case.ratio and case.ratio > 5} == {past}
    epsilon = "a norm of the graph has epsilon 1e-05, but the model's class has 1e-06"
    assert report.reason == f"{epsilon}; with it, the worst case passes"


@pytest.mark.slow
def test_both_branches_pass() -> None:
    """optimum's merged decoder is healthy, with and without a past, padded and not; the report says how it was fed."""
    report = parity(LLAMA, "merged-llama")
    assert (str(report.verdict), failing(report)) == ("passed", set())
    assert report.structure is not None
    (note,) = report.structure.notes
    assert note.startswith("use_cache_branch was false for the first tokens of a sequence")
    assert {(bool(case.past), bool(case.padding)) for case in report.cases} == {(p, q) for p in (0, 1) for q in (0, 1)}


@pytest.mark.slow
def test_positions_that_count_the_padding() -> None:
    """GPT-2 without position_ids is wrong for padded rows, and for those alone; the reason says so."""
    report = parity(GPT2, "merged-gpt2")
    assert str(report.verdict) == "failed"
    assert {bool(case.padding) for case in report.cases if case.ratio and case.ratio > 5} == {True}
    assert report.reason == (
        "only rows with left padding are wrong: the graph has no position_ids and counts the padding too"
    )


def keep(graph: onnx.GraphProto) -> None:
    """Logits of the last positions alone, as many as the new input says."""
    (output,) = (value for value in graph.output if value.name == "logits")
    for node in graph.node:
        for place, name in enumerate(node.output):
            if name == "logits":
                node.output[place] = "all_logits"
    graph.input.append(token_ids("num_logits_to_keep", []))
    for name, number in (("flat", -1), ("end", 2**62), ("axis", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array([number]), name))
    graph.node.append(op("Neg", "num_logits_to_keep", "from"))
    graph.node.append(op("Reshape", "from flat", "from_one"))
    graph.node.append(op("Slice", "all_logits from_one end axis", "logits"))
    output.type.tensor_type.shape.dim[1].dim_param = "kept"


def places(graph: onnx.GraphProto) -> None:
    """Position ids from the places in the cache, less the padding before them."""
    graph.input.append(token_ids("cache_position", ["sequence_length"]))
    (given,) = (value for value in graph.input if value.name == "position_ids")
    graph.input.remove(given)
    for name, number in (("one_axis", [1]), ("one", 1), ("none", 0)):
        graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    graph.node.insert(0, op("Sub", "one attention_mask", "padding"))
    graph.node.insert(1, op("ReduceSum", "padding one_axis", "rows", keepdims=1))
    graph.node.insert(2, op("Sub", "cache_position rows", "counted"))
    graph.node.insert(3, op("Max", "counted none", "position_ids"))


@pytest.mark.parametrize("change", fast_only([keep, places], [places]))
def test_a_graph_with_a_switch_passes(tmp_path: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    """0 keeps every logit; the places count on through the cache: the healthy graph stays healthy, at every shape."""
    report = parity(changed(OPTIMUM, change, tmp_path / "model.onnx"), "optimum-llama")
    assert (str(report.verdict), failing(report)) == ("passed", set())
    assert report.structure is not None and len(report.structure.notes) == 1


def test_places_of_an_encoder_decoder_are_the_decoders(tmp_path: Path) -> None:
    """A graph of both has a place for each token of the decoder, however many the encoder has."""
    names = ("input_ids", "decoder_input_ids", "cache_position")
    axes = (["b", "encoder"], ["b", "decoder"], ["decoder"])
    nodes = [
        op("Add", "decoder_input_ids cache_position", "placed"),
        op("Unsqueeze", "placed last", "wide"),
        op("Cast", "wide", "logits", to=TensorProto.FLOAT),
    ]
    logits = value("logits", ["b", "decoder", 1])
    save(model_of(nodes, map(token_ids, names, axes), [logits], {"last": np.array([2])}), tmp_path / "model.onnx")
    bindings = graph_bindings.bind(read_graph(str(tmp_path / "model.onnx")), masked=False)
    model = graph_forward.GraphModel(ort_session.open_session(tmp_path / "model.onnx", "cpu"), bindings)
    ids = torch.zeros(2, 7, dtype=torch.int64)
    found = model.logits(Batch(ids, ids + 1, decoder_ids=torch.tensor([[5, 5, 5], [0, 0, 0]])))
    assert found[..., 0].tolist() == [[5, 6, 7], [0, 1, 2]]


def bound(*inputs: Value) -> graph_bindings.Bindings:
    ids = Value("input_ids", "INT64", ("b", "s"))
    return graph_bindings.bind(
        Graph("g.onnx", 20, (ids, *inputs), (Value("logits", "FLOAT", ()),), (), None), masked=False
    )


@pytest.mark.parametrize(
    "value",
    [
        Value("use_cache_branch", "BOOL", (1,)),  # and no cache
        Value("num_logits_to_keep", "FLOAT", ()),
        Value("num_logits_to_keep", "INT64", (2,)),
        Value("cache_position", "INT64", ("b", "s")),
    ],
)
def test_what_is_no_switch(value: Value) -> None:
    """Another type, other axes, or a branch without a cache: the error names the input."""
    with pytest.raises(UnreadableError, match=value.name):
        bound(value)


def test_embeddings_from_elsewhere_are_not_run() -> None:
    """A graph that begins behind the embedding is half of a model."""
    with pytest.raises(NotRunError, match="a decoder without its embedding: another graph computes its inputs_embeds"):
        bound(Value("inputs_embeds", "FLOAT", ("b", "s", 8)))


def test_a_fixed_place_is_a_fault() -> None:
    """cache_position of one length runs that many tokens alone."""
    for side, told in (("s", []), (4, ["the sequence axis (0) of the input cache_position is fixed at 4"])):
        found = graph_bindings.faults(bound(Value("cache_position", "INT64", (side,))))
        assert [fault for fault in found if "cache_position" in fault] == told


@pytest.mark.parametrize("shape", [(), (1,)])
def test_what_is_fed(shape: tuple[int, ...]) -> None:
    """The branch follows the past, no logits are cut, places begin where the cache ends."""
    branch, kept = Value("use_cache_branch", "BOOL", shape), Value("logits_to_keep", "INT32", shape)
    assert [graph_bindings.switched(branch, start, 9).tolist() for start in (0, 4)] == [
        np.full(shape, on).tolist() for on in (0, 1)
    ]
    assert (
        graph_bindings.switched(kept, 4, 9).shape,
        graph_bindings.switched(kept, 4, 9).dtype,
        graph_bindings.switched(kept, 4, 9).sum(),
    ) == (shape, np.int32, 0)
    assert graph_bindings.switched(Value("cache_position", "INT64", ("s",)), 4, 9).tolist() == [4, 5, 6, 7, 8]


def test_types_go_with_their_tokens() -> None:
    """Token types of a decoder with a cache are cut like its ids."""
    ids = torch.arange(12).reshape(2, 6)
    cut = Batch(ids, torch.ones_like(ids), types=ids % 2).until(4)
    assert cut.types.tolist() == (ids % 2)[:, :4].tolist() and cut.ids.shape == cut.mask.shape == (2, 4)


def seen(graph: Path, model: Path) -> Vocabulary | None:
    return lookups.every_lookup(measured_pair.open_subject(str(graph), inspect(model, depth="header"), "cpu"))


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
    tables = {"words": (6, 4), "turned_words": (4, 6), "deep": (6, 4, 1), "places": (9, 4)}
    for made, found in (
        (op("Identity", "words", "seen"), True),
        (op("Cast", "words", "seen", to=TensorProto.FLOAT), True),
        (op("Transpose", "turned_words", "seen"), True),
        (op("Identity", "turned_words", "seen"), False),
        (op("Transpose", "words", "seen"), False),
        (op("Transpose", "deep", "seen", perm=[2, 1, 0]), False),
        (op("Neg", "words", "seen"), False),
        (op("Identity", "places", "seen"), False),
    ):
        nodes = [
            op("Neg", "places", "unused"),
            op("Identity", "ids", "token"),
            made,
            find(axis=0) if made.op_type == "Cast" else find(),
            op("Neg", "x", "hidden"),
            op("MatMul", "hidden turned_words", "logits"),
        ]
        tensors = {name: np.zeros(sides, np.float32) for name, sides in tables.items()}
        ends = [token_ids("ids", ["n"])], [value("x"), value("logits")], tensors
        first = lookups.first_nodes(model_of(nodes, *ends), ("ids",), (6, 4))
        with case(made.op_type, *made.input):
            assert (first and (first.rows, first.results)) == ((("x",), ("x", "hidden")) if found else None)
        nodes[3].ClearField("attribute")
        nodes[3].attribute.append(helper.make_attribute("axis", 1))
        assert lookups.first_nodes(model_of(nodes, *ends), ("ids",), (6, 4)) is None


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
    assert batches.spread_ids(1021, 10**5, None) == tuple(range(1021))
    assert len(batches.spread_ids(1021, 10**5, None, few=True)) == 64
    assert batches.spread_ids(1021, 10**5, Vocabulary(1021, (), (7,)), few=True)[-1] == 7
    large = batches.spread_ids(256_000, 10**10, Vocabulary(256_000, (7,), (255_998,)))
    assert len(large) == 66 and {0, 7, 255_998, 255_999} <= set(large)
    cells = list(batches.token_cells(graph_bindings.Kind.SEQ2SEQ, tuple(range(300)), graph_bindings.Padding.FRONT))
    assert [(cell.batch, cell.sequence, cell.past, cell.group) for cell in cells] == [
        (256, 1, 1, "every token"),
        (44, 1, 1, "every token"),
    ]


def test_the_gate_counts_ids() -> None:
    """No gate without a visible lookup; each wrong id counts."""
    assert list(judge.lookup_gates(None)) == []
    (good,), (bad,) = judge.lookup_gates(Vocabulary(9)), judge.lookup_gates(Vocabulary(9, (3, 4)))
    assert (good.passed, bad.passed, bad.value) == (True, False, 2.0)
    assert "for 2 ids: 3, 4" in bad.sentence


def test_rows_are_compared_by_their_bytes() -> None:
    """NaN equals itself, and -0 is not 0; a value without rows counts for all rows."""
    one = torch.tensor([[float("nan")], [0.0], [1.0]])
    two = torch.tensor([[float("nan")], [-0.0], [1.0]])
    assert lookups._differing_ids(one, two, 3).tolist() == [False, True, False]
    assert lookups._differing_ids(torch.tensor(1), torch.tensor(2), 2).tolist() == [True, True]
