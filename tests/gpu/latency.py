"""Time of one pass of the large model, each form of its head and torch interleaved on the same device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu.memory import open_with
from tests.gpu.models import FORMS, LARGE, Workshop, large_config
from tests.lazy import bindings, graph_forward, ort_session, torch, transformers as tr
from tieconv.checkpoint.graph_plan import PRECISIONS
from tieconv.onnx.parity.graph_file import read_graph
from tieconv.reference.model import Batch

LENGTHS = (1, 8, 64, 256)
TORCH = "torch"
WARM, ROUNDS, REHEARSED = 10, 50, 3


def latency_rows(workshop: Workshop, provider: str, precision: str) -> Iterator[dict[str, Any]]:
    """A row for each form and length: milliseconds, medians over interleaved rounds after a warm-up."""
    paths = {form: workshop.form(precision, form) for form in FORMS}
    sessions = {form: open_with(path, provider, "default", PRECISIONS[precision]) for form, path in paths.items()}
    with torch.inference_mode():
        model = _torch(workshop, provider, precision)
        for length in LENGTHS:
            batch = _batch(workshop, length)
            runs: dict[str, Callable[[], Any]] = {form: bound(sessions[form], paths[form], batch) for form in FORMS}
            runs[TORCH] = _pass(model, batch, provider)
            rounds = ROUNDS if provider == "cuda" else REHEARSED
            times = measure(runs, rounds, lambda: _wait(provider))
            for form, taken in times.items():
                where = _active(sessions, form, provider)
                row = {"precision": precision, "form": form, "sequence": length, "active": where, "rounds": rounds}
                yield row | quantiles(taken)


def _active(sessions: dict[str, ort_session.Session], form: str, provider: str) -> str:
    return provider if form == TORCH else sessions[form].use.active


def quantiles(taken: list[float]) -> dict[str, float]:
    """Milliseconds: the median, and a tenth of the runs on either side."""
    ordered = sorted(taken)
    tenth = len(ordered) // 10
    return {
        "median": round(statistics.median(ordered) * 1e3, 4),
        "low": round(ordered[tenth] * 1e3, 4),
        "high": round(ordered[-1 - tenth] * 1e3, 4),
    }


def measure(runs: dict[str, Callable[[], Any]], rounds: int, wait: Callable[[], None]) -> dict[str, list[float]]:
    """Seconds of every run, one of each in turn, each begun and ended on an idle device."""
    times: dict[str, list[float]] = {form: [] for form in runs}
    for turn in range(WARM + rounds):
        for form, run in runs.items():
            wait()
            start = time.perf_counter()
            run()
            wait()
            if turn >= WARM:
                times[form].append(time.perf_counter() - start)
    return times


def bound(session: ort_session.Session, graph: Path, batch: Batch, keep: list[Any] | None = None) -> Callable[[], Any]:
    """A pass without a past, inputs on the device and outputs left there: what a serving loop would time.

    The binding, from which the outputs can be read, is put into ``keep``.
    """
    model = graph_forward.GraphModel(session, bindings.bind(read_graph(str(graph)), masked=False))
    binding = session.inner.io_binding()
    held = model.feeds(batch, 0) | model.no_past(batch)
    for name, value in held.items():
        if session.device == "cuda" and 0 not in value.shape():
            value = session.ort.OrtValue.ortvalue_from_numpy(value.numpy(), "cuda", 0)
        binding.bind_ortvalue_input(name, value)
    for output in session.inner.get_outputs():
        binding.bind_output(output.name, session.device)
    binding.synchronize_inputs()
    if keep is not None:
        keep.append(binding)

    def run() -> Any:
        session.inner.run_with_iobinding(binding)
        return held  # the arrays that the inputs were made of live as long as the run does

    return run


def _batch(workshop: Workshop, length: int) -> Batch:
    rows = large_config(small=workshop.small).vocab_size
    ids = torch.randint(0, rows, (1, length), generator=torch.Generator().manual_seed(length))
    return Batch(ids, torch.ones_like(ids))


def _torch(workshop: Workshop, provider: str, precision: str) -> Any:
    dtype = getattr(torch, PRECISIONS[precision])
    made = tr.LlamaForCausalLM.from_pretrained(workshop.model(LARGE), dtype=dtype)
    return made.eval().to(provider)


def _pass(model: Any, batch: Batch, device: str) -> Callable[[], Any]:
    given = {
        "input_ids": batch.ids.to(device),
        "attention_mask": batch.mask.to(device),
        "position_ids": batch.positions.to(device),
    }
    return lambda: model(**given, past_key_values=tr.DynamicCache(config=model.config), use_cache=True).logits


def _wait(provider: str) -> None:
    if provider == "cuda":
        torch.cuda.synchronize()
