"""Split one graph into two that read the same data file."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import onnx

from tieconv.errors import VerificationError
from tieconv.text import shown


def split_at(directory: Path, name: str, values: Collection[str], first: str) -> None:
    """Write the nodes that compute ``values`` to the graph ``first``, and leave the rest in the graph ``name``.

    Both files are in ``directory``. ``values`` become outputs of the first graph and inputs of the rest. An initializer
    that both read is in both graphs, at one byte range of one data file. No data is copied. Raises
    `VerificationError` if a value is not in the graph or one part is not valid.
    """
    whole = onnx.load(str(directory / name), load_external_data=False)
    typed = {value.name: value for value in whole.graph.value_info}
    absent = next((value for value in values if value not in typed), None)
    if absent is not None:
        raise VerificationError(f"{shown(name)} has no value {shown(absent)}", _HINT, "verify.split")
    ends = [typed[value] for value in values]
    inputs = list(whole.graph.input)
    parts = {
        first: _part(whole, inputs, ends),
        name: _part(whole, [*ends, *inputs], list(whole.graph.output)),
    }
    for path, part in parts.items():
        onnx.save(part, str(directory / path))
    for path in parts:
        try:
            onnx.checker.check_model(str(directory / path))
        except Exception as error:  # the checker raises various exceptions
            message = f"written {shown(path)} is not valid: {shown(error, 300)}"
            raise VerificationError(message, _HINT, "verify.split") from error


_HINT = "nothing was written; report this with the model's class"


def _part(
    whole: onnx.ModelProto, inputs: list[onnx.ValueInfoProto], ends: list[onnx.ValueInfoProto]
) -> onnx.ModelProto:
    """Return a copy of the model with the nodes between ``inputs`` and ``ends``."""
    needed = {value.name for value in ends}
    fed = {value.name for value in inputs}
    nodes = []
    for node in reversed(whole.graph.node):
        if (needed - fed).intersection(node.output):
            nodes.append(node)
            needed.update(_read(node))
    part = onnx.ModelProto()
    part.CopyFrom(whole)
    graph = part.graph
    for field in ("node", "initializer", "input", "output", "value_info", "metadata_props"):
        graph.ClearField(field)
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(tensor for tensor in whole.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in inputs if value.name in needed)
    graph.output.extend(ends)
    made = {name for node in nodes for name in node.output} - {value.name for value in ends}
    graph.value_info.extend(value for value in whole.graph.value_info if value.name in made - fed)
    return part


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the values that a node and its subgraphs read."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (value.name for value in graph.output)
