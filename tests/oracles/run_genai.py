"""Build each job's model with the builder of onnxruntime-genai, run the graph, and report its embedding and head.

    python tests/oracles/run_genai.py < jobs.jsonl

The interpreter needs onnxruntime-genai, onnxruntime, onnx-ir, torch and transformers. The graph is for the CPU and in
float32. Its tables are the evidence: the matrix of the last MatMul, and the matrix of the first Gather. A run of the
graph shows that ONNX Runtime computes finite logits with them. A fixed vocabulary replaces the tokenizer, which the
builder needs only for its settings.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy
import observe

Job = dict[str, Any]
_HEAD, _TABLE, _BIAS = "lm_head.MatMul.weight", "model.embed_tokens.weight", "lm_head.Add.bias"


class _Tokenizer:
    """What the builder asks a tokenizer for."""

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> _Tokenizer:
        return cls()

    def get_vocab(self) -> dict[str, int]:
        return {"<s>": 0}


def build(job: Job, folder: Path) -> int:
    """Write ``model.onnx`` into ``folder`` as the builder's command does, and return the size of a head of attention.

    The settings for generation are left out. Raises what the builder raises.
    """
    import onnxruntime_genai.models  # it puts the folder of the builder on the path  # noqa: F401
    import torch
    from onnxruntime_genai.models import builder

    builder.AutoTokenizer = _Tokenizer
    made: list[Any] = []
    for kind in {value for value in vars(builder).values() if isinstance(value, type)}:
        if hasattr(kind, "save_processing"):
            kind.make_genai_config = lambda self, *_: made.append(self)
            kind.save_processing = lambda *_: None
    torch.manual_seed(7)
    options = builder.parse_extra_options("", job["folder"], str(folder), "fp32", "cpu", str(folder / "cache"), None)
    builder.create_model("", job["folder"], str(folder), "fp32", "cpu", str(folder / "cache"), **options)
    return int(getattr(made[0], "head_size", 0))


def tables(graph: Any) -> dict[str, Any]:
    """Return the arrays of the embedding, the head and the bias, and whether the graph stores one matrix for both."""
    stored = {name: value.const_value.numpy() for name, value in graph.initializers.items() if value.const_value is not None}
    head = stored.get(_HEAD)
    one = _HEAD in stored and any(
        node.op_type == "Transpose" and node.inputs[0] is not None and node.inputs[0].name == _HEAD for node in graph
    )
    head = None if head is None else numpy.ascontiguousarray(head.T)
    embedding = head if one else stored.get(_TABLE)
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

    folder = Path(tempfile.mkdtemp())
    try:
        with contextlib.redirect_stdout(sys.stderr):
            head_size = build(job, folder)
            model = onnx_ir.load(folder / "model.onnx")
            seen = tables(model.graph)
            values = logits(folder / "model.onnx", job["prompt"], head_size)
        if not numpy.isfinite(values).all():
            raise ValueError("the logits are not finite")
        return observe.from_tables(job, **seen)
    except Exception as error:  # the builder's refusal is the observation
        return observe.failed(job, error)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Answer each job of stdin with a line."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
