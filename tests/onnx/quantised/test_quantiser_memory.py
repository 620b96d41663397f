"""A quantised export has one float matrix in memory at a time, however many the model has."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, save

from tests.onnx.test_memory import WATCHED
from tieconv.onnx.parity.quantised_weights import Matrix, Rounding, compare, put, round_to_nearest

SIDE = 1536
QUANTISE = """
from pathlib import Path
from tieconv.onnx.quantise import quantise
from tieconv.onnx.quantise import Scheme
quantise(Path(sys.argv[1]), Path(sys.argv[2]), Scheme.INT4)
print(peak)
"""


def chain(folder: Path, count: int) -> Path:
    """A graph of ``count`` products with transposed matrices of 9 MiB."""
    folder.mkdir()
    matrix = np.random.default_rng(0).standard_normal((SIDE, SIDE), dtype=np.float32)
    nodes, tensors = [], []
    for number in range(count):
        tensors.append(helper.make_tensor(f"w{number}", TensorProto.FLOAT, matrix.shape, matrix.tobytes(), raw=True))
        inputs = [f"x{number}", f"w{number}"]
        nodes.append(helper.make_node("Gemm", inputs, [f"x{number + 1}"], transB=1))
    ends = [helper.make_tensor_value_info(f"x{number}", TensorProto.FLOAT, ["b", SIDE]) for number in (0, count)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10),
        folder / "model.onnx", save_as_external_data=True, location="model.onnx.data",
    )  # fmt: skip
    return folder


def peak(raw: Path) -> int:
    """MiB of anonymous memory of the quantiser."""
    watched = WATCHED[: WATCHED.index("from tieconv.cli")] + QUANTISE
    done = subprocess.run(
        [sys.executable, "-c", watched, raw, raw.with_name(f"{raw.name}-new")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.splitlines()[-1]) >> 10


@pytest.mark.slow
def test_the_quantiser_holds_one_float_matrix(tmp_path: Path) -> None:
    """Sixteen more matrices are 144 MiB in float32, 20 MiB as codes and scales."""
    assert peak(chain(tmp_path / "many", 18)) - peak(chain(tmp_path / "few", 2)) < 60


def test_the_comparison_holds_one_float_matrix() -> None:
    """The peak of numpy is a few blocks of one matrix, not the twelve matrices of the model."""
    layers = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(12)))
    size = 4 * 512 * 512

    def quantised(number: int, layer: Any) -> Matrix:
        def values() -> Any:
            return round_to_nearest(layer.weight.detach().numpy(), Rounding(4, 32, symmetric=True))

        return Matrix(f"m{number}", "MatMulNBits", (512, 512), values, Rounding(4, 32, symmetric=True), False, True)

    matrices = [quantised(number, layer) for number, layer in enumerate(layers)]
    reference: Any = SimpleNamespace(model=layers)
    weights = [layer.weight.detach().clone() for layer in layers]
    tracemalloc.start()
    try:
        compared = compare(matrices, reference)
        put(reference, compared.replaced, good=True)
        highest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert highest < 12 * 2 * size  # twelve in float64, for one of the three forms
    assert [weight.parameters for weight in compared.weights] == [(f"{number}.weight",) for number in range(12)]
    assert all(abs(weight.error - weight.known_good_error) < 1e-6 for weight in compared.weights)
    for layer, weight in zip(layers, weights, strict=True):
        good = round_to_nearest(weight.numpy(), Rounding(4, 32, symmetric=True))
        assert np.array_equal(layer.weight.detach().numpy(), good)
