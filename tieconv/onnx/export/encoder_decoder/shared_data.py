"""Write the tensors of several graphs to a data file, equal ones once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from tieconv.onnx.write.data_placement import PAGE, SMALL

LEAST = 256
"""Bytes from which a tensor goes to the data file. Smaller ones stay in the graph."""


def write_data(graphs: Iterable[ir.Model], path: Path) -> None:
    """Write the tensors of ``graphs`` to ``path``. Tensors with the same bytes become one byte range.

    The graphs must be stored beside it.
    """
    placed: dict[bytes, list[tuple[int, ir.TensorProtocol]]] = {}
    with path.open("wb") as data:
        for model in graphs:
            for graph in model.graphs():
                for value in graph.initializers.values():
                    tensor = value.const_value
                    if tensor is None or tensor.nbytes < LEAST or tensor.dtype == ir.DataType.STRING:
                        continue
                    content = tensor.tobytes()
                    alike = placed.setdefault(hashlib.sha256(content).digest(), [])
                    offset = next((start for start, earlier in alike if earlier.tobytes() == content), None)
                    if offset is None:
                        offset = data.tell() + -data.tell() % (PAGE if len(content) >= PAGE else SMALL)
                        data.write(bytes(offset - data.tell()) + content)
                        alike.append((offset, tensor))
                    value.const_value = _at(path, offset, tensor)


def _at(path: Path, offset: int, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    return ir.ExternalTensor(
        path.name,
        offset,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=str(tensor.name),
        base_dir=path.parent,
    )
