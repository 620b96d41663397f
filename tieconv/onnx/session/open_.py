"""Open sessions of ONNX Runtime on the requested provider, or fail."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tieconv.checkpoint.results.parity import ProviderUse
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, UnreadableError
from tieconv.install import install_command
from tieconv.onnx.session.child import session_call
from tieconv.onnx.session.provider import (
    CPU,
    CUDA,
    UNKNOWN,
    Choice,
    choose,
    device_id,
    diagnose,
    failed_while_run,
    no_such_device,
    runtime,
    versions,
)
from tieconv.text import count, shown

ELEMENTS = {"FLOAT": 1, "INT32": 6, "INT64": 7, "FLOAT16": 10, "DOUBLE": 11, "BFLOAT16": 16}
"""ONNX element types by number."""
_FLOATS = {"FLOAT": np.float32, "FLOAT16": np.float16, "DOUBLE": np.float64}
_NO_KERNEL = "session.kernel"


@record
class _Model:
    """A graph by path, or its bytes with the folder of its data."""

    path: str | bytes
    folder: str

    @property
    def name(self) -> str:
        return self.path if isinstance(self.path, str) else self.folder


@record
class Session:
    """An open session. ``run`` binds inputs and outputs in place, so a cache stays on the device."""

    __eq__ = object.__eq__  # compare by identity: arrays and sessions have no useful equality
    __hash__ = object.__hash__

    inner: Any
    ort: Any
    use: ProviderUse

    @property
    def device(self) -> str:
        return "cuda" if self.use.active == CUDA else "cpu"

    def value(self, array: Any) -> Any:
        """Return a numpy array as a value for `run`."""
        return self.ort.OrtValue.ortvalue_from_numpy(array)

    def floats(self, rows: Any, dtype: str) -> Any:
        """Return a torch tensor as a value of the ONNX type ``dtype``. numpy has no bf16, so its bits are used."""
        import torch

        if dtype != "BFLOAT16":
            return self.value(np.ascontiguousarray(rows.numpy(), dtype=_FLOATS[dtype]))
        bits = rows.bfloat16().contiguous().view(torch.int16).numpy().view(np.uint16)
        return self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, ELEMENTS[dtype])

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a value for the past before the first token: zeros if it has elements. ``dtype`` is an ONNX name."""
        kinds = {"FLOAT": np.float32, "DOUBLE": np.float64, "INT64": np.int64, "INT32": np.int32}
        zeros = np.zeros(shape, kinds.get(dtype, np.uint16))  # 16-bit floats by their bits
        return self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(zeros, ELEMENTS[dtype])

    def run(self, feeds: Mapping[str, Any], outputs: Collection[str], host: str) -> dict[str, Any]:
        """Return the named outputs as values: ``host`` in main memory, the others where the session runs.

        Raises `NotRunError` if the device or one of its libraries fails; that says nothing about the graph.
        """
        binding = self.inner.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, *(("cpu", 0) if name == host else (self.device, device_id(self.use.requested))))
        try:
            binding.synchronize_inputs()
            with session_call("a run"):
                self.inner.run_with_iobinding(binding)
            binding.synchronize_outputs()
        except Exception as error:
            cause = (
                failed_while_run(self.ort, str(error)) if self.device == "cuda" and not out_of_memory(error) else None
            )
            if cause is None:
                raise
            raise NotRunError(cause.why, cause.hint, cause.code, active=CUDA) from error
        return dict(zip(outputs, binding.get_outputs(), strict=True))


def open_session(
    path: str | bytes | os.PathLike[str],
    provider: str = "auto",
    *,
    precision: str = "float32",
    tf32: bool = False,
    weight_gathers: Collection[str] = (),
    shape_nodes: Collection[str] = (),
    folder: str = "",
) -> Session:
    """Return a session of the graph at ``path`` on ``provider`` (``auto``, ``cpu``, ``cuda`` or ``cuda:N``).

    ``path`` may also be the bytes of a graph whose data is in ``folder``.

    ``weight_gathers`` are the names of the `Gather` nodes that read a weight. ``shape_nodes`` are those of nodes that
    compute with whole numbers only. Raises `NotRunError` if CUDA is requested
    but the session or a heavy node would run on the CPU. Raises it also for bf16 on the CPU.
    """
    ort = runtime()
    choice = choose(ort, provider, tf32=tf32)
    if choice.providers == [CPU]:
        _check_precision(precision)
    inner, notes = _start(ort, _Model(os.fspath(path), folder), provider, choice, precision)
    active = str(inner.get_providers()[0])
    use = ProviderUse(
        provider,
        active,
        placement=check_placement(inner, active, weight_gathers, shape_nodes),
        tf32=tf32 and active == CUDA,
        versions=versions(ort),
        notes=notes,
    )
    return Session(inner, ort, use)


def _start(ort: Any, path: _Model, provider: str, choice: Choice, precision: str) -> tuple[Any, tuple[str, ...]]:
    """Return the session, and notes for the report. Raises `NotRunError` if CUDA is requested but unavailable.

    If CUDA does not start, onnxruntime may return a session on the CPU. It may also fail with a driver error, or with
    an operator that the CPU does not support.
    """
    if choice.providers[0] == CPU:
        return _open(ort, path, choice.providers), choice.notes
    inner, error_text = None, ""
    absent = no_such_device(device_id(provider)) if device_id(provider) else None
    if absent:
        raise NotRunError(absent.why, absent.hint, absent.code)
    try:
        with _unlogged(ort):
            inner = _open(ort, path, choice.providers)
    except StartError as error:
        error_text = str(error)
    except NotRunError as stop:
        if stop.code != _NO_KERNEL or diagnose(ort).code == UNKNOWN:
            raise
    if inner is not None and str(inner.get_providers()[0]) == CUDA:
        return inner, choice.notes
    cause = diagnose(ort, error_text)
    if provider.startswith("cuda"):
        problem = f"onnxruntime silently uses the CPU: {cause.why}" if inner else f"CUDA does not start: {cause.why}"
        raise NotRunError(f"--provider cuda is not possible: {problem}", cause.hint, cause.code, active=CPU)
    _check_precision(precision)
    note = f"the session runs on the CPU, because the CUDA provider does not start: {cause.why}"
    return inner or _open(ort, path, [CPU]), (*choice.notes, note)


class StartError(Exception):
    """Raised if the provider, and not the graph, prevents a session."""


@contextmanager
def _unlogged(ort: Any) -> Iterator[None]:
    """Hide what onnxruntime logs about a provider that does not start. An error message gives the cause."""
    ort.set_default_logger_severity(4)
    try:
        yield
    finally:
        ort.set_default_logger_severity(2)


def out_of_memory(error: Exception) -> bool:
    """Return whether the runtime reports that main memory or device memory ran out."""
    message = str(error)
    phrases = ("llocate memory", "out of memory", "resource allocation failed", "ALLOCATION_FAILED", "ALLOC_FAILED")
    return isinstance(error, MemoryError) or any(phrase in message for phrase in phrases)


def _check_precision(precision: str) -> None:
    """Raise `NotRunError` for bf16: the CPU provider has no kernels for it."""
    if precision == "bfloat16":
        raise NotRunError(
            "onnxruntime's CPU provider cannot run this bf16 graph: it has no bf16 kernels for products and norms",
            "run it on a GPU (--provider cuda), or export in fp32 or fp16",
            "session.bf16",
            active=CPU,
        )


def _open(ort: Any, model: _Model, providers: list[Any]) -> Any:
    options = ort.SessionOptions()
    path = model.name
    if model.folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", model.folder)
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        # onnxruntime's fallback would print to stdout and continue on another provider.
        with session_call("the start of a session"):
            return ort.InferenceSession(model.path, options, providers=providers, enable_fallback=0)
    except Exception as error:
        # Each status of the runtime has a separate exception class, made in C++.
        if out_of_memory(error):
            raise NotRunError(
                f"{shown(path)}: memory ran out while onnxruntime loaded the graph",
                "use a larger machine or GPU, or free memory (see nvidia-smi)",
                "session.memory",
            ) from error
        if any(f"{library} failure" in str(error) for library in ("CUDA", "CUBLAS", "CUDNN")):
            raise StartError(str(error)) from error
        if "NOT_IMPLEMENTED" in str(error):
            raise NotRunError(
                f"{shown(path)}: onnxruntime {ort.__version__} has no kernel for a node: {shown(error, 300)}",
                "use another --provider, or export in another precision or opset",
                _NO_KERNEL,
            ) from error
        raise UnreadableError(
            f"onnxruntime {ort.__version__} cannot load {shown(path)}: {shown(error, 300)}",
            "export the graph again",
            "session.load",
        ) from error


_PRODUCTS = {"MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "MatMulInteger", "QGemm", "Einsum", "Conv"}
_NORMS = {
    "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "GroupNormalization", "EmbedLayerNormalization", "ReduceMean",
}  # fmt: skip
_ATTENTION = {
    "Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention", "PackedAttention",
    "QAttention", "RotaryEmbedding", "Softmax",
}  # fmt: skip
_ACTIVATIONS = {"Gelu", "FastGelu", "QuickGelu", "BiasGelu", "Erf", "Sigmoid"}
_EXPERTS = {"MoE", "QMoE", "TopK", "ScatterND"}
HEAVY = frozenset(_PRODUCTS | _NORMS | _ATTENTION | _ACTIVATIONS | _EXPERTS)
"""Operators that must run on the device: products, norms, attention, activations and the choice of experts.

`ReduceMean` is part of some norms. `TopK` and `ScatterND` choose experts, and write their results.
"""


def check_placement(
    inner: Any, active: str, weight_gathers: Collection[str], shape_nodes: Collection[str] = ()
) -> dict[str, int]:
    """Return how many nodes each provider runs, if the runtime reports it.

    Shape arithmetic may run on the CPU, and so may the ``shape_nodes`` of any operator. A `Gather` is heavy if it reads
    a weight. Raises `NotRunError` if the CPU runs
    a heavy node of a CUDA session, or if placements are unknown.
    """
    cuda = active == CUDA
    if not hasattr(inner, "get_provider_graph_assignment_info"):
        if cuda:
            raise NotRunError(
                "this onnxruntime does not report where each node runs, so tieconv could not see a fallback to the CPU",
                install_command("gpu", upgrade=True),
                "session.placement",
            )
        return {}
    placed: Counter[str] = Counter()
    heavy: list[str] = []
    for part in inner.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        placed[str(part.ep_name)] += len(nodes)
        if cuda and part.ep_name != CUDA:
            heavy += [
                f"{node.op_type} {node.name}"
                for node in nodes
                if node.name not in shape_nodes and _is_heavy(node, weight_gathers)
            ]
    if cuda and not placed:
        raise NotRunError(
            "onnxruntime reported no placement of nodes, so tieconv could not see a fallback to the CPU",
            install_command("gpu", upgrade=True),
            "session.placement",
        )
    if heavy:
        raise NotRunError(
            f"CUDA is active, but the CPU runs {count(len(heavy), 'heavy node')}: {shown(', '.join(heavy))}",
            "these operators have no CUDA kernel in this precision: export in another precision or opset",
            "session.fallback-nodes",
            active=active,
            fallback=tuple(heavy),
        )
    return dict(placed)


def _is_heavy(node: Any, weight_gathers: Collection[str]) -> bool:
    return node.op_type in HEAVY or (node.op_type == "Gather" and node.name in weight_gathers)


@record
class Chained(Session):
    """A decoder's session, and the session that makes its input ``between`` from the input ``ids``."""

    first: Session
    ids: str
    between: str

    def run(self, feeds: Mapping[str, Any], outputs: Collection[str], host: str) -> dict[str, Any]:
        """Return the decoder's outputs. The embedding runs only if ``feeds`` has token ids."""
        values = dict(feeds)
        if self.ids in values:
            values |= self.first.run({self.ids: values.pop(self.ids)}, [self.between], "")
        return Session.run(self, values, outputs, host)
