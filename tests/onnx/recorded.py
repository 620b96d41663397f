"""Graphs as transformers' exporter traced them, kept beside the tests without their weights.

Tracing a model of two layers takes 10 to 40 s of processor time, and none of it is tieconv's. So `recorded` lets the
exporter answer from `tests/onnx/recorded`, where it was asked the same before: the same weights, config, inputs and
options, and the same releases of all packages that trace. What was not recorded is traced, and slow tests trace
always. A folder whose tests export imports `recorded_traces` into its conftest.py.

To record anew, after a release of transformers or torch:

    rm -r tests/onnx/recorded; TIECONV_RECORD=1 pytest tests/onnx

With TIECONV_RECORD=compare every graph is traced, and one that differs from its record fails its test.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import lzma
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import pytest

FOLDER = Path(__file__).parent / "recorded"
PACKAGES = ("transformers", "torch", "onnx", "onnx-ir", "onnxscript")
NOISE = ("pkg.torch.onnx.", "pkg.onnxscript.")
"""Metadata with stack traces: their keys are kept, since an export removes them, and their text is not."""


@contextmanager
def recorded() -> Iterator[None]:
    """Let the exporter take what it traced before from `FOLDER`."""
    from transformers.exporters import OnnxExporter

    trace = OnnxExporter.export
    mode = os.environ.get("TIECONV_RECORD", "")

    def export(self: Any, model: Any, sample_inputs: Any, config: Any) -> Any:
        if not hasattr(model, "named_parameters"):
            return trace(self, model, sample_inputs, config)
        file = FOLDER / f"{type(model).__name__}-{key_of(model, sample_inputs, config)}.onnx.xz"
        if file.exists() and mode != "compare":
            return read(file, model, self.export_format)
        made = trace(self, model, sample_inputs, config)
        if mode == "compare":
            assert not file.exists() or lzma.decompress(file.read_bytes()) == packed(made, model), f"{file} has changed"
        elif mode:
            FOLDER.mkdir(exist_ok=True)
            file.write_bytes(lzma.compress(packed(made, model), preset=9))
        return made

    OnnxExporter.export = export
    try:
        yield
    finally:
        OnnxExporter.export = trace


@pytest.fixture(autouse=True, scope="session")
def recorded_traces(request: pytest.FixtureRequest) -> Iterator[None]:
    """A run of the slow tests traces every model; any other takes the traces that are committed."""
    if "slow" in request.config.option.markexpr.replace("not slow", ""):
        yield
    else:
        with recorded():
            yield


def key_of(model: Any, inputs: Mapping[str, Any], config: Any) -> str:
    """All that decides the graph, as a short hash."""
    names: dict[int, list[str]] = {}
    digest = hashlib.sha256()
    for name, value in (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)):
        if id(value) not in names:
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode() + bytes_of(value))
        names.setdefault(id(value), []).append(name)
    configs = [module.config for module in model.modules() if hasattr(getattr(module, "config", None), "to_dict")]
    parts = [
        {package: importlib.metadata.version(package) for package in PACKAGES},
        sorted(names.values()),
        [(plain(one.to_dict()), str(one._attn_implementation)) for one in configs[:1]],
        plain(dict(inputs)),
        {name: str(value) for name, value in vars(config).items()},
    ]
    digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def plain(value: Any) -> Any:
    """What a trace depends on: types and shapes of tensors, and entries of a config without names and versions."""
    if hasattr(value, "shape"):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, Mapping):
        left_out = ("_name_or_path", "transformers_version", "architectures", "dtype")
        return {str(name): plain(one) for name, one in value.items() if name not in left_out}
    if hasattr(value, "layers"):
        return [[type(value).__name__, type(layer).__name__, plain(layer.keys)] for layer in value.layers]
    return value


def bytes_of(tensor: Any) -> bytes:
    import torch

    raw: bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw


def weights_of(model: Any) -> Iterator[tuple[str, bytes]]:
    """The bytes of each parameter and buffer by its name, and of each matrix transposed."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        yield name, bytes_of(value)
        if value.ndim == 2:
            yield f"{name} transposed", bytes_of(value.T)


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """The initializers of a graph and of its branches."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from tensors(attribute.g)


def packed(made: Any, model: Any) -> bytes:
    """The graph with the name of each weight in the place of its bytes, and the exporter's own notes."""
    import onnx_ir as ir

    (component,) = made.components.values()
    proto = ir.to_proto(component.program)
    names = {raw: name for name, raw in reversed(list(weights_of(model)))}
    for tensor in tensors(proto.graph):
        if len(tensor.raw_data) >= 64 and tensor.raw_data in names:
            tensor.external_data.add(key="weight", value=names[tensor.raw_data])
            tensor.ClearField("raw_data")
    for owner in (*proto.graph.node, *proto.graph.value_info):
        for entry in owner.metadata_props:
            if entry.key.startswith(NOISE):
                entry.value = "recorded"
    proto.metadata_props.add(key="recorded", value=json.dumps(dataclasses.asdict(component.metadata), sort_keys=True))
    raw: bytes = proto.SerializeToString(deterministic=True)
    return raw


def read(file: Path, model: Any, export_format: Any) -> Any:
    """What the exporter returned, with the weights of ``model``."""
    import onnx_ir as ir
    from transformers.exporters.base import ExportedComponent, ExportedModel
    from transformers.exporters.metadata import ExportMetadata, register_treespec_types

    proto = onnx.load_from_string(lzma.decompress(file.read_bytes()))
    weights = dict(weights_of(model))
    for tensor in tensors(proto.graph):
        for entry in tensor.external_data:
            tensor.raw_data = weights[entry.value]
        tensor.ClearField("external_data")
    (notes,) = (entry for entry in proto.metadata_props if entry.key == "recorded")
    metadata = ExportMetadata.from_dict(json.loads(notes.value))
    proto.metadata_props.remove(notes)
    for spec in (metadata.in_spec, metadata.out_spec):
        register_treespec_types(spec or "")
    component = ExportedComponent(ir.from_proto(proto), metadata)
    return ExportedModel({"model": component}, export_format, config=getattr(model, "config", None))
