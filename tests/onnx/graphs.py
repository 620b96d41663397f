"""Graphs of a few nodes, what a graph on disk stores, and sessions of graphs on random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.lazy import ort, save_file, torch, weight_identity
from tests.onnx.nodes import model, op, save, token_ids
from tieconv import inspect
from tieconv.checkpoint.results.parity import Identity
from tieconv.onnx.parity.graph_file import Graph, Value, read_graph
from tieconv.sources.local import open_files

ONNX = {
    "torch.float32": TensorProto.FLOAT, "torch.float16": TensorProto.FLOAT16, "torch.bfloat16": TensorProto.BFLOAT16,
    "torch.float64": TensorProto.DOUBLE,
}  # fmt: skip


def write_graph(path: Path, weights: Mapping[str, torch.Tensor], *, external: bool = False) -> Path:
    """A graph that only holds the weights, inside the file or in `<name>.data` beside it."""
    made = []
    for name, tensor in weights.items():
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else tensor[None].numpy().tobytes()
        made.append(helper.make_tensor(name, ONNX[str(tensor.dtype)], list(tensor.shape), raw, raw=True))
    nodes = [op("Identity", "input_ids", "logits")]
    return save(model(nodes, [token_ids()], [token_ids("logits")], made), path, external=external)


def unchanged() -> tuple[weight_identity.Fold, ...]:
    """The folds that keep the values."""
    return tuple(weight_identity.Fold(name, lambda weight: weight) for name in ("", "rounded"))


def identity(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    weights: Mapping[str, torch.Tensor],
    precision: str = "float32",
    folds: tuple[weight_identity.Fold, ...] | None = None,
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
        return weight_identity.weight_identity(
            graph, checkpoint, files, precision, folds or unchanged(), (), "embed", computed, offsets or {}
        )


def open_cache() -> Graph:
    """A decoder whose caches leave their width open."""
    tokens = (Value("input_ids", "INT64", ("b", "s")), Value("attention_mask", "INT64", ("b", "t")))
    caches = tuple(Value(f"past_key_values.0.{part}", "FLOAT", ("b", 2, "p", "w")) for part in ("key", "value"))
    names = ("logits", "present.0.key", "present.0.value")
    return Graph("g.onnx", 20, (*tokens, *caches), tuple(Value(name, "FLOAT", ()) for name in names), (), None)


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


SHAPES = [(1, 1), (1, 7), (2, 1), (2, 7), (3, 5)]


def session(path: Path, *, optimise: bool, prepack: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def write_optimised(source: Path, to: Path, level: str = "ALL") -> Path:
    """The model that a session of the graph writes after its optimisations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 4
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    return to


def feeds(made: ort.InferenceSession, shape: tuple[int, int], vocabulary: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    known = {"input_ids": lambda: rng.integers(0, vocabulary, shape), "use_cache": lambda: np.array([bool(seed % 2)])}
    return {node.name: known[node.name]() for node in made.get_inputs() if node.name in known}


def outputs(
    path: Path, shape: tuple[int, int], vocabulary: int, *, optimise: bool = True, seed: int = 0, prepack: bool = True
) -> list[np.ndarray]:
    made = session(path, optimise=optimise, prepack=prepack)
    return made.run(None, feeds(made, shape, vocabulary, seed))


def same_bits(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return all(
        (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes() for a, b in zip(one, two, strict=True)
    )
