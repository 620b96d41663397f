"""Models written node by node, in short spellings of what `onnx.helper` makes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Sides = Sequence[int | str | None] | None


def op(kind: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node whose inputs and outputs are names between blanks; ``-`` is one that is left out."""
    names = [["" if name == "-" else name for name in text.split()] for text in (inputs, outputs)]
    return helper.make_node(kind, *names, **attributes)


def value(name: str, sides: Sides = None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, sides)


def token_ids(name: str = "input_ids", sides: Sides = ("b", "s")) -> onnx.ValueInfoProto:
    return value(name, sides, TensorProto.INT64)


def outside(name: str, shape: Sequence[int], location: str, offset: int, length: int) -> TensorProto:
    """A float tensor whose bytes are in the file ``location``."""
    tensor = TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(entry))
    return tensor


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    tensors: Mapping[str, np.ndarray] | Iterable[TensorProto] = (),
    *,
    opset: int = 20,
    ir_version: int = 10,
    value_info: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """A model of one graph, with version 1 of each further domain that its nodes name."""
    if isinstance(tensors, Mapping):
        tensors = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(tensors), value_info=value_info)
    domains = {"": opset} | {node.domain: 1 for node in nodes if node.domain}
    imports = [helper.make_opsetid(*domain) for domain in domains.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def save(made: onnx.ModelProto, path: Path, *, external: bool = False) -> Path:
    """Write the model, with its tensors in `<name>.data` beside it if they are ``external``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, path, save_as_external_data=external, location=f"{path.name}.data", size_threshold=0)
    return path


@contextmanager
def editing(tensor: TensorProto) -> Iterator[np.ndarray]:
    """The values of a tensor; it holds them as the block leaves them."""
    values = numpy_helper.to_array(tensor).copy()
    yield values
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def edit_external(path: Path, **entries: str) -> Path:
    """Change where the first external tensor of the graph at ``path`` says that its data is."""
    made = onnx.load(path, load_external_data=False)
    tensor = next(one for one in made.graph.initializer if one.external_data)
    entries = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, entry in entries.items():
        tensor.external_data.add(key=key, value=entry)
    path.write_bytes(made.SerializeToString())
    return path
