"""What a graph on disk stores, read with the onnx package alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper


def tensors(path: Path) -> list[tuple[str, np.ndarray]]:
    """Every initializer of the graph and of its branches."""
    found: list[tuple[str, np.ndarray]] = []

    def visit(graph: onnx.GraphProto) -> None:
        found.extend((tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    visit(attribute.g)

    visit(onnx.load(path).graph)
    return found


def copies(path: Path, matrix: np.ndarray) -> list[str]:
    """The initializers with the values of ``matrix``, as it is or transposed, in any float type."""
    wanted = matrix.astype("f8")
    return [
        name
        for name, array in tensors(path)
        if array.ndim == 2
        and array.dtype.kind == "f"
        and any(np.array_equal(array.astype("f8"), view) for view in (wanted, wanted.T))
    ]


def operators(path: Path) -> list[str]:
    """The operators of the main graph in order."""
    return [node.op_type for node in onnx.load(path, load_external_data=False).graph.node]


def disk(directory: Path) -> int:
    """Bytes of the files."""
    return sum(file.stat().st_size for file in directory.iterdir())
