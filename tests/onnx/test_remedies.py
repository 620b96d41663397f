"""Remedies of rules about graphs are run, and `dedup` answers for each graph of a directory."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tieconv as api
from fixtures.onnx_graphs import BUILDERS, Graph, H, V, build, embedding, transposed, turned, values
from tests.cli.run import run
from tests.onnx.graphs import outputs, same_bits
from tests.onnx.nodes import model, op, outside, save, token_ids, value
from tests.onnx.share.test_bits import Chain
from tests.onnx.share.test_quantised_pairs import Pair, build as build_pair
from tieconv.checkpoint.finding import Finding

HALF = TensorProto.FLOAT16


def rounding() -> Graph:
    """F16 behind a LayerNormalization, where a Gemm may round differently: `fused` keeps every bit."""
    chain = Chain(160, "f2")
    for kind in ("Add", "Norm"):
        chain.step(kind, 1.0)
    chain.head()
    chain.graph.add("Identity", [chain.at], "logits")
    chain.graph.output("logits", ["batch", "sequence", V], HALF)
    return chain.graph


def old_opset() -> Graph:
    """Opset 12 with ids of unknown rank: neither a Gemm nor a lookup of columns serves."""
    graph = transposed()
    graph.opset = 12
    graph.tensors["zero"] = np.array(0)
    graph.nodes[0].input[1] = "ids"
    graph.nodes.insert(0, helper.make_node("Add", ["input_ids", "zero"], ["ids"]))
    return graph


def embed_layer_norm() -> Graph:
    """BERT as ONNX Runtime's optimiser writes it."""
    graph = Graph(extra={"com.microsoft": 1})
    graph.tensors |= {
        "words": values(1, (V, H)), "positions": values(2, (2 * V, H)), "gamma": values(4, (H,)),
        "beta": values(5, (H,)),
    }  # fmt: skip
    graph.add("Cast", ["input_ids"], "ids", to=TensorProto.INT32)
    inputs = ["ids", "", "words", "positions", "", "gamma", "beta"]
    node = helper.make_node(
        "EmbedLayerNormalization", inputs, ["embedded", "mask"], name="embed", domain="com.microsoft"
    )
    graph.nodes.append(node)
    graph.tensors["head"] = turned(graph.tensors["words"])
    graph.add("MatMul", [graph.body(), "head"], "logits")
    graph.output("logits")
    return graph


def small_half() -> Graph:
    """1,024 numbers and more in F16: less than a page of bytes."""
    graph = Graph(dtype=HALF)
    graph.tensors |= {"embed": values(1, (V, 16), "f2"), "head": turned(values(1, (V, 16), "f2"))}
    graph.add("MatMul", [graph.add("Gather", ["embed", "input_ids"], "x"), "head"], "logits")
    graph.output("logits")
    return graph


def unknown_half() -> Graph:
    """Two copies in F16, 16,384 numbers each, none of them a head."""
    graph = embedding()
    graph.tensors |= {"one": values(3, (V, 192), "f2"), "two": values(3, (V, 192), "f2")}
    for name in ("one", "two"):
        graph.output(graph.add("Gather", [name, "input_ids"], f"{name} rows"), ["batch", "sequence", 192], HALF)
    graph.output(graph.body())
    graph.outputs[-1].type.tensor_type.shape.dim[2].dim_value = H
    return graph


def left() -> Graph:
    """The matrix on the left of a MatMul: no form keeps every bit."""
    graph = Graph()
    matrix = graph.tensors["W"] = values(1, (V, 192))
    graph.tensors["T"] = turned(matrix)
    columns = graph.add("Gather", ["T", "input_ids"], "columns", axis=1)
    graph.add("MatMul", ["W", graph.add("Transpose", [columns], "turned", perm=[1, 0, 2])], "logits")
    graph.output("logits", ["batch", V, "sequence"])
    return graph


def by_two_names() -> Graph:
    """A transposed copy that nodes without another form read, and a pair that can be shared."""
    graph = transposed()
    graph.tensors |= {"square": values(5, (192, V)), "turned square": turned(values(5, (192, V)))}
    for name in ("square", "turned square"):
        graph.output(graph.add("Abs", [name], f"{name} out"), list(graph.tensors[name].shape))
    return graph


MADE: dict[str, Callable[[], Graph]] = {
    one.__name__: one for one in (rounding, old_opset, embed_layer_norm, small_half, unknown_half, left, by_two_names)
}
ALL = {**BUILDERS, **MADE}


def findings(path: Path) -> list[Finding]:
    return [one for one in api.inspect(path, depth="full").findings if one.rule.startswith("ONX")]


def built(name: str, tmp_path: Path) -> Path:
    source = ALL[name]().save(tmp_path / "in" / "model.onnx")
    if name == "old_opset":  # the exporter declared nothing of what the ids are computed from
        model = onnx.load(source)
        del model.graph.value_info[:]
        onnx.save(model, source)
    return source


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", sorted(ALL))
def test_a_printed_remedy_ends_its_finding(tmp_path: Path, name: str) -> None:
    """The command is run as it is printed; what it is about is then found no more, and every bit is the same."""
    source = built(name, tmp_path)
    for number, finding in enumerate(findings(source)):
        if finding.remedy is None:
            continue
        words = shlex.split(finding.remedy.command)
        assert words[0] == "tieconv" and words[-1] == "OUT"
        out = tmp_path / str(number) / "out.onnx"
        out.parent.mkdir()
        done = run(shlex.join(words[1:-1]), out)
        assert done.exit_code == 0, done.output
        told = [(one.rule, one.tensors) for one in findings(out)]
        assert (finding.rule, finding.tensors) not in told
        assert finding.remedy.safe == (name != "left")
        for shape in ((2, 7), (1, 1)):
            before, after = (outputs(path, shape, V) for path in (source, out))
            if finding.remedy.safe:
                assert same_bits(before, after), shape
            else:
                for one, two in zip(before, after, strict=True):
                    np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


WITHOUT = {"overridable": "is an input of the graph, so a caller may replace it", "by_two_names": "Abs reads"}


@pytest.mark.parametrize("name", sorted(ALL))
def test_a_remedy_is_printed_where_dedup_changes_something(tmp_path: Path, name: str) -> None:
    """What `dedup` would leave has no command, and the message says why; the plan agrees copy by copy."""
    source = built(name, tmp_path)
    form = "gemm" if name == "left" else None
    kept = {m.initializer: m for m in api.plan_graph_dedup(source, head_form=form).plan.matrices}
    done = {one for m in kept.values() if m.done for one in (m.initializer, *m.dropped)}
    for finding in findings(source):
        if finding.rule == "ONX001":
            assert (finding.remedy is not None) == bool(done & set(finding.tensors)), finding
            assert ("dedup keeps them because" in finding.message) == (finding.remedy is None)
    if name in WITHOUT:
        (finding,) = [one for one in findings(source) if one.remedy is None]
        assert WITHOUT[name] in finding.message


@pytest.mark.parametrize("name", sorted(MADE))
def test_what_was_made_is_found(tmp_path: Path, name: str) -> None:
    """Each of the graphs of this page has a finding, with a remedy that is run above."""
    assert any(one.remedy for one in findings(built(name, tmp_path)))


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize(("rows", "told"), [(63, False), (64, True)])
def test_the_threshold_counts_numbers(tmp_path: Path, dtype: str, rows: int, told: bool) -> None:
    """A head of 1,024 numbers is worth a finding, one of 1,008 is not, in F32 and in F16; `dedup` agrees."""
    graph = Graph(dtype=HALF if dtype == "f2" else TensorProto.FLOAT)
    graph.tensors |= {"embed": values(1, (rows, 16), dtype), "head": turned(values(1, (rows, 16), dtype))}
    graph.add("MatMul", [graph.add("Gather", ["embed", "input_ids"], "x"), "head"], "logits")
    graph.output("logits", ["batch", "sequence", rows])
    source = graph.save(tmp_path / "model.onnx")
    assert [one.rule for one in findings(source)] == ["ONX001"] * told
    assert bool(api.plan_graph_dedup(source).plan.matrices) == told


@pytest.mark.parametrize("dtype", ["f4", "f2"])
@pytest.mark.parametrize(("rows", "told"), [(255, False), (256, True)])
def test_the_threshold_of_other_copies_counts_numbers(tmp_path: Path, dtype: str, rows: int, told: bool) -> None:
    """A copy outside the head counts from 16,384 numbers on, and so does a copy that a session folds."""
    kind = HALF if dtype == "f2" else TensorProto.FLOAT
    graph = embedding()
    graph.tensors |= {"one": values(3, (64, rows), dtype), "two": values(3, (64, rows), dtype)}
    graph.tensors["both"] = values(4, (rows, 64), dtype)
    graph.add("Transpose", ["both"], "turned", perm=[1, 0])
    for name, width in (("one", rows), ("two", rows), ("both", 64), ("turned", rows)):
        graph.output(graph.add("Gather", [name, "input_ids"], f"{name} rows"), ["batch", "sequence", width], kind)
    graph.output(graph.body(), ["batch", "sequence", H])
    found = findings(graph.save(tmp_path / "model.onnx"))
    assert [one.rule for one in found] == ["ONX001", "ONX002"] * told


def test_each_graph_has_an_answer(tmp_path: Path) -> None:
    """A float graph, an int4 pair, and an int4 pair that only looks equal: shared, shared, and left with the reason."""
    source = tmp_path / "in"
    build("transposed", source / "prefill.onnx", external=False)
    build_pair(source / "decode.onnx", Pair())
    build_pair(source / "other.onnx", Pair(changed=("embed_scales",)))
    plan = json.loads(run("dedup --json", source).stdout)
    assert {graph["name"]: (graph["changed"], graph["answer"]) for graph in plan["graphs"]} == {
        "decode.onnx": (True, "1 matrix is stored once"),
        "other.onnx": (False, "nothing to change"),
        "prefill.onnx": (True, "1 matrix is stored once"),
    }
    result = run("dedup", source, "-o", tmp_path / "out")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stderr.splitlines()]
    assert ["graph", "decode.onnx", "1", "matrix", "is", "stored", "once"] in rows
    assert ["graph", "other.onnx", "nothing", "to", "change"] in rows
    assert "other.onnx: not changed: the quantised embedding and head stay two matrices" in " ".join(
        result.stderr.split()
    )
    assert (tmp_path / "out" / "other.onnx").read_bytes() == (source / "other.onnx").read_bytes()
    assert result.stdout.count("proved: a session of") == 2


@pytest.mark.slow
def test_a_graph_above_2_gb(tmp_path: Path) -> None:
    """Two copies of 1.2 GB in a sparse data file: one remains, proved in a session."""
    rows, width = 150_000, 2048
    size = rows * width * 4
    shapes = {"embed": (rows, width), "head": (width, rows)}
    stored = [outside(*shape, "model.onnx.data", at * size, size) for at, shape in enumerate(shapes.items())]
    with (tmp_path / "model.onnx.data").open("wb") as data:
        for row, column in ((0, 0), (7, 2047), (149_999, 5)):
            for offset in (row * width + column, size // 4 + column * rows + row):
                data.seek(4 * offset)
                data.write(np.float32(row + 1).tobytes())
        data.truncate(2 * size)
    nodes = [op("Gather", "embed input_ids", "x"), op("MatMul", "x head", "logits")]
    save(model(nodes, [token_ids()], [value("logits", ["b", "s", rows])], stored), tmp_path / "model.onnx")
    outcome = api.plan_graph_dedup(tmp_path / "model.onnx").execute(tmp_path / "out.onnx")
    assert outcome.proofs[0].copies == (("embed", 1),)
    assert (tmp_path / "out.onnx.data").stat().st_size == size
    kept = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
    assert [tensor.name for tensor in kept if len(tensor.dims) > 1] == ["embed"]
