"""`dedup` of a directory: one answer for each graph. `dedup` of a graph above 2 GB."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tieconv as api
from fixtures.onnx_graphs import build
from tests.cli.run import run
from tests.onnx.share.test_quantised_pairs import Pair
from tests.onnx.share.test_quantised_pairs import build as build_pair


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
    stored = []
    with (tmp_path / "model.onnx.data").open("wb") as data:
        for index, (name, shape) in enumerate((("embed", (rows, width)), ("head", (width, rows)))):
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "model.onnx.data"), ("offset", index * size), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
            stored.append(tensor)
        for row, column in ((0, 0), (7, 2047), (149_999, 5)):
            for offset in (row * width + column, size // 4 + column * rows + row):
                data.seek(4 * offset)
                data.write(np.float32(row + 1).tobytes())
        data.truncate(2 * size)
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["x"]),
        helper.make_node("MatMul", ["x", "head"], ["logits"]),
    ]
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["b", "s", rows])
    graph = helper.make_graph(nodes, "g", [ids], [logits], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    outcome = api.plan_graph_dedup(tmp_path / "model.onnx").execute(tmp_path / "out.onnx")
    assert outcome.proofs[0].copies == (("embed", 1),)
    assert (tmp_path / "out.onnx.data").stat().st_size == size
    kept = onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
    assert [tensor.name for tensor in kept if len(tensor.dims) > 1] == ["embed"]
