"""`tieconv check --fix` on ONNX graphs: `dedup` with its proof where every bit stays, else a reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import tieconv as api
from fixtures import exporters
from fixtures.onnx_graphs import build
from tests.cli.run import run
from tests.cli.stored import snapshot
from tests.onnx.graphs import copies, outputs, same_bits, tensors
from tests.onnx.share.test_bits import made

V = 96
pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """A directory of one graph with a transposed copy, and a file beside it."""
    folder = tmp_path / "model"
    shutil.copytree(exporters.HERE / "mobius-gpt2", folder)
    (folder / "LICENSE").write_text("free")
    return folder


def codes(path: Path) -> set[str]:
    return {finding.rule for finding in api.inspect(path).findings}


def test_the_plan_is_printed(graphs: Path) -> None:
    """Without a target nothing is written, and the plan of `dedup` stands beneath the finding."""
    before = snapshot(graphs)
    result = run("check --fix", graphs)
    assert result.exit_code == 1 and snapshot(graphs) == before
    assert f"next: tieconv dedup {graphs} -o OUT" in result.stdout
    assert "1 matrix is stored once" in result.stdout and "head as gemm" in result.stdout


def test_in_place(graphs: Path) -> None:
    """The directory, its names kept, holds the matrix once; the gate passes, and a second run writes nothing."""
    result = run("check --fix --in-place", graphs)
    assert (result.exit_code, codes(graphs)) == (0, set())
    assert f"fixed: ONX001: tieconv dedup {graphs}" in result.stderr
    assert (graphs / "LICENSE").read_text() == "free"
    wte = next(array for name, array in tensors(graphs / "model.onnx") if name == "transformer.wte.weight")
    assert copies(graphs / "model.onnx", wte) == ["transformer.wte.weight"]
    after = snapshot(graphs)
    assert run("check --fix --in-place", graphs).exit_code == 0 and snapshot(graphs) == after


@pytest.mark.parametrize("lone", [False, True])
def test_out(graphs: Path, tmp_path: Path, lone: bool) -> None:
    """A directory to a directory, a lone graph to a graph with its data beside it; the source stays as it was."""
    before = snapshot(graphs)
    out = tmp_path / "new" / ("small.onnx" if lone else "small")
    out.parent.mkdir()
    result = run("check --fix", graphs / "model.onnx" if lone else graphs, "-o", out)
    assert result.exit_code == 0 and snapshot(graphs) == before and codes(out) == set()
    assert f"wrote {out}: verified and checked again" in result.stderr
    names = {path.name for path in (out.parent if lone else out).iterdir()}
    assert names == ({"small.onnx", "small.onnx.data"} if lone else {"model.onnx", "model.onnx.data", "LICENSE"})


def test_the_same_bits(tmp_path: Path) -> None:
    """What `--fix` writes computes what the graph computed."""
    source = build("soft_cap", tmp_path / "in" / "model.onnx")
    assert run("check --fix", source.parent, "-o", tmp_path / "out").exit_code == 0
    assert same_bits(*(outputs(path, (2, 7), V) for path in (source, tmp_path / "out" / "model.onnx")))


def test_the_form_that_keeps_every_bit_is_chosen(tmp_path: Path) -> None:
    """F16 whose last bits a Gemm may round differently: the head becomes a FusedMatMul, with the same bits."""
    source = made(tmp_path, 160, "f2", [("Add", 1.0), ("Norm", 1.0)], [])
    result = run("check --fix", source, "-o", out := tmp_path / "out.onnx")
    assert (result.exit_code, codes(out)) == (0, set()), result.output
    assert "FusedMatMul" in {node.op_type for node in onnx.load(out, load_external_data=False).graph.node}
    assert same_bits(*(outputs(path, (2, 7), V) for path in (source, out)))


def test_a_nan_is_not_hidden(tmp_path: Path) -> None:
    """Stored once, a matrix with a NaN would be found no more: the error stays, and so does the graph."""
    source = build("soft_cap", tmp_path / "in" / "model.onnx", external=False)
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).copy()
        if array.ndim == 2:
            array[(3, 5) if array.shape[0] == V else (5, 3)] = np.nan
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(model, source)
    assert codes(source) == {"ONX004"}
    before = snapshot(source.parent)
    result = run("check --fix --in-place", source)
    assert result.exit_code == 1 and snapshot(source.parent) == before and codes(source) == {"ONX004"}
    assert "fixed" not in result.stderr


def test_what_dedup_leaves_is_left(tmp_path: Path) -> None:
    """Copies that a caller may replace: the finding says why `dedup` keeps them, and offers no command."""
    source = build("soft_cap", tmp_path / "in" / "model.onnx", external=False)
    model = onnx.load(source)
    for tensor in model.graph.initializer:
        if len(tensor.dims) == 2:
            model.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    onnx.save(model, source)
    before = snapshot(source.parent)
    result = run("check --fix --in-place", source)
    assert result.exit_code == 0 and snapshot(source.parent) == before
    text = " ".join(result.stdout.split())
    assert "dedup keeps them because model.embed_tokens.weight is an input of the graph, so" in text
    assert "next:" not in result.stdout
