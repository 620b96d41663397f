"""The values of quantised operators are those that ONNX Runtime computes with: a lookup of every id, and H products."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.inspection.quantised.stored_models import Array, matrix, tables
from tests.lazy import ort
from tieconv import inspect
from tieconv.checkpoint.quantised_matrix import PairState
from tieconv.inspection.quantised.row_decoders import QuantisedRows
from tieconv.sources.local import open_files

onnx = pytest.importorskip("onnx")

ROWS, COLUMNS, BLOCK = 48, 64, 32
Parts = dict[str, Array]


def parts(seed: int, bits: int) -> Parts:
    draw = np.random.default_rng(seed)
    blocks = COLUMNS // BLOCK
    return {
        "codes": draw.integers(0, 256, (ROWS, blocks, BLOCK * bits // 8), "u1"),
        "scales": draw.uniform(0.1, 1, (ROWS, blocks)).astype("f4"),
        "zero": draw.integers(0, 256, (ROWS, -(-blocks * bits // 8)), "u1"),
    }


def graph(path: Path, embedding: Parts, head: Parts, bits: int) -> Path:
    """Look ids up in one matrix, and multiply with another."""
    from onnx import TensorProto, helper, numpy_helper

    stored = {f"embed.{leaf}": array for leaf, array in embedding.items()}
    stored["embed.codes"] = stored["embed.codes"].reshape(ROWS, -1)
    stored |= {f"head.{leaf}": array for leaf, array in head.items()}
    nodes = [
        helper.make_node(
            "GatherBlockQuantized",
            ["embed.codes", "ids", "embed.scales", "embed.zero"],
            ["x"],
            domain="com.microsoft",
            bits=bits,
            block_size=BLOCK,
            gather_axis=0,
            quantize_axis=1,
        ),
        helper.make_node(
            "MatMulNBits",
            ["x", "head.codes", "head.scales", "head.zero"],
            ["logits"],
            domain="com.microsoft",
            K=COLUMNS,
            N=ROWS,
            bits=bits,
            block_size=BLOCK,
        ),
    ]
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
            [
                helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", ROWS]),
                helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", COLUMNS]),
            ],
            [numpy_helper.from_array(array, name) for name, array in stored.items()],
        ),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )
    onnx.save(model, path)
    return path


def computed(path: Path, role: str) -> Array:
    inspection = inspect(path)
    with open_files(str(path.parent)) as files:
        rows = QuantisedRows(matrix(inspection, role), inspection.checkpoint.tensors, files)
        return rows.block(0, ROWS).values


@pytest.mark.parametrize("bits", [4, 8])
def test_both_operators(bits: int, tmp_path: Path) -> None:
    path = graph(tmp_path / "model.onnx", parts(0, bits), parts(1, bits), bits)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    logits, looked_up = session.run(None, {"ids": np.arange(ROWS)})
    embedding, head = computed(path, "embedding"), computed(path, "head")
    np.testing.assert_array_equal(embedding.astype("f4"), looked_up)
    np.testing.assert_allclose(embedding @ head.T, logits, rtol=1e-3, atol=np.abs(logits).max() * 1e-4)


def test_equal_parts_in_two_shapes(tmp_path: Path) -> None:
    same = parts(0, 4)
    inspection = inspect(graph(tmp_path / "model.onnx", same, same, 4))
    relation = tables(inspection).relation
    assert relation is not None
    assert relation.state is PairState.EQUAL
    assert matrix(inspection).shape == matrix(inspection, "embedding").shape == (ROWS, COLUMNS)
    assert relation.bytes_wasted == sum(array.nbytes for array in same.values())


def test_one_zero_point(tmp_path: Path) -> None:
    first = parts(0, 4)
    second = {leaf: array.copy() for leaf, array in first.items()}
    second["zero"][5, 0] ^= 1
    relation = tables(inspect(graph(tmp_path / "model.onnx", first, second, 4))).relation
    assert relation is not None
    assert (relation.state, relation.differing) == (PairState.DIFFERENT, ("zero_points",))
    assert relation.figures is not None
    assert relation.figures.rows_differing == 1
