"""Build each job's model with the builder of onnxruntime-genai, and report what its embedding and its head compute.

The interpreter needs onnxruntime-genai, onnxruntime, onnx, torch and transformers. The graph is for the CPU and in
int4: with float types, the builder fails to read the codes. It also rounds a float head to 4 bits, so tables are
compared with a wide bound: another table is at a distance of 1 and more.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy
import observe
from run_genai import build

_ROUNDED = 0.3


def parts(path: Path, width: int) -> tuple[Any, Any]:
    """Return the graph from the ids to the rows of the embedding, and the one from the last states to the logits."""
    import onnx

    graph = onnx.load(path)
    made = {name: node for node in graph.graph.node for name in node.output}
    rows = next(
        node.output[0] for node in graph.graph.node if node.op_type.startswith("Gather") and "input_ids" in node.input
    )
    node = made["logits"]
    while not node.op_type.startswith("MatMul"):
        node = made[node.input[0]]
    states = node.input[0]
    known = {value.name for value in graph.graph.value_info}
    for name in {rows, states} - known:
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "sequence", width])
        graph.graph.value_info.append(value)
    whole = onnx.utils.Extractor(graph)
    return whole.extract_model(["input_ids"], [rows]), whole.extract_model([states], ["logits"])


def run(model: Any, feed: numpy.ndarray) -> numpy.ndarray:
    """Return the only output of a graph with one input, for one row of a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: feed[None]})[0][0]


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Return the observation of one job."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(job["folder"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(job, folder, "int4")
        lookup, product = parts(folder / "model.onnx", config.hidden_size)
        embedding = run(lookup, numpy.arange(config.vocab_size))
        head = run(product, numpy.eye(config.hidden_size, dtype=numpy.float32)).T
    return observe.from_tables(job, embedding, head, None)


if __name__ == "__main__":
    observe.VALUES_DIFFER = _ROUNDED
    observe.serve_with_transformers(answer)
