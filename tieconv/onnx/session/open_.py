"""Sessions of ONNX Runtime: opened on the provider that was asked for, or not at all."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tieconv.checkpoint.results.parity import ProviderUse
from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.session.diagnosis import UNKNOWN, diagnose, failed_while_run
from tieconv.onnx.session.placement import check_placement
from tieconv.onnx.session.provider import CPU, CUDA, Choice, choose, runtime, versions
from tieconv.text import shown

ELEMENTS = {"FLOAT": 1, "INT32": 6, "INT64": 7, "FLOAT16": 10, "DOUBLE": 11, "BFLOAT16": 16}
"""ONNX element types by number."""
_NO_KERNEL = "session.kernel"


@record
class Session:
    """An open session. ``run`` binds inputs and outputs in place, so that a cache stays on the device."""

    __eq__ = object.__eq__  # by identity: arrays and sessions are not compared
    __hash__ = object.__hash__

    inner: Any
    ort: Any
    use: ProviderUse

    @property
    def device(self) -> str:
        return "cuda" if self.use.active == CUDA else "cpu"

    def value(self, array: Any) -> Any:
        """A numpy array as a value that `run` takes."""
        return self.ort.OrtValue.ortvalue_from_numpy(array)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A value for the past before the first token, zeros if it has elements. ``dtype`` is an ONNX name."""
        kinds = {"FLOAT": np.float32, "DOUBLE": np.float64, "INT64": np.int64, "INT32": np.int32}
        zeros = np.zeros(shape, kinds.get(dtype, np.uint16))  # the halves by their bits
        return self.ort.OrtValue.ortvalue_from_numpy_with_onnx_type(zeros, ELEMENTS[dtype])

    def run(self, feeds: Mapping[str, Any], outputs: Collection[str], host: str) -> dict[str, Any]:
        """The named outputs as values: ``host`` in main memory, the others where the session runs.

        Raises `NotRunError` where the device or a library of it fails, which says nothing of the graph.
        """
        binding = self.inner.io_binding()
        for name, value in feeds.items():
            binding.bind_ortvalue_input(name, value)
        for name in outputs:
            binding.bind_output(name, "cpu" if name == host else self.device)
        try:
            binding.synchronize_inputs()
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
    path: str | os.PathLike[str],
    provider: str = "auto",
    *,
    precision: str = "float32",
    tf32: bool = False,
    weight_gathers: Collection[str] = (),
) -> Session:
    """A session of the graph at ``path`` on ``provider`` (``auto``, ``cpu`` or ``cuda``).

    ``weight_gathers`` are the names of the `Gather` nodes that read a weight. Raises `NotRunError` where CUDA was
    asked for and the session, or a heavy node of it, would run on the CPU; and for bf16 on the CPU.
    """
    ort = runtime()
    choice = choose(ort, provider, tf32=tf32)
    if choice.providers == [CPU]:
        _check_precision(precision)
    inner, notes = _start(ort, os.fspath(path), provider, choice, precision)
    active = str(inner.get_providers()[0])
    use = ProviderUse(
        provider,
        active,
        placement=check_placement(inner, active, weight_gathers),
        tf32=tf32 and active == CUDA,
        versions=versions(ort),
        notes=notes,
    )
    return Session(inner, ort, use)


def _start(ort: Any, path: str, provider: str, choice: Choice, precision: str) -> tuple[Any, tuple[str, ...]]:
    """The session, and notes for the report; `NotRunError` with the cause where CUDA was asked for and is not there.

    onnxruntime answers a CUDA that does not start with a session on the CPU, or with an error from the driver, or
    with an operator that the CPU cannot do.
    """
    if choice.providers[0] == CPU:
        return _open(ort, path, choice.providers), choice.notes
    inner, error_text = None, ""
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
    if provider == "cuda":
        problem = (
            f"onnxruntime silently gave a CPU session: {cause.why}" if inner else f"it does not start: {cause.why}"
        )
        raise NotRunError(f"CUDA was asked for and {problem}", cause.hint, cause.code, active=CPU)
    _check_precision(precision)
    note = f"onnxruntime has a CUDA provider that does not start here, and the CPU was used: {cause.why}"
    return inner or _open(ort, path, [CPU]), (*choice.notes, note)


class StartError(Exception):
    """The provider, not the graph, is what a session could not be made of."""


@contextmanager
def _unlogged(ort: Any) -> Iterator[None]:
    """Without what onnxruntime logs of a provider that does not start: the cause is told in a sentence."""
    ort.set_default_logger_severity(4)
    try:
        yield
    finally:
        ort.set_default_logger_severity(2)


def out_of_memory(error: Exception) -> bool:
    """Whether the runtime says that memory ran out, its own or the device's."""
    message = str(error)
    return isinstance(error, MemoryError) or "llocate memory" in message or "out of memory" in message


def _check_precision(precision: str) -> None:
    """The CPU has no kernels for bf16."""
    if precision == "bfloat16":
        raise NotRunError(
            "the graph is bf16, and onnxruntime's CPU provider has no bf16 kernels for its products and norms",
            "run it where there is a GPU (--provider cuda), or export in fp32 or fp16",
            "session.bf16",
            active=CPU,
        )


def _open(ort: Any, path: str, providers: list[Any]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    try:
        # With its own fallback it would print to stdout and go on elsewhere.
        return ort.InferenceSession(path, options, providers=providers, enable_fallback=0)
    except Exception as error:
        # Each status of the runtime is an exception class of its own, all made in C++.
        if out_of_memory(error):
            raise NotRunError(
                f"{shown(path)}: memory ran out while a session was made of it",
                "run it on a larger machine or GPU, or free the one that is there: nvidia-smi",
                "session.memory",
            ) from error
        if any(f"{library} failure" in str(error) for library in ("CUDA", "CUBLAS", "CUDNN")):
            raise StartError(str(error)) from error
        if "NOT_IMPLEMENTED" in str(error):
            raise NotRunError(
                f"{shown(path)}: onnxruntime {ort.__version__} has no kernel for a node: {shown(error, 300)}",
                "run it on another provider, or export in another precision or opset",
                _NO_KERNEL,
            ) from error
        raise UnreadableError(
            f"{shown(path)}: onnxruntime {ort.__version__} cannot load it: {shown(error, 300)}",
            "export the graph again",
            "session.load",
        ) from error
