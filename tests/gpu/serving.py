"""What makes serving fast: torch compiled, and a CUDA graph that onnxruntime captured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.gpu import latency
from tests.gpu.models import LARGE, Workshop
from tests.lazy import bindings, graph_forward, ort_session, torch
from tieconv.checkpoint.graph_plan import PRECISIONS
from tieconv.errors import NotRunError
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.reference.model import Batch

FUSED = "attention fused"
CAPTURED = ("gemm captured", f"{FUSED} captured")
COMPILED = "torch compiled"
COMPILED_LENGTHS = (1, 256)
"""Each length is compiled for itself, which takes far longer than its measurement."""
SHOWN = 300


def serving_rows(workshop: Workshop, provider: str, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each kind and length: milliseconds as `latency` has them, or why there are none."""
    if provider != "cuda":
        raise NotRunError("compiled and captured passes are measured on a GPU", "")
    graphs = {"gemm": workshop.graph(LARGE, precision), FUSED: workshop.fused(precision)}
    for row in _plainly(graphs[FUSED], workshop, precision):
        yield {"precision": precision, "form": FUSED} | row
    for form in CAPTURED:
        for row in _captured(workshop, precision, graphs[form.removesuffix(" captured")]):
            yield {"precision": precision, "form": form} | row
    with torch.inference_mode():
        model = latency._torch(workshop, provider, precision)
        model.forward = torch.compile(model.forward, dynamic=False)
        for length in COMPILED_LENGTHS:
            run = latency._pass(model, latency._batch(workshop, length), provider)
            yield {"precision": precision, "form": COMPILED, "sequence": length} | _timed(run, "cuda")


def _timed(run: Callable[[], Any], active: str) -> dict[str, Any]:
    taken = latency.measure({"run": run}, latency.ROUNDS, torch.cuda.synchronize)["run"]
    return {"active": active, "rounds": latency.ROUNDS} | latency.quantiles(taken)


def _plainly(path: Path, workshop: Workshop, precision: str) -> Iterator[dict[str, Any]]:
    """Passes of a session, a length each."""
    session = latency.open_with(path, "cuda", "default", PRECISIONS[precision])
    for length in latency.LENGTHS:
        run = latency.bound(session, path, latency._batch(workshop, length))
        yield {"sequence": length} | _timed(run, session.use.active)


def _captured(workshop: Workshop, precision: str, path: Path) -> Iterator[dict[str, Any]]:
    """CUDA graphs of one pass, a length each, replayed: logits of other tokens beside those of a plain session."""
    try:
        session = _open(path)
    except Exception as error:  # what onnxruntime raises where it cannot capture
        yield from ({"sequence": length} | _refused(error) for length in latency.LENGTHS)
        return
    plain = latency.open_with(path, "cuda", "exact", PRECISIONS[precision])
    for length in latency.LENGTHS:
        first = latency._batch(workshop, length)
        changed = Batch((first.ids + 7) % 1000, first.mask)
        want, shapes = _plain(plain, path, changed)
        run, logits = _bound(session, path, first, changed, shapes)
        try:
            got = _replayed(run, logits)
        except Exception as error:
            yield {"sequence": length} | _refused(error)
            continue
        equal = bool(np.array_equal(got, want, equal_nan=True))
        yield {"sequence": length} | _timed(run, ort_session.CUDA) | {"equal": equal}


def _refused(error: Exception) -> dict[str, Any]:
    return {"verdict": "not_run", "reason": " ".join(str(error).split())[-SHOWN:]}


def _replayed(run: Callable[[], Any], logits: Callable[[], np.ndarray]) -> np.ndarray:
    run()  # captures
    logits()  # puts other tokens into the same buffers
    run()  # replays
    return logits()


def _open(path: Path) -> ort_session.Session:
    import onnxruntime as ort

    from tieconv.checkpoint.results.parity import ProviderUse

    ort_session.preload(ort)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    asked = {"use_tf32": "0", "enable_cuda_graph": "1"}
    made = ort.InferenceSession(
        str(path), options, providers=[(ort_session.CUDA, asked), ort_session.CPU], enable_fallback=0
    )
    return ort_session.Session(made, ort, ProviderUse("cuda", ort_session.CUDA))


def _plain(session: ort_session.Session, path: Path, batch: Batch) -> tuple[np.ndarray, list[tuple[list[int], int]]]:
    """The bits of a plain session's logits, and the shape and element type of each output."""
    binding: list[Any] = []
    latency.bound(session, path, batch, binding)()
    values = binding[0].get_outputs()
    shapes = [(list(value.shape()), int(value.element_type())) for value in values]
    return _bits(values[0]), shapes


def _bits(value: Any) -> np.ndarray:
    """The value on the CPU; 16-bit floats by their bits."""
    try:
        return np.asarray(value.numpy())
    except Exception:  # numpy has no bf16
        return torch.utils.dlpack.from_dlpack(value._ortvalue.to_dlpack()).view(torch.int16).cpu().numpy()


def _bound(
    session: ort_session.Session, path: Path, first: Batch, second: Batch, shapes: list[tuple[list[int], int]]
) -> tuple[Callable[[], Any], Callable[[], np.ndarray]]:
    """A pass whose inputs and outputs stay where they are, and what reads its logits and then gives it other tokens."""
    model = graph_forward.GraphModel(session, bindings.bind(read_graph(str(path)), masked=False))
    binding = session.inner.io_binding()
    feeds = model.feeds(first, 0) | model.no_past(first)
    changed = {name: value.numpy().copy() for name, value in model.feeds(second, 0).items()}
    options = session.ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", str(first.ids.shape[1]))  # a graph of its own for each length
    held = {}
    for name, value in feeds.items():
        if 0 not in value.shape():
            value = session.ort.OrtValue.ortvalue_from_numpy(value.numpy(), "cuda", 0)
        held[name] = value
        binding.bind_ortvalue_input(name, value)
    outputs = [session.ort.OrtValue.ortvalue_from_shape_and_type(*shape, "cuda", 0) for shape in shapes]
    for output, value in zip(session.inner.get_outputs(), outputs, strict=True):
        binding.bind_ortvalue_output(output.name, value)

    def run() -> Any:
        session.inner.run_with_iobinding(binding, options)
        return held

    def logits() -> np.ndarray:
        read = _bits(outputs[0])
        for name, value in changed.items():
            held[name].update_inplace(value)
        return read

    return run, logits


def keys(precision: str) -> list[str]:
    """The rows of a precision."""
    lengths = {**dict.fromkeys((FUSED, *CAPTURED), latency.LENGTHS), COMPILED: COMPILED_LENGTHS}
    return [f"{precision}/{form}/{length}" for form, some in lengths.items() for length in some]
