"""Faults that only a device has: the graph and its file are right, and what computes them is not."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tieconv
from tests.gpu.models import WIDE, Workshop
from tests.gpu.verdicts import figures
from tests.lazy import ort_session as open_
from tests.onnx import faults

Fault = Callable[[Path, str], AbstractContextManager[Path]]
"""Makes a session of the graph at a path on a provider wrong while it is entered, and gives the path to measure."""


def device_fault_row(workshop: Workshop, provider: str, label: str) -> dict[str, Any]:
    name, precision, fault = DEVICE_FAULTS[label]
    graph = workshop.graph(name, precision)
    with fault(graph, provider) as path:
        report = tieconv.parity(path, workshop.model(name), provider=provider)
    return {"fault": label, "model": name, "precision": precision, **figures(report)}


@contextmanager
def _chosen(graph: Path, **options: str) -> Iterator[Path]:
    """Every session gets ``options`` of the CUDA provider, whatever tieconv asks for."""
    honest = open_.choose

    def choose(ort: Any, provider: str, **asked: Any) -> Any:
        choice = honest(ort, provider, **asked)
        wrong = [(name[0], name[1] | options) if isinstance(name, tuple) else name for name in choice.providers]
        return replace(choice, providers=wrong)

    with mock.patch.object(open_, "choose", choose):
        yield graph


@contextmanager
def _set(graph: Path, name: str, value: str) -> Iterator[Path]:
    """An environment variable that the provider reads when a session is made."""
    with mock.patch.dict(os.environ, {name: value}):
        yield graph


@contextmanager
def _other_weights(graph: Path, _: str) -> Iterator[Path]:
    """The session computes with another embedding than the file has: two rows of it change places."""
    runtime = open_.runtime()
    honest = runtime.InferenceSession
    with tempfile.TemporaryDirectory(dir=graph.parent) as folder:
        other = faults.plant(graph, _swapped, Path(folder) / "model.onnx")

        def made(path: Any, *given: Any, **more: Any) -> Any:
            return honest(str(other) if str(path) == str(graph) else path, *given, **more)

        with mock.patch.object(runtime, "InferenceSession", made):
            yield graph


def _swapped(model: ModelProto) -> None:
    weight = max(model.graph.initializer, key=lambda weight: int(np.prod(weight.dims)))
    values = numpy_helper.to_array(weight)
    weight.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values[[1, 0, *range(2, len(values))]]), weight.name))


@contextmanager
def _moved(graph: Path, provider: str) -> Iterator[Path]:
    """The first product is computed in int32, for which CUDA has no kernel: onnxruntime moves it to the CPU."""
    with tempfile.TemporaryDirectory(dir=graph.parent) as folder:
        yield faults.plant(graph, _whole_numbers, Path(folder) / "model.onnx")


def _whole_numbers(model: ModelProto) -> None:
    place, node = next((i, node) for i, node in enumerate(model.graph.node) if node.op_type == "MatMul")
    dtype = model.graph.initializer[0].data_type
    casts = [helper.make_node("Cast", [name], [f"whole.{name}"], to=TensorProto.INT32) for name in node.input]
    product = helper.make_node("MatMul", [f"whole.{name}" for name in node.input], ["whole.y"], name="whole_product")
    back = helper.make_node("Cast", ["whole.y"], list(node.output), to=dtype)
    model.graph.node.remove(node)
    for made in (back, product, *casts):
        model.graph.node.insert(place, made)


DEVICE_FAULTS: dict[str, tuple[str, str, Fault]] = {
    "TF32 silently on": ("llama", "fp32", lambda graph, _: _chosen(graph, use_tf32="1")),
    "products accumulated in fp16": (WIDE, "fp16", lambda graph, _: _set(graph, "ORT_CUDA_GEMM_OPTIONS", "1")),
    "a product moved to the CPU": ("llama", "fp32", _moved),
    "the session holds another embedding": ("llama", "fp16", _other_weights),
    "a stale CUDA graph": ("llama", "fp32", lambda graph, _: _chosen(graph, enable_cuda_graph="1")),
}
"""Each fault with the model and precision that it is planted in. None of them may pass."""
