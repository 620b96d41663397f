"""Graphs of a few nodes and checkpoints of a few tensors, for the parts of parity."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from tieconv import inspect
from tieconv.checkpoint.results.parity import Identity
from tieconv.onnx.parity.graph_file import Graph, Value, read_graph
from tieconv.onnx.parity.weight_identity import Fold, weight_identity
from tieconv.sources.local import open_files

ONNX = {
    torch.float32: TensorProto.FLOAT, torch.float16: TensorProto.FLOAT16, torch.bfloat16: TensorProto.BFLOAT16,
    torch.float64: TensorProto.DOUBLE,
}  # fmt: skip
PLAIN = (Fold("", lambda weight: weight), Fold("rounded", lambda weight: weight))


def write_graph(path: Path, weights: Mapping[str, torch.Tensor], *, external: bool = False) -> Path:
    """A graph that only holds the weights, inside the file or in `<name>.data` beside it."""
    made = []
    for name, tensor in weights.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else tensor[None].numpy().tobytes()
        made.append(helper.make_tensor(name, ONNX[tensor.dtype], list(tensor.shape), raw, raw=True))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["b", "s"])
    out = helper.make_tensor_value_info("logits", TensorProto.INT64, ["b", "s"])
    node = helper.make_node("Identity", ["input_ids"], ["logits"])
    model = helper.make_model(helper.make_graph([node], "g", [ids], [out], made))
    data = {"save_as_external_data": True, "location": f"{path.name}.data", "size_threshold": 0} if external else {}
    onnx.save(model, path, **data)
    return path


def identity(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    precision: str = "float32",
    folds: tuple[Fold, ...] = PLAIN,
    *,
    external: bool = True,
    computed: tuple[torch.Tensor, ...] = (),
    offsets: Mapping[str, int] | None = None,
) -> Identity:
    """The weight identity of a checkpoint of ``tensors`` and a graph of ``weights``."""
    (folder / "m").mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "m" / "model.safetensors")
    (folder / "m" / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    (folder / "g.onnx.data").unlink(missing_ok=True)
    graph: Graph = read_graph(str(write_graph(folder / "g.onnx", weights, external=external)))
    checkpoint = inspect(folder / "m", depth="header").checkpoint
    with open_files(checkpoint.root) as files:
        return weight_identity(graph, checkpoint, files, precision, folds, (), "embed", computed, offsets or {})


def open_cache() -> Graph:
    """A decoder whose caches leave their width open."""
    tokens = (Value("input_ids", "INT64", ("b", "s")), Value("attention_mask", "INT64", ("b", "t")))
    caches = tuple(Value(f"past_key_values.0.{part}", "FLOAT", ("b", 2, "p", "w")) for part in ("key", "value"))
    names = ("logits", "present.0.key", "present.0.value")
    return Graph("g.onnx", 20, (*tokens, *caches), tuple(Value(name, "FLOAT", ()) for name in names), (), None)
