"""What each rule must stay silent about: the same checkpoint with a quantised head, or of a class without a head.

A rule about names, values or shapes of the pair has nothing to say then. A rule about files, code or other tensors
keeps its fault in such a model too; its near miss is its good fixture, made quantised or headless.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import tieconv as api
from fixtures.onnx_graphs import Graph, embedding
from tests.checks.fixtures import asked, builder
from tests.checks.fixtures.graphs import saved
from tests.checks.fixtures.model import Array, gptq, matrix, weights
from tieconv.formats.safetensors import read_weight_file

OF_THE_PAIR = ("TIE", "NUM", "VOC", "QNT", "HED", "CON", "STO002")
STAYS = {
    "TIE012",
    "TIE013",
    "TIE014",
    "CON004",
    "CON005",
    "VOC001",
    "VOC002",
    "VOC003",
    "QNT006",
    "QNT007",
    "QNT008",
    "QNT009",
    "QNT010",
    "QNT011",
    "HED002",
}
"""Rules whose fault stays: an unknown class, the flag's type, a head bias, an unknown loader, an embedding's rows, ids,
codes that contradict the config, each other or a loader, and a parametrised head."""

CLASS = ("ForCausalLM", "ForConditionalGeneration", "ForMaskedLM")


def near_miss(code: str, kind: str, folder: Path) -> tuple[Path, str | None]:
    """The checkpoint, and the loader that it is inspected for."""
    if code.startswith("ONX"):
        return saved(_GRAPHS[kind](), folder / "model", tied=True), None
    build = builder(code, "bad" if code.startswith(OF_THE_PAIR) and code not in STAYS else "good")
    assert build is not None
    path = build(folder / "model")
    for model in [folder for folder in path.parent.iterdir() if (folder / "config.json").exists()]:
        _CHANGES[kind](model)
    return path, asked(code)


def _quantise(model: Path) -> None:
    """Store every name of the pair as codes with scales."""
    family = api.inspect(model).family
    pair = {family.input_embedding, family.output_head, *_grouped(model)} - {None}
    if (model / "pytorch_model.bin").exists():
        _quantise_torch(model / "pytorch_model.bin")
        return
    files = {path: _tensors(path) for path in sorted(model.glob("*.safetensors"))}
    for number, name in enumerate(sorted(str(name) for name in pair)):
        tensors = next((tensors for tensors in files.values() if name in tensors), [*files.values()][-1])
        stored = tensors.pop(name, matrix())
        tensors |= gptq(name.removesuffix(".weight"), *stored.shape, seed=number + 20)
    for path, tensors in files.items():
        path.write_bytes(weights(tensors))
    _reindexed(model)


def _quantise_torch(path: Path) -> None:
    import torch

    state = torch.load(path)
    rows = state.pop("model.embed_tokens.weight")
    for stem in ("model.embed_tokens", "lm_head"):
        state |= {f"{stem}.qweight": rows.to(torch.int8), f"{stem}.scales": rows[:, :1].clone()}
    torch.save(state, path)


def _grouped(model: Path) -> set[str]:
    return {
        name
        for group in api.inspect(model).family.groups
        for name in (group.canonical, *group.members)
        if name.endswith("weight")
    }


def _behead(model: Path) -> None:
    """Name a classifier of the same type, which has no output embedding. A body with a stored head is not one."""
    config = json.loads((model / "config.json").read_text())
    config["architectures"] = [_classifier(name) for name in config["architectures"]]
    (model / "config.json").write_text(json.dumps(config))


def _classifier(name: str) -> str:
    for end in CLASS:
        name = name.removesuffix(end)
    return f"{name}ForSequenceClassification"


def _reindexed(model: Path) -> None:
    """Name in the index what the shards hold now."""
    index = model / "model.safetensors.index.json"
    if index.exists():
        value = json.loads(index.read_text())
        shards = {path.name: _tensors(path) for path in sorted(model.glob("model-*.safetensors"))}
        value["weight_map"] = {name: shard for shard, tensors in shards.items() for name in tensors}
        value["metadata"]["total_size"] = sum(
            tensor.nbytes for tensors in shards.values() for tensor in tensors.values()
        )
        index.write_text(json.dumps(value))


_TYPES = {"F32": "<f4", "F16": "<f2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}


def _tensors(path: Path) -> dict[str, Array]:
    data = path.read_bytes()
    file = read_weight_file(lambda size, offset: data[offset : offset + size], len(data), path.name)
    return {
        record.name: np.frombuffer(data[record.range.start : record.range.end], _TYPES[record.dtype]).reshape(
            record.shape
        )
        for record in file.tensors
    }


def _quantised_graph() -> Graph:
    """The head's matrix as int8 codes with a scale, dequantised by a node of its own."""
    graph = embedding()
    hidden = graph.body()
    graph.tensors["lm_head.codes"] = np.arange(32 * 96, dtype="int8").reshape(32, 96)
    graph.tensors["lm_head.scale"] = np.array(0.5, "<f4")
    graph.add("DequantizeLinear", ["lm_head.codes", "lm_head.scale"], "head")
    graph.add("MatMul", [hidden, "head"], "logits")
    graph.output("logits")
    return graph


def _headless_graph() -> Graph:
    graph = embedding()
    graph.output(graph.body(), ["batch", "sequence", 32])
    return graph


_CHANGES: dict[str, Callable[[Path], None]] = {"quantised": _quantise, "headless": _behead}
_GRAPHS: dict[str, Callable[[], Graph]] = {"quantised": _quantised_graph, "headless": _headless_graph}
