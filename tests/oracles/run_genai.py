"""Build each job's model with the builder of onnxruntime-genai, run the graph, and report its embedding and head.

The interpreter needs onnxruntime-genai, onnxruntime, onnx-ir, torch and transformers. The graph is for the CPU and in
float32. Its tables are the evidence: the matrix of the last MatMul, and the matrix of the first Gather. If ONNX Runtime
can run the graph with sizes as small as these, the logits must be finite.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy
import observe
from run_transformers import Job, exact

_HEAD, _TABLE, _BIAS = "lm_head.MatMul.weight", "model.embed_tokens.weight", "lm_head.Add.bias"


def build(job: Job, folder: Path, precision: str = "fp32") -> int:
    """Write ``model.onnx`` into ``folder`` as the builder's command does, and return the size of a head of attention.

    The settings for generation are left out. Raises what the builder raises.
    """
    import onnxruntime_genai.models  # it puts the folder of the builder on the path  # noqa: F401
    import torch
    from onnxruntime_genai.models import builder

    made: list[Any] = []
    for kind in {value for value in vars(builder).values() if isinstance(value, type)}:
        if hasattr(kind, "save_processing"):
            kind.make_genai_config = lambda self, *_: made.append(self)
            kind.save_processing = lambda *_: None
    torch.manual_seed(7)
    options = builder.parse_extra_options("", job["folder"], str(folder), precision, "cpu", str(folder / "cache"), None)
    builder.create_model("", job["folder"], str(folder), precision, "cpu", str(folder / "cache"), **options)
    return int(getattr(made[0], "head_size", 0))


def tables(graph: Any, job: Job) -> dict[str, Any]:
    """Return the arrays of the embedding, the head and the bias, and whether they are one matrix.

    The graph has one matrix, or transformers had one: the model stores one table, and the graph has it twice.
    """
    stored = {
        name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value is not None
    }
    head = numpy.ascontiguousarray(stored[_HEAD].T)
    reads = (node for node in graph if node.op_type == "Transpose" and node.inputs[0] is not None)
    one = any(node.inputs[0].name == _HEAD for node in reads)
    embedding = head if one else stored[_TABLE]
    alone = not job["stored"]["embedding"] or job["stored"]["head"] == "absent"
    one = one or (alone and numpy.array_equal(embedding, head))
    return {"embedding": embedding, "head": head, "one": one, "bias": stored.get(_BIAS)}


def logits(path: Path, prompt: list[int], head_size: int) -> numpy.ndarray:
    """Return the logits of the last position, from ONNX Runtime: the prompt is one step without a past."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    sides = {"batch_size": 1, "past_sequence_length": 0, "kv_cache_dim": head_size}
    feeds = {entry.name: _feed(entry, prompt, sides) for entry in session.get_inputs()}
    return session.run(["logits"], feeds)[0][0, -1].astype(numpy.float32)


def _feed(entry: Any, prompt: list[int], sides: dict[str, int]) -> numpy.ndarray:
    dtype = numpy.int64 if "int64" in entry.type else numpy.int32 if "int32" in entry.type else numpy.float32
    if entry.name == "input_ids":
        return numpy.array([prompt], dtype)
    if entry.name == "position_ids":  # one row, or one for each axis of an image
        rows = [side for side in entry.shape if isinstance(side, int)]
        return numpy.broadcast_to(numpy.arange(len(prompt), dtype=dtype), (*rows, 1, len(prompt))).copy()
    shape = [side if isinstance(side, int) else sides.get(side, len(prompt)) for side in entry.shape]
    return numpy.ones(shape, dtype) if entry.name == "attention_mask" else numpy.zeros(shape, dtype)


def answer(job: Job) -> dict[str, Any]:
    """Return the observation of one job."""
    import onnx_ir
    from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        head_size = build(job, folder)
        path = folder / "model.onnx"
        seen = tables(onnx_ir.load(path).graph, job)
        found = exact(job, observe.from_tables(job, **seen), seen["embedding"])
        try:
            values = logits(path, job["prompt"], head_size)
        except InvalidArgument as error:  # an operator wants larger sizes
            return {**found, "why": f"not run: {str(error)[-120:]}"}
        if not numpy.isfinite(values).all():
            raise ValueError("the logits are not finite")
        return found


if __name__ == "__main__":
    observe.serve_with_transformers(answer)
