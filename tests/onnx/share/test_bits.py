"""The same bits in a default session, whatever stands around the head."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import assume, example, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

import tieconv as api
from fixtures.onnx_graphs import Graph, build, turned, values
from tests.conftest import ROOT
from tests.lazy import ir, ort, share_find, untie
from tests.onnx.graphs import outputs, same_bits, session, write_optimised
from tests.onnx.nodes import model, op, save, token_ids, value
from tieconv.checkpoint.graph_structure import MEASURED_RUNTIMES, RUNTIMES

V = 96
FACTORS = [0.3, 30.0, 0.25, 1.0, 7.0**0.5, -1.7]
TYPES = {"f4": TensorProto.FLOAT, "f2": TensorProto.FLOAT16, "f8": TensorProto.DOUBLE}
STEPS = st.one_of(
    st.tuples(st.sampled_from(["Mul", "Div", "MulLeft"]), st.sampled_from(FACTORS)),
    st.tuples(st.sampled_from(["Cast", "Tanh", "Add", "Scale", "Norm", "Shared"]), st.just(1.0)),
)
Steps = list[tuple[str, float]]
SHAPES = [(1, 1), (1, 7), (3, 5), (0, 2), (2, 0)]


class Chain:
    """A graph that grows by a step at a time, from float inputs of [batch, sequence, width]."""

    def __init__(self, width: int, dtype: str) -> None:
        self.graph, self.dtype, self.width, self.count = Graph(opset=18), dtype, width, 0
        self.graph.tensors["embed"] = values(1, (V, width), dtype)
        self.at = self.graph.add("Gather", ["embed", "input_ids"], "embedded")

    def name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def constant(self, array: np.ndarray) -> str:
        name = self.name()
        self.graph.tensors[name] = array.astype(self.dtype)
        return name

    def step(self, kind: str, factor: float) -> None:
        graph, at = self.graph, self.at
        if kind in {"Mul", "Div", "MulLeft"}:
            inputs = [at, self.constant(np.array(factor))]
            self.at = graph.add(kind[:3], inputs[::-1] if kind == "MulLeft" else inputs, self.name())
        elif kind == "Deep":  # one number of three axes, beside a value of which no shape is declared
            self.at = graph.add("Mul", [at, self.constant(np.full((1, 1, 1), factor))], self.name())
        elif kind == "Computed":  # one number that a node computes
            self.at = graph.add(
                "Mul", [at, graph.add("Neg", [self.constant(np.array(factor))], self.name())], self.name()
            )
        elif kind == "Cast":
            self.dtype = "f2" if self.dtype == "f4" else "f4"
            self.at = graph.add("Cast", [at], self.name(), to=TYPES[self.dtype])
        elif kind in {"Tanh", "Identity", "Dropout", "Relu"}:
            self.at = graph.add(kind, [at], self.name())
        elif kind == "Zero":
            self.at = graph.add("Add", [self.constant(np.zeros(())), at], self.name())
        elif kind == "Same":
            self.at = graph.add("Cast", [at], self.name(), to=TYPES[self.dtype])
        elif kind in {"Add", "Scale"}:
            vector = self.constant(values(self.count, (self.width,)) + 1)
            self.at = graph.add("Add" if kind == "Add" else "Mul", [at, vector], self.name())
        elif kind == "Norm":
            scale, bias = (self.constant(values(self.count, (self.width,))) for _ in "ab")
            self.at = graph.add("LayerNormalization", [at, scale, bias], self.name())
        else:  # read by something else too
            graph.add("Tanh", [at], extra := self.name())
            graph.output(extra, ["b", "s", self.width], TYPES[self.dtype])

    def head(self) -> None:
        embed = self.graph.tensors["embed"].astype(self.dtype)
        self.graph.tensors["head"] = np.ascontiguousarray(embed.T)
        self.at, self.width = self.graph.add("MatMul", [self.at, "head"], self.name()), V

    def save(self, path: Path) -> Path:
        self.graph.add("Identity", [self.at], "logits")
        self.graph.output("logits", ["b", "s", V], TYPES[self.dtype])
        return self.graph.save(path)


def made(folder: Path, width: int, dtype: str, before: Steps, behind: Steps) -> Path:
    chain = Chain(width, dtype)
    for step in before:
        chain.step(*step)
    chain.head()
    for step in behind:
        chain.step(*step)
    return chain.save(folder / "in" / "model.onnx")


@cache
def fuses(dtype: str) -> bool:
    """Whether the installed ONNX Runtime takes a constant factor into a MatMul of this type."""
    with tempfile.TemporaryDirectory() as folder:
        source = made(Path(folder), 32, dtype, [("Mul", 0.3)], [])
        written = nodes(write_optimised(source, Path(folder) / "optimised.onnx"))
    alpha = [one.f for node in written for one in node.attribute if one.name == "alpha"]
    return any(number != 1 for number in alpha) and not any(node.op_type == "Mul" for node in written)


def check(source: Path, out: Path) -> None:
    """The same bits, where the runtime fuses factors as the measured releases do; else the same values."""
    assert api.plan_graph_dedup(source.parent, head_form="gemm").execute(out).verified
    if fuses("f4"):
        assert differing(source, out / "model.onnx") == []
        return
    feed = {"input_ids": np.arange(V)[None]}
    first, second = (session(path, optimise=True).run(None, feed) for path in (source, out / "model.onnx"))
    for one, two in zip(first, second, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-2, atol=1e-2)


def differing(source: Path, out: Path) -> list[tuple[int, int]]:
    """The shapes at which two graphs give other bits."""
    first, second = (session(path, optimise=True) for path in (source, out))
    feeds = [{"input_ids": np.random.default_rng(seed).integers(0, V, shape)} for seed, shape in enumerate(SHAPES)]
    return [
        shape
        for shape, feed in zip(SHAPES, feeds, strict=True)
        if not same_bits(*(made.run(None, feed) for made in (first, second)))
    ]


def told(source: Path, form: str | None = "gemm") -> list[str]:
    """What the plan says of roundings: each note names the releases of ONNX Runtime on which it was measured."""
    plan = api.plan_graph_dedup(source.parent, head_form=form).plan
    notes = [note for note in plan.notes if "may round the last bits differently" in note]
    assert all(note.startswith(f"{RUNTIMES} may round the last bits differently") for note in notes)
    return notes


def emulated(steps: Steps, dtype: str) -> bool:
    """Whether F16 is multiplied by a number or normalised, which the CPU provider may or may not do in F32."""
    for kind, _ in steps:
        if kind == "Cast":
            dtype = "f2" if dtype == "f4" else "f4"
        elif dtype == "f2" and kind in {"Mul", "Div", "MulLeft", "Norm"}:
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(width=st.sampled_from([32, 160, 1024]), before=st.lists(STEPS, max_size=3), behind=st.lists(STEPS, max_size=3))
@example(1024, [], [("Div", 30.0), ("Tanh", 1.0), ("Mul", 30.0)])  # Gemma 2
@example(1024, [("Mul", 1024**-0.5)], [])  # T5
@example(1024, [("Norm", 1.0)], [("Mul", 0.0625 * 1.3)])  # Cohere
@example(1024, [("Scale", 1.0)], [("Div", 7.0)])  # Granite
@example(1024, [("Mul", 0.3), ("Div", 30.0)], [("Mul", 0.3), ("Div", 7.0)])  # several at once
@example(32, [("Mul", 0.3)] * 2, [("Mul", 1.0), ("Mul", 7.0**0.5)])  # one of them 1, which the session drops first
def test_same_bits(width: int, before: Steps, behind: Steps) -> None:
    """Factors, norms, biases, casts before and behind the head: the same bits."""
    assume(not emulated([*before, *behind], "f4"))
    with tempfile.TemporaryDirectory() as folder:
        check(made(Path(folder), width, "f4", before, behind), Path(folder) / "out")


OTHER = [[], [("Cast", 1.0)], [("Add", 1.0)], [("Scale", 1.0)]]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("before", [*OTHER, [("Mul", 0.3)], [("Norm", 1.0)]], ids=str)
@pytest.mark.parametrize("behind", [*OTHER, [("Mul", 1.7)], [("Div", 7.0)]], ids=str)
def test_same_bits_in_half_precision(tmp_path: Path, before: Steps, behind: Steps) -> None:
    """F16 on the CPU, where the provider computes in F32 and leaves out roundings between two of its own casts."""
    source = made(tmp_path, 160, "f2", before, behind)
    check(source, tmp_path / "out")
    factors = [kind for kind, _ in (*before, *behind) if kind in {"Mul", "Div"}]
    assert bool(told(source)) == (("Norm", 1.0) in before or len(factors) > 1)


NOTHING = ["Identity", "Dropout", "Zero", "Same"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("nothing", NOTHING)
def test_what_a_session_leaves_out_hides_no_factor(tmp_path: Path, nothing: str, dtype: str) -> None:
    """Behind a node that changes nothing a factor is fused all the same: the plan tells what a Gemm keeps apart."""
    kept = (nothing, 1.0)
    chains: list[tuple[Steps, Steps]] = [
        ([("Mul", 0.3), kept], []),
        ([], [kept, ("Mul", 0.3)]),
        ([("Mul", 0.3), ("Cast", 1.0), kept, kept], []),
        ([("Relu", 1.0), kept], [kept, ("Relu", 1.0)]),
        ([("Zero", 1.0)], [kept, ("Zero", 1.0), ("Cast", 1.0)]),
        ([], [kept, ("Shared", 1.0)]),
    ]
    unlike = 0
    # A note that nothing calls for would pass below: some chain differs wherever the runtime fuses.
    for number, (before, behind) in enumerate(chains):
        source, out = made(tmp_path / str(number), 1024, dtype, before, behind), tmp_path / str(number) / "out"
        api.plan_graph_dedup(source.parent, head_form="gemm").execute(out)
        differs = differing(source, out / "model.onnx") != []
        assert told(source) or not differs, (before, behind)
        unlike += differs
    assert bool(unlike) == fuses(dtype)


def test_the_measured_runtimes_fuse_what_the_plan_says() -> None:
    """F32 and F16 factors are fused by both; F64 ones by 1.31.1 alone. Other releases are not judged."""
    if ort.__version__ not in MEASURED_RUNTIMES:
        pytest.skip(f"ONNX Runtime {ort.__version__} was not measured: {', '.join(MEASURED_RUNTIMES)}")
    assert [fuses(dtype) for dtype in TYPES] == [True, True, ort.__version__ == "1.31.1"]
    assert all(version in share_find.FUSED_F64 for version in MEASURED_RUNTIMES)


def test_the_pinned_runtime_is_a_measured_one() -> None:
    """A new release in the constraints is measured, and named in the notes, before it is merged."""
    pinned = (ROOT / ".ci" / "constraints.txt").read_text(encoding="ascii")
    assert [line for line in pinned.splitlines() if line.startswith("onnxruntime==")] == [
        f"onnxruntime=={MEASURED_RUNTIMES[-1]}"
    ]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(dtype=st.sampled_from(["f2", "f4"]), before=st.lists(STEPS, max_size=3), behind=st.lists(STEPS, max_size=3))
@example("f2", [("Add", 1.0), ("Norm", 1.0)], [])  # GPT-2, OPT, BERT
@example("f2", [("Mul", 0.3)], [("Mul", 0.3)])
@example("f2", [], [("Shared", 1.0)])
@example("f2", [("Mul", 7.0**0.5)], [("Scale", 1.0), ("Mul", 7.0**0.5)])  # one number twice
@example("f2", [], [("Cast", 1.0), ("Mul", 0.3)])
@example("f2", [("Mul", 0.3), ("Cast", 1.0)], [])
@example("f4", [("Mul", 0.3)], [("Cast", 1.0), ("Div", 30.0)])
@example("f2", [], [("Cast", 1.0), ("Cast", 1.0), ("Cast", 1.0)])
def test_another_rounding_is_said(dtype: str, before: Steps, behind: Steps) -> None:
    """Bits that differ are told in the plan, with the command that keeps them; that form has the same bits.

    Without `--head-form` the plan takes a form that keeps every bit.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, out = made(Path(folder), 160, dtype, before, behind), Path(folder) / "out"
        assert told(source, None) == []
        api.plan_graph_dedup(source.parent).execute(Path(folder) / "chosen")
        assert differing(source, Path(folder) / "chosen" / "model.onnx") == []
        api.plan_graph_dedup(source.parent, head_form="gemm").execute(out)
        if differing(source, out / "model.onnx"):
            (note,) = told(source)
            assert note.endswith(f"tieconv dedup {source.parent} --head-form fused -o OUT")
            api.plan_graph_dedup(source.parent, head_form="fused").execute(Path(folder) / "fused")
            assert differing(source, Path(folder) / "fused" / "model.onnx") == []
            assert told(source, "fused") == []


@pytest.mark.parametrize(
    ("dtype", "before", "behind"),
    [
        ("f4", [("Deep", 0.3)], []),
        ("f4", [], [("Deep", 0.3)]),
        ("f4", [("Computed", 0.3)], []),
        ("f4", [], [("Mul", 0.3), ("Computed", 0.7)]),
        ("f8", [("Mul", 0.3)], []),
        ("f8", [], [("Div", 7.0)]),
    ],
    ids=str,
)
def test_a_factor_that_stays_a_node_is_said(tmp_path: Path, dtype: str, before: Steps, behind: Steps) -> None:
    """What the Gemm cannot take in is no longer fused by the session: told with the form that has the same bits.

    `dedup` takes that form by itself.
    """
    source = made(tmp_path, 160, dtype, before, behind)
    (note,) = told(source)
    assert note.endswith(f"tieconv dedup {source.parent} --head-form fused -o OUT")
    outcome = api.plan_graph_dedup(source.parent).execute(tmp_path / "out")
    assert [matrix.form for matrix in outcome.plan.matrices] == ["fused"]
    assert differing(source, tmp_path / "out" / "model.onnx") == []


@pytest.mark.parametrize("before", [[("Norm", 1.0)], [("Scale", 1.0)], [("Add", 1.0), ("Scale", 1.0)], []], ids=str)
def test_a_vector_beside_a_head_is_no_factor(tmp_path: Path, before: Steps) -> None:
    """The weight of a norm changes nothing, and nothing is told."""
    assert told(made(tmp_path, 160, "f4", before, [("Scale", 1.0)])) == []


def test_a_matrix_on_the_left_is_said(tmp_path: Path) -> None:
    """Transposes around it are fused by rules of the session's own; no form of the head is offered for it."""
    graph = Graph(opset=18)
    matrix = graph.tensors["W"] = values(1, (V, 160), "f4")
    graph.tensors["T"] = np.ascontiguousarray(matrix.T)
    columns = graph.add("Gather", ["T", "input_ids"], "columns", axis=1)
    graph.add("MatMul", ["W", graph.add("Transpose", [columns], "turned", perm=[1, 0, 2])], "logits")
    graph.output("logits", ["b", V, "s"], TensorProto.FLOAT)
    source = graph.save(tmp_path / "in" / "model.onnx")
    assert told(source) == [
        f"{RUNTIMES} may round the last bits differently next to a MatMul with the matrix as its left operand"
    ]


def nodes(path: Path) -> list[onnx.NodeProto]:
    return list(onnx.load(path, load_external_data=False).graph.node)


@pytest.mark.parametrize(
    ("before", "behind", "alpha", "left"),
    [
        ([("Mul", 0.3)], [], np.float32(0.3), []),
        ([], [("Div", 30.0), ("Tanh", 1.0)], np.float32(1) / np.float32(30), []),
        ([("Mul", 0.3)], [("Mul", 7.0)], np.float32(0.3) * np.float32(7), []),
        ([("Mul", 0.3), ("Shared", 1.0)], [], np.float32(0.3), ["Mul"]),
        ([], [("Shared", 1.0), ("Mul", 0.3)], None, ["Mul"]),
        ([("Scale", 1.0)], [("Add", 1.0), ("Mul", 0.3)], None, ["Mul", "Mul"]),
    ],
)
def test_alpha(tmp_path: Path, before: Steps, behind: Steps, alpha: np.float32 | None, left: list[str]) -> None:
    """A constant factor beside the head becomes the Gemm's alpha; what something else reads as well stays."""
    source = made(tmp_path, 32, "f4", before, behind)
    outcome = api.plan_graph_dedup(source.parent, head_form="gemm").execute(tmp_path / "out")
    out = nodes(tmp_path / "out" / "model.onnx")
    (gemm,) = (node for node in out if node.op_type == "Gemm")
    found = {attribute.name: attribute.f for attribute in gemm.attribute}
    assert found.get("alpha") == (None if alpha is None else alpha)
    assert [node.op_type for node in out if node.op_type in {"Mul", "Div"}] == left
    (matrix,) = outcome.plan.matrices
    factors = [kind for kind, _ in before + behind if kind in {"Mul", "Div"}]
    assert len(matrix.nodes) == 1 + (0 if alpha is None else len(factors))


def test_numbers_that_nothing_reads_go(tmp_path: Path) -> None:
    """The factor's initializer goes with its node, and stays where another node reads it."""
    chain = Chain(32, "f4")
    cap = chain.constant(np.array(30.0))
    chain.head()
    for kind in ("Div", "Tanh", "Mul"):
        inputs = [chain.at] if kind == "Tanh" else [chain.at, cap]
        chain.at = chain.graph.add(kind, inputs, chain.name())
    source = chain.save(tmp_path / "in" / "model.onnx")
    api.plan_graph_dedup(source.parent, head_form="gemm").execute(tmp_path / "out")
    graph = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False).graph
    assert cap in {tensor.name for tensor in graph.initializer}
    alone = made(tmp_path / "alone", 32, "f4", [], [("Mul", 0.3)])
    api.plan_graph_dedup(alone.parent).execute(tmp_path / "alone" / "out")
    graph = onnx.load(tmp_path / "alone" / "out" / "model.onnx", load_external_data=False).graph
    assert all(tensor.name == "embed" or tensor.name.endswith(("/rows", "/width")) for tensor in graph.initializer)


def lone_head(
    path: Path, dtype: str, before: list[onnx.NodeProto], behind: list[onnx.NodeProto], **numbers: float
) -> Path:
    """`hidden` [n, width] in F32 to `logits` through a head in ``dtype``, no shape declared between them."""
    embed = (10 * values(1, (V, 32))).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(embed.dtype)
    nodes = [op("Gather", "embed ids", "found"), *before, op("MatMul", "x head", "y"), *behind]
    tensors = {"embed": embed, "head": turned(embed), **{name: np.array([n], dtype) for name, n in numbers.items()}}
    inputs, outputs = [token_ids("ids", ["n"]), value("hidden", ["n", 32])], [value("logits", ["n", V])]
    return save(model(nodes, inputs, [value("found", ["n", 32], kind), *outputs], tensors, opset=18), path)


def check_lone(source: Path, out: Path) -> list[onnx.NodeProto]:
    outcome = api.plan_graph_dedup(source.parent, head_form="gemm").execute(out)
    assert outcome.verified and all(proof.proved for proof in outcome.proofs)
    made = [session(path, optimise=True) for path in (source, out / "model.onnx")]
    feeds = {"ids": np.arange(3), "hidden": 9 * values(2, (3, 32))}
    assert same_bits(*(one.run(None, feeds) for one in made))
    return nodes(out / "model.onnx")


@pytest.mark.parametrize("dtype", ["f2", "i4", "i8"])
def test_types_without_a_declared_shape(tmp_path: Path, dtype: str) -> None:
    """A cast that declares no shape stays before a lone Gemm; integers keep a MatMul, as no Gemm takes them."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    before, behind = [op("Cast", "hidden", "x", to=kind)], [op("Cast", "y", "logits", to=TensorProto.FLOAT)]
    made = check_lone(lone_head(tmp_path / "in" / "model.onnx", dtype, before, behind), tmp_path / "out")
    products = [node.op_type for node in made if node.op_type in {"Cast", "Reshape", "Gemm", "MatMul"}]
    assert products == ["Cast", "Gemm" if dtype == "f2" else "MatMul", "Cast"]


@pytest.mark.parametrize("factor", [1e30, 1e-30])
def test_factors_beyond_an_alpha(tmp_path: Path, factor: float) -> None:
    """Factors whose product is infinite or nothing in F32: those that fit become the alpha, the others stay nodes."""
    before, behind = [op("Mul", "hidden c", "x")], [op("Mul", "y c", "logits")]
    source = lone_head(tmp_path / "in" / "model.onnx", "f4", before, behind, c=factor)
    made = check_lone(source, tmp_path / "out")
    assert [node.op_type for node in made] == ["Gather", "Gemm", "Mul"]
    (alpha,) = (attribute.f for node in made for attribute in node.attribute if attribute.name == "alpha")
    assert alpha == np.float32(factor)


def _branch(name: str, inputs: str) -> onnx.GraphProto:
    return helper.make_graph([op("Mul", inputs, name)], name, [], [value(name)])


STAY = {
    "an output of the graph": ([op("Mul", "y c", "logits")], ["y"], []),
    "two factors of one product": ([op("Mul", "y c", "logits"), op("Mul", "y c", "more")], ["more"], []),
    "a number over the product": ([op("Div", "c y", "logits")], [], []),
    "a number that a caller may replace": ([op("Mul", "y c", "logits")], [], ["c"]),
    "a number that adds axes": ([op("Mul", "y wide", "logits")], [], []),
    "a factor in a branch": (
        [op("Cast", "one", "yes", to=TensorProto.BOOL),
         op("If", "yes", "logits", then_branch=_branch("t", "y c"), else_branch=_branch("e", "c c"))],
        [], []),
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_is_no_factor_of_the_product_alone_stays(tmp_path: Path, name: str) -> None:
    """A factor stays a node where something else sees the product without it, or where it is none."""
    behind, more, inputs = STAY[name]
    sides = [1, "n", V] if name == "a number that adds axes" else ["n", V]
    before = [op("Identity", "hidden", "x")]
    path = lone_head(tmp_path / "in" / "model.onnx", "f4", before, behind, c=0.3, one=1.0)
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.full((1, 1, 1), 0.3, "f4"), "wide"))
    model.graph.value_info.append(value("y", ["n", V]))
    model.graph.output[1].CopyFrom(value("logits", sides))
    model.graph.output.extend(value(one, ["n", V]) for one in more)
    model.graph.input.extend(value(one, [1]) for one in inputs)
    onnx.save(model, path)
    made = check_lone(path, tmp_path / "out")
    assert [node.op_type for node in made if node.op_type in {"Mul", "Div", "If"}] == [
        node.op_type for node in behind if node.op_type != "Cast"
    ]
    assert alphas(made) == []


def alphas(found: Iterable[onnx.NodeProto]) -> list[float]:
    """The alphas of nodes and of those in their branches."""
    held = [attribute for node in found for attribute in node.attribute]
    inside = [value for attribute in held if attribute.HasField("g") for value in alphas(attribute.g.node)]
    return [attribute.f for attribute in held if attribute.name == "alpha"] + inside


def test_a_factor_before_the_branches_stays(tmp_path: Path) -> None:
    """Heads in the branches of an If, their factor outside: a session fuses nothing across, nor does the pass."""
    path = build("branches", tmp_path / "in" / "model.onnx", external=False)
    model = onnx.load(path)
    *before, choice = model.graph.node
    for attribute in choice.attribute:
        attribute.g.node[0].input[0] = "scaled"
    del model.graph.node[:]
    model.graph.node.extend([*before, op("Mul", "hidden c", "scaled"), choice])
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.3), "c"))
    onnx.save(model, path)
    assert api.plan_graph_dedup(path.parent).execute(tmp_path / "out").verified
    made = nodes(tmp_path / "out" / "model.onnx")
    assert alphas(made) == [] and "Mul" in {node.op_type for node in made}
    for seed in (0, 1):
        assert same_bits(*(outputs(one, (2, 3), V, seed=seed) for one in (path, tmp_path / "out" / "model.onnx")))


class Framed:
    """Reshape, Gemm and Reshape around ``x`` of [2, 3, 4], as torch exports a linear layer."""

    def __init__(self) -> None:
        self.x = self.value("x", [2, 3, 4])
        self.first = ir.node("Reshape", [self.x, self.constant("rows", [-1, 4])])
        self.gemm = ir.node("Gemm", [self.first.outputs[0], self.value("w", [4, 8])])
        self.last = self.reshape(self.constant("shape", [2, 3, 8]))

    def value(self, name: str, shape: list[int]) -> ir.Value:
        return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))

    def constant(self, name: str, entries: object) -> ir.Value:
        return ir.Value(name=name, const_value=ir.tensor(np.array(entries, "<i8"), name=name))

    def reshape(self, shape: ir.Value) -> ir.Node:
        return ir.node("Reshape", [self.gemm.outputs[0], shape])

    def leading(self, node: ir.Node, tail: object = (8,)) -> None:
        """The last shape is computed: the leading sides, then ``tail``."""
        joined = ir.node("Concat", [node.outputs[0], self.constant("tail", tail)], attributes={"axis": 0})
        self.last.replace_input_with(1, joined.outputs[0])

    def sliced(self, *, start: int = 0, end: int = -1, source: ir.Value | None = None, op: str = "Shape") -> ir.Node:
        shape = ir.node(op, [source or self.x])
        return ir.node("Slice", [shape.outputs[0], self.constant("s", [start]), self.constant("e", [end])])


def shaped(framed: Framed, **attributes: int) -> ir.Node:
    return ir.node("Shape", [framed.x], attributes=attributes)


GOOD = {
    "a constant shape": lambda framed: None,
    "a slice of the shape": lambda framed: framed.leading(framed.sliced()),
    "a shape that ends early": lambda framed: framed.leading(shaped(framed, end=-1)),
    "a start of nothing": lambda framed: framed.leading(shaped(framed, start=0, end=-1)),
}
RESHAPED = {
    "another leading side": lambda framed: framed.last.replace_input_with(1, framed.constant("shape", [3, 2, 8])),
    "one side less": lambda framed: framed.last.replace_input_with(1, framed.constant("shape", [6, 8])),
    "a shape that is not known": lambda framed: framed.last.replace_input_with(1, framed.value("shape", [3])),
    "a matrix of shapes": lambda framed: framed.last.replace_input_with(1, framed.constant("shape", [[2, 3, 8]])),
    "rows that are counted": lambda framed: framed.first.replace_input_with(1, framed.constant("rows", [6, 4])),
    "three sides before": lambda framed: framed.first.replace_input_with(1, framed.constant("rows", [-1, 2, 2])),
    "rows that are not known": lambda framed: framed.first.replace_input_with(1, framed.value("rows", [2])),
    "no Reshape before": lambda framed: framed.gemm.replace_input_with(0, ir.node("Relu", [framed.x]).outputs[0]),
    "nothing before": lambda framed: framed.gemm.replace_input_with(0, framed.value("y", [6, 4])),
    "read twice": lambda framed: ir.node("Relu", [framed.gemm.outputs[0]]),
    "read by none": lambda framed: framed.last.replace_input_with(0, framed.value("y", [6, 8])),
    "a slice that starts later": lambda framed: framed.leading(framed.sliced(start=1)),
    "a slice that ends earlier": lambda framed: framed.leading(framed.sliced(end=-2)),
    "a slice of another shape": lambda framed: framed.leading(framed.sliced(source=framed.value("z", [5, 3, 4]))),
    "a slice of no shape": lambda framed: framed.leading(framed.sliced(op="Size")),
    "a whole shape": lambda framed: framed.leading(shaped(framed)),
    "a shape that starts later": lambda framed: framed.leading(shaped(framed, start=1, end=-1)),
    "a shape of another value": lambda framed: framed.leading(
        ir.node("Shape", [framed.value("z", [5, 3, 4])], attributes={"end": -1})
    ),
    "a tail of two": lambda framed: framed.leading(framed.sliced(), [[4, 2]]),
}


@pytest.mark.parametrize("case", GOOD)
def test_a_frame(case: str) -> None:
    """It has the input and the three nodes."""
    framed = Framed()
    GOOD[case](framed)
    found = untie.reshaped_gemm_of(framed.gemm)
    assert found is not None
    parts = found.x, found.first_reshape, found.gemm, found.last_reshape
    assert parts == (framed.x, framed.first, framed.gemm, framed.last)


@pytest.mark.parametrize("case", RESHAPED)
def test_no_frame(case: str) -> None:
    """One thing is other than in a linear layer, and the Gemm is left as it is."""
    framed = Framed()
    kept = RESHAPED[case](framed)
    assert untie.reshaped_gemm_of(framed.gemm) is None, kept


def test_the_product_as_an_output() -> None:
    """A Gemm that the graph also gives out stays."""
    framed = Framed()
    ir.Graph([framed.x], framed.gemm.outputs, nodes=[framed.first, framed.gemm, framed.last], opset_imports={"": 18})
    assert untie.reshaped_gemm_of(framed.gemm) is None


def test_the_product_as_a_shape() -> None:
    """The Reshape after it must take the product as its data."""
    framed = Framed()
    framed.last.replace_input_with(0, framed.value("y", [2, 3, 8]))
    framed.last.replace_input_with(1, framed.gemm.outputs[0])
    assert untie.reshaped_gemm_of(framed.gemm) is None
