"""The share pass: copies are found by their content alone, and one copy gives the same bits."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest
from hypothesis import given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures.onnx_graphs import BUILDERS, LEFT, SHARED, Graph, H, V, build, embedding, turned, values
from tests.cli.run import run
from tests.lazy import ir, ort, session_proof as same_results, share_find as find
from tests.onnx.graphs import SHAPES, copies, disk, operators, outputs, same_bits, tensors
from tests.onnx.nodes import model, op, save, token_ids, value
from tieconv.errors import VerificationError

EMPTY = [(0, 3), (2, 0)]


def shared(tmp_path: Path, name: str, form: str = "gemm", **how: object) -> tuple[Path, Path]:
    source = build(name, tmp_path / "in" / "model.onnx", **how)
    outcome = api.plan_graph_dedup(source.parent, head_form=form).execute(tmp_path / "out")
    assert outcome.verified
    assert all(proof.proved for proof in outcome.proofs)
    return source, tmp_path / "out" / "model.onnx"


def matrices(name: str) -> list[np.ndarray]:
    return [array for key, array in BUILDERS[name]().tensors.items() if V in array.shape and array.ndim == 2]


@pytest.mark.sampled(15)
@pytest.mark.parametrize("form", ["gemm", "fused", "transpose"])
@pytest.mark.parametrize("name", SHARED)
def test_one_copy(tmp_path: Path, name: str, form: str) -> None:
    """Whatever the names and forms of its copies, each matrix is stored once."""
    source, out = shared(tmp_path, name, form)
    for matrix in matrices(name):
        assert len(copies(out, matrix)) == 1, copies(source, matrix)


FORMS = ["gemm", "fused", "transpose"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "form"), [(n, f) for n in sorted(SHARED) for f in FORMS])
def test_same_bits(tmp_path: Path, name: str, form: str) -> None:
    """A default session gives the same bits before and after, empty batches included."""
    source, out = shared(tmp_path, name, form)
    for place, shape in enumerate(SHAPES + EMPTY):
        before, after = (outputs(path, shape, V, seed=place) for path in (source, out))
        assert same_bits(before, after), shape


@pytest.mark.parametrize("name", ["half", "soft_cap"])
def test_no_other_rounding_is_said(tmp_path: Path, name: str) -> None:
    """A head behind its embedding, in F16, and a soft cap in F32: nothing can be rounded otherwise, nothing is said."""
    assert not any("round" in note for note in api.plan_graph_dedup(build(name, tmp_path / "model.onnx")).plan.notes)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted(SHARED))
def test_head_forms(tmp_path: Path, name: str) -> None:
    """Each form is what it is named after, and the default is Gemm."""
    source = build(name, tmp_path / "in" / "model.onnx")
    found = {}
    for form in ("gemm", "fused", "transpose"):
        api.plan_graph_dedup(source.parent, head_form=form).execute(tmp_path / form)
        found[form] = onnx.load(tmp_path / form / "model.onnx", load_external_data=False).SerializeToString()
    api.plan_graph_dedup(source.parent).execute(tmp_path / "default")
    assert onnx.load(tmp_path / "default/model.onnx", load_external_data=False).SerializeToString() == found["gemm"]
    if name != "columns":  # stored as [H, V] for both readers: no head to turn
        assert b"Gemm" in found["gemm"] and b"FusedMatMul" in found["fused"]
        assert b"FusedMatMul" not in found["gemm"] and b"Gemm" not in found["transpose"]


@pytest.mark.parametrize("operator", ["Identity", "Transpose"])
def test_a_matrix_that_the_graph_returns_too(tmp_path: Path, operator: str) -> None:
    """A session holds the output of an Identity as another copy, which the plan counts. A transposed output stays."""
    table = np.random.default_rng(0).standard_normal((V, H)).astype("f4")
    nodes = [op("Gather", "W input_ids", "x"), op("MatMul", "x U", "logits"), op(operator, "U", "returned")]
    outs = [value("logits", ["b", "s", V]), value("returned", [H, V] if operator == "Identity" else [V, H])]
    graph = model(nodes, [token_ids()], outs, {"W": table, "U": table.T.copy()})
    source = save(graph, tmp_path / "model.onnx")
    (finding,) = (finding for finding in api.inspect(source).findings if finding.rule == "ONX001")
    if operator == "Transpose":
        assert finding.remedy is None and "dedup keeps them because U is an output of the graph." in finding.message
        assert not any(matrix.done for matrix in api.plan_graph_dedup(source).plan.matrices)
        return
    assert finding.remedy is not None and finding.remedy.safe
    outcome = api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    assert [matrix.done for matrix in outcome.plan.matrices] == [True]
    assert all(proof.proved and [number for _, number in proof.copies] == [2] for proof in outcome.proofs)
    assert not [finding for finding in api.inspect(tmp_path / "out.onnx").findings if finding.rule == "ONX001"]


@pytest.mark.parametrize("name", sorted(LEFT))
def test_left(tmp_path: Path, name: str) -> None:
    """What holds nothing twice, or cannot be rewritten, comes along byte for byte."""
    source = build(name, tmp_path / "in" / "model.onnx")
    planned = api.plan_graph_dedup(source.parent)
    planned.execute(tmp_path / "out")
    if name == "in_function":
        assert len(copies(tmp_path / "out/model.onnx", matrices(name)[0])) == 1
        return
    assert not planned.plan.changed
    for file in source.parent.iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("name", "why"), [("quantised_twice", "DequantizeLinear"), ("overridable", "a caller may replace it")]
)
def test_left_is_said(tmp_path: Path, name: str, why: str) -> None:
    """A matrix whose copies stay is in the report, with the reason."""
    source = build(name, tmp_path / "model.onnx")
    (matrix,) = api.plan_graph_dedup(source).plan.matrices
    assert not matrix.done
    assert why in matrix.left


@pytest.mark.parametrize("name", sorted(SHARED))
def test_everything_else_stays(tmp_path: Path, name: str) -> None:
    """Inputs, outputs, opset, IR version, notes and all other nodes and tensors are those of the source."""
    source, out = shared(tmp_path, name)
    before, after = (onnx.load(path, load_external_data=False) for path in (source, out))
    assert list(before.graph.input) == list(after.graph.input)
    assert list(before.graph.output) == list(after.graph.output)
    assert list(before.opset_import) == list(after.opset_import)
    assert list(before.metadata_props) == list(after.metadata_props)
    for key in ("ir_version", "producer_name", "doc_string"):
        assert getattr(before, key) == getattr(after, key)
    assert before.graph.doc_string == after.graph.doc_string == "a model"
    gone = [node for node in before.graph.node if node not in list(after.graph.node)]
    told = {node for matrix in api.plan_graph_dedup(source.parent).plan.matrices for node in matrix.nodes}
    rewritten = [node for node in gone if node.op_type not in {"Transpose", "If"}]
    assert {f"{node.op_type} {node.name or node.output[0]}" for node in rewritten} <= told
    kept = dict(tensors(out))
    for key, array in tensors(source):
        if (V not in array.shape or array.ndim != 2) and key != "logit_scale":  # the Gemm's alpha, now
            assert np.array_equal(kept[key], array)


def test_bytes_promised_are_bytes_written(tmp_path: Path) -> None:
    """The plan's size on disk is what the directory then has, and half of the matrices' bytes are gone."""
    source = build("transposed", tmp_path / "in" / "model.onnx")
    plan = api.plan_graph_dedup(source.parent).plan
    assert plan.bytes_before == disk(source.parent)
    api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert plan.bytes_after == disk(tmp_path / "out")
    (matrix,) = plan.matrices
    assert (matrix.stored_before, matrix.stored_after) == (2 * 4 * V * H, 4 * V * H)


@pytest.mark.parametrize("external", [True, False])
def test_inline_and_external(tmp_path: Path, external: bool) -> None:
    """Weights inside the graph file stay inside it, those beside it beside it; small tensors stay inside."""
    source, out = shared(tmp_path, "transposed", external=external)
    assert sorted(file.name for file in out.parent.iterdir()) == sorted(file.name for file in source.parent.iterdir())
    offsets = [
        int(next(entry.value for entry in tensor.external_data if entry.key == "offset"))
        for tensor in onnx.load(out, load_external_data=False).graph.initializer
        if tensor.external_data
    ]
    assert bool(offsets) == external
    assert all(offset % 4096 == 0 for offset in offsets)


def test_second_run_changes_nothing(tmp_path: Path) -> None:
    """What the pass wrote holds nothing twice."""
    _, out = shared(tmp_path, "transposed")
    assert not api.plan_graph_dedup(out.parent).plan.changed


@pytest.mark.parametrize("name", ["transposed", "by_node"])
@pytest.mark.parametrize("opset", [11, 12, 13, 14])
def test_old_opset(tmp_path: Path, opset: int, name: str) -> None:
    """Without allowzero a Reshape would lose empty batches: [H, V] stays, and the embedding gathers columns.

    In opset 14, before Shape had an end, the leading axes are sliced from it.
    """
    source = build(name, tmp_path / "in" / "model.onnx", opset=opset)
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert [times for _, times in outcome.proofs[0].copies] == [1]
    made = operators(tmp_path / "out/model.onnx")
    assert "Slice" in made if opset == 14 else "Gemm" not in made
    for shape in SHAPES + EMPTY:
        assert same_bits(*(outputs(d / "model.onnx", shape, V) for d in (source.parent, tmp_path / "out")))


def test_too_old_is_left(tmp_path: Path) -> None:
    """An opset that the pass does not know is reported and left."""
    source = build("transposed", tmp_path / "in" / "model.onnx", opset=10)
    (matrix,) = api.plan_graph_dedup(source.parent).plan.matrices
    assert not matrix.done and "opset 10" in matrix.left


def nested(path: Path, kinds: tuple[str, ...]) -> Path:
    """Subgraphs in subgraphs, each with two innermost branches that store one matrix and multiply a row by it."""
    matrix = values(5, (64, 640))

    def inner(name: str, level: int) -> onnx.GraphProto:
        made = [value(f"{name}y")]
        if level == len(kinds):
            node = op("MatMul", f"x {name}w", f"{name}y")
            return helper.make_graph([node], name, [], made, [numpy_helper.from_array(matrix, f"{name}w")])
        if kinds[level] == "If":
            branches = {f"{side}_branch": inner(f"{name}{side}", level + 1) for side in ("then", "else")}
            return helper.make_graph([op("If", "c", f"{name}y", **branches)], name, [], made)
        body = inner(f"{name}l", level + 1)
        scalars = [token_ids(f"{name}i", []), value(f"{name}c", [], TensorProto.BOOL)]
        outputs = [value(f"{name}again", [], TensorProto.BOOL), *body.output]
        nodes = [op("Identity", f"{name}c", f"{name}again"), *body.node]
        body = helper.make_graph(nodes, name, scalars, outputs, body.initializer)
        nodes = [op("Loop", "trips -", f"{name}all", body=body)]
        nodes.append(op("ReduceMax", f"{name}all", f"{name}y", keepdims=0, axes=[0]))
        return helper.make_graph(nodes, name, [], made)

    top = inner("g", 0)
    inputs = [value("x", ["rows", 64])]
    inputs += [value("c", [], TensorProto.BOOL)] * ("If" in kinds) + [token_ids("trips", [])] * ("Loop" in kinds)
    return save(model(top.node, inputs, [value("gy", ["rows", 640])], top.initializer, opset=17, ir_version=9), path)


def test_subgraphs_keep_every_bit(tmp_path: Path) -> None:
    """Copies meet in the nearest common subgraph, one level out at most: further out a row gives other bits."""
    cases = {("If",): 1, ("If", "If"): 2, ("Loop", "If"): 1, ("If", "Loop"): 2, ("If", "If", "If"): 4}
    for kinds, stored in cases.items():
        source, out = nested(tmp_path / "model.onnx", kinds), tmp_path / f"{'-'.join(kinds)}.onnx"
        outcome = api.plan_graph_dedup(source).execute(out)
        assert len(copies(out, values(5, (64, 640)))) == stored, kinds
        for proof in outcome.proofs:
            trips = ("trips of a Loop that these inputs do not give",) * ("Loop" in kinds)
            assert proof.runs is not None and proof.runs.equal and proof.runs.not_run == trips, (kinds, proof.runs)
        for threads in (1, 2):
            options = ort.SessionOptions()
            options.intra_op_num_threads, options.log_severity_level = threads, 4
            pair = [
                ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]) for path in (source, out)
            ]
            for rows, chosen in product((1, 2, 5, 0), (True, False)):
                every = {"x": values(rows, (rows, 64)), "c": np.array(chosen), "trips": np.array(2)}
                feeds = {value.name: every[value.name] for value in pair[0].get_inputs()}
                assert same_bits(*(made.run(None, feeds) for made in pair)), (kinds, threads, rows, chosen)
        finding = api.inspect(source, depth="full").findings[0]
        assert finding.rule == "ONX001" and (finding.remedy is None) == (kinds == ("If", "Loop")), kinds
        assert finding.level == ("note" if finding.remedy is None else "warning"), kinds
        left = [(each.rule, str(each.level)) for each in api.inspect(out, depth="full").findings]
        assert left == ([("ONX001", "note")] if stored > 1 else []), kinds


def test_a_matrix_two_subgraphs_out_stays(tmp_path: Path) -> None:
    """A session does not pack it, so no node that reads it may get another form or another matrix."""
    path = nested(tmp_path / "model.onnx", ("If", "If"))
    model = onnx.load(path)
    outer = model.graph.node[0].attribute[0].g
    for branch in (attribute.g for attribute in outer.node[0].attribute):
        if not model.graph.initializer:
            model.graph.initializer.append(branch.initializer[0])
            model.graph.initializer[0].name = "shared"
        branch.node[0].input[1] = "shared"
        del branch.initializer[:]
    onnx.save(model, path)
    planned = api.plan_graph_dedup(path)
    assert not [matrix for matrix in planned.matrices if "shared" in (matrix.initializer, *matrix.dropped)]
    planned.execute(tmp_path / "out.onnx")
    assert "shared" in {name for name, _ in tensors(tmp_path / "out.onnx")}


def test_a_run_that_differs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If copies were moved two subgraphs out, the runs of both sessions would see it, and nothing is written."""
    monkeypatch.setattr("tieconv.onnx.share.share_matrices.near_homes", lambda reads: [((), list(range(len(reads))))])
    source = nested(tmp_path / "model.onnx", ("If", "If"))
    with pytest.raises(VerificationError, match="other bits than the source for one row"):
        api.plan_graph_dedup(source).execute(tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_axes_named_by_a_number(tmp_path: Path) -> None:
    """An exporter may name a fixed axis "8": the runs feed 8, and no input of hundreds of megabytes is drawn."""
    shape = ["batch", "2", "past", "8"]
    fed = same_results._feeds(helper.make_graph([], "g", [value("past", shape)], []), 1, 576, 50)
    assert fed is not None and fed["past"].shape == (1, 2, 576, 8)
    open_axes = helper.make_graph([], "g", [value("past", [*"abcd"])], [])
    assert same_results._feeds(open_axes, 1, 576, 50) is None


def test_what_was_not_run_is_named(tmp_path: Path) -> None:
    """A branch whose reshape no input fits is not run, and the result does not say "proved in a session"."""
    source = nested(tmp_path / "model.onnx", ("If",))
    model = onnx.load(source)
    branch = next(attribute.g for attribute in model.graph.node[0].attribute if attribute.name == "else_branch")
    branch.node.append(op("Reshape", f"{branch.output[0].name} seven", "shaped"))
    branch.initializer.append(numpy_helper.from_array(np.array([7, 77]), "seven"))
    branch.output[0].name = "shaped"
    onnx.save(model, source)
    result = run("dedup", source, "-o", tmp_path / "out.onnx")
    assert result.exit_code == 0 and "not all cases run" in result.stderr
    assert "else branch of gy" in result.stdout and "1 of 2 branches" in result.stdout


SHAPE_NAMES = ("one row", "several rows", "a longer input", "an empty batch")


@pytest.mark.parametrize(
    ("kinds", "equal", "parts"),
    [
        (("If",), 24, ["2 of 2 branches"]),
        (("If", "If"), 56, ["6 of 6 branches"]),
        (("Loop", "If"), 24, ["2 of 2 branches"]),
        (("If", "Loop"), 24, ["2 of 2 branches"]),
    ],
)
def test_every_branch_runs(
    tmp_path: Path, kinds: tuple[str, ...], equal: int, parts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shape of inputs with each of them, on one thread and on two; what is beyond the limit is told."""
    trips = ("trips of a Loop that these inputs do not give",) * ("Loop" in kinds)
    path = nested(tmp_path / "model.onnx", kinds)
    runs = same_results.compare_runs(path, path)
    assert (runs.equal, runs.cases) == (equal, (*SHAPE_NAMES, *parts))
    assert (runs.differing, runs.not_run) == ((), trips)
    monkeypatch.setattr(same_results, "MOST_RUNS", 1)
    few = same_results.compare_runs(path, path)
    assert few.equal == 2 * len(SHAPE_NAMES) + 2
    assert few.not_run == (*trips, f"{equal // 2 - len(SHAPE_NAMES) - 1} further combinations of branches")


def arithmetic(path: Path, *nodes: onnx.NodeProto, factor: float = 2, kind: int = TensorProto.FLOAT) -> Path:
    """A graph from ``x`` to ``y``, with a number ``w``."""
    ends = [value("x", ["rows", 4], kind)], [value("y", None, kind)]
    return save(model(nodes, *ends, {"w": np.array(factor, np.float32)}, ir_version=9), path)


def test_what_runs_of_two_graphs_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which shapes give other values, and by how much; or why nothing can be run."""
    product_of, unknown = op("Mul", "x w", "y"), op("No", "x", "y", domain="no")
    source = arithmetic(tmp_path / "source.onnx", product_of)
    turned = [op("Mul", "x w", "t"), op("Transpose", "t", "y")]
    other = arithmetic(tmp_path / "other.onnx", product_of, factor=2.5)
    runs = same_results.compare_runs(source, other)
    assert (runs.equal, runs.cases, runs.not_run) == (2, SHAPE_NAMES, ())  # an empty batch has no values
    assert runs.differing == tuple(
        f"{shape} (by up to {by})" for shape, by in zip(SHAPE_NAMES, ("6.0e-01", "9.4e-01", "3.6e-01"), strict=False)
    )
    for nodes in (turned, [unknown]):
        runs = same_results.compare_runs(source, arithmetic(tmp_path / "other.onnx", *nodes))
        assert (runs.equal, runs.differing) == (0, tuple(f"{shape} (by up to inf)" for shape in SHAPE_NAMES))
    runs = same_results.compare_runs(arithmetic(tmp_path / "none.onnx", unknown), source)
    why = "ONNX Runtime does not run the source with random inputs of these shapes"
    assert (runs.equal, runs.cases, runs.not_run) == (0, (), (f"{', '.join(SHAPE_NAMES)} ({why})",))
    drawn = arithmetic(tmp_path / "random.onnx", op("RandomNormalLike", "x", "y"))
    assert same_results.compare_runs(drawn, drawn).not_run == ("the graph draws random numbers",)
    text = arithmetic(tmp_path / "text.onnx", op("Identity", "x", "y"), kind=TensorProto.STRING)
    assert same_results.compare_runs(text, text).not_run == ("tieconv makes no input of the type of x",)
    monkeypatch.setattr(same_results, "available_memory", lambda: 6 * source.stat().st_size)
    (why,) = same_results.compare_runs(source, source).not_run
    assert why.startswith("two sessions need ")
    monkeypatch.setattr(same_results, "available_memory", lambda: 6 * source.stat().st_size + 1)
    assert same_results.compare_runs(source, source).not_run == ()


@pytest.mark.parametrize(
    ("operator", "first", "fused"),
    [("Mul", True, True), ("Mul", False, True), ("Div", True, False), ("Div", False, True)],
)
def test_a_quotient_of_a_number_is_no_factor(operator: str, first: bool, fused: bool) -> None:
    """A session fuses x / 2 and 2 * x into a MatMul, and not 2 / x."""
    number = ir.Value(name="c", const_value=ir.tensor(np.float32(2), name="c"))
    operands = [number, ir.Value(name="x")]
    node = ir.Node("", operator, operands if first else operands[::-1])
    assert bool(find._factor(None, node)) is fused


def plan(arrays: dict[str, np.ndarray], directory: Path):
    graph = embedding()
    graph.tensors |= arrays
    hidden = graph.body()
    for name in arrays:
        graph.add("MatMul", [hidden, name], f"logits.{name}")
        graph.output(f"logits.{name}")
    return api.plan_graph_dedup(graph.save(directory / "model.onnx")).plan


@settings(max_examples=25, deadline=None)
@given(st.integers(0, V * H * 32 - 1))
def test_one_bit(place: int) -> None:
    """Two matrices that differ in one bit anywhere are two matrices, whatever they are called."""
    copy = turned(embedding().tensors["model.embed_tokens.weight"])
    flat = copy.reshape(-1).view("u1")
    flat[place // 8] ^= 1 << (place % 8)
    with TemporaryDirectory() as directory:
        assert plan({"lm_head.weight": copy}, Path(directory)).matrices == ()


@pytest.mark.parametrize("name", ["lm_head.weight", "val_447", "x", "../é\n"])
def test_any_name(tmp_path: Path, name: str) -> None:
    """A copy is found under any name."""
    found = plan({name: turned(embedding().tensors["model.embed_tokens.weight"])}, tmp_path)
    assert found.matrices[0].dropped == (name,)


def test_a_cast_that_rounds_is_no_copy(tmp_path: Path) -> None:
    """A head that is the embedding rounded to half precision holds other values."""
    graph = embedding()
    graph.tensors["head"] = turned(graph.tensors["model.embed_tokens.weight"].astype("f2"))
    graph.add("Cast", [graph.body()], "narrow", to=10)
    graph.add("MatMul", ["narrow", "head"], "logits")
    graph.output("logits", dtype=10)
    assert api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices == ()


def test_a_cast_with_a_nan_is_left(tmp_path: Path) -> None:
    """A runtime's Cast need not keep a NaN's payload, so such a pair is not shared."""
    graph = embedding()
    half = values(1, (V, H), "f2")
    half[3, 4] = np.nan
    graph.tensors["model.embed_tokens.weight"] = half.astype("f4")
    graph.tensors["head"] = turned(half)
    graph.add("Cast", [graph.body()], "narrow", to=10)
    graph.add("MatMul", ["narrow", "head"], "logits")
    graph.output("logits", dtype=10)
    assert api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices == ()


def test_nan_and_zero_signs_are_bits(tmp_path: Path) -> None:
    """A NaN is equal to itself, and -0 is not 0."""
    graph = embedding()
    weight = graph.tensors["model.embed_tokens.weight"]
    weight[0, 0], weight[1, 1] = np.nan, 0.0
    same, other = turned(weight), turned(weight)
    other[1, 1] = -0.0
    for name, array in {"same": same, "other": other}.items():
        graph.tensors[name] = array
        graph.add("MatMul", [graph.body() if name == "same" else "hidden", name], f"logits.{name}")
        graph.output(f"logits.{name}")
    (matrix,) = api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices
    assert matrix.dropped == ("same",)


def test_cast_by_a_node_is_said(tmp_path: Path) -> None:
    """A Cast of a stored matrix becomes a second one in a session: reported, and left, as the file would grow."""
    graph = embedding()
    graph.tensors["model.embed_tokens.weight"] = values(1, (V, H), "f2")
    graph.nodes[0].output[0] = "narrow"
    graph.add("Cast", ["narrow"], "embedded", to=1)
    hidden = graph.body()
    graph.add("Cast", ["model.embed_tokens.weight"], "wide", to=1)
    graph.add("Transpose", ["wide"], "turned", perm=[1, 0])
    graph.add("MatMul", [hidden, "turned"], "logits")
    graph.output("logits")
    (matrix,) = api.plan_graph_dedup(graph.save(tmp_path / "model.onnx")).plan.matrices
    assert not matrix.done and "Cast" in matrix.left


def test_types_behind_a_transpose_need_no_declaration(tmp_path: Path) -> None:
    """A head behind a Transpose of which the graph declares nothing computes in the type of its own copy.

    Beside an F64 copy that only a Cast reads, the two F32 copies are shared and the F64 one stays.
    """
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": table.copy(), "wide": table.astype("f8")}
    x = graph.add("Gather", ["embed", "input_ids"], "x")
    weight = graph.add("Transpose", ["head"], "turned", perm=[1, 0])
    graph.add("MatMul", [x, weight], "logits")
    graph.add("Cast", ["wide"], "narrow", to=TensorProto.FLOAT)
    graph.add("Gather", ["narrow", "input_ids"], "other")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    graph.output("other", ["b", "s", H], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert outcome.verified
    matrices = [array for _, array in tensors(tmp_path / "out" / "model.onnx") if array.ndim == 2]
    assert sorted(array.dtype.str for array in matrices) == ["<f4", "<f8"]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_a_constant_node_of_the_same_values_is_shared(tmp_path: Path) -> None:
    """Its values are compared as those of an initializer are, and the proof counts one copy."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T)}
    x = graph.add("Gather", ["embed", "input_ids"], "x")
    graph.add("MatMul", [x, "head"], "logits")
    graph.nodes.append(helper.make_node("Constant", [], ["fixed"], value=numpy_helper.from_array(table, "fixed")))
    graph.add("Gather", ["fixed", "input_ids"], "other")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    graph.output("other", ["b", "s", H], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert outcome.verified and [count for _, count in outcome.proofs[0].copies] == [1]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_a_matrix_turned_twice_is_read_as_it_lies(tmp_path: Path) -> None:
    """Two Transposes in front of a lookup: a session would fold them into a copy beside the shared one."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T)}
    turned = graph.add("Transpose", ["embed"], "turned", perm=[1, 0])
    back = graph.add("Transpose", [graph.add("Identity", [turned], "same")], "back", perm=[1, 0])
    graph.add("MatMul", [graph.add("Gather", [back, "input_ids"], "x"), "head"], "logits")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert [count for _, count in outcome.proofs[0].copies] == [1]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_a_wider_copy_behind_a_cast_stays(tmp_path: Path) -> None:
    """An F64 copy that a Cast reads: sharing it would hold F64 and the folded F32. It is left, with the reason."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T).astype("f8")}
    weight = graph.add("Cast", ["head"], "narrow", to=TensorProto.FLOAT)
    graph.add("MatMul", [graph.add("Gather", ["embed", "input_ids"], "x"), weight], "logits")
    graph.output("logits", ["b", "s", V], TensorProto.FLOAT)
    plan = api.plan_graph_dedup(graph.save(tmp_path / "in" / "model.onnx")).plan
    assert not any(matrix.done for matrix in plan.matrices)
    assert any("a Cast reads it" in note for note in plan.notes)


def test_a_transpose_behind_the_head_is_taken_forward(tmp_path: Path) -> None:
    """The form `transpose` lets two heads read one Transpose, wherever the graph has it: nodes stay in order."""
    table = values(1, (V, H))
    graph = Graph(opset=18)
    graph.tensors |= {"embed": table, "head": np.ascontiguousarray(table.T)}
    x = graph.add("Gather", ["embed", "input_ids"], "x")
    graph.add("MatMul", [x, "head"], "logits")
    graph.add("MatMul", [x, graph.add("Transpose", ["embed"], "turned", perm=[1, 0])], "more")
    for name in ("logits", "more"):
        graph.output(name, ["b", "s", V], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    outcome = api.plan_graph_dedup(source.parent, head_form="transpose").execute(tmp_path / "out")
    assert outcome.verified and [count for _, count in outcome.proofs[0].copies] == [2]
    assert same_bits(*(outputs(path, (2, 3), V) for path in (source, tmp_path / "out" / "model.onnx")))
