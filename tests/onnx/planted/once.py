"""Run torch once for each model and precision, for many graphs of one model."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.lazy import measured_pair, passes, passes as torch_runs, torch
from tieconv.reference.model import load

Side = tuple[str, object]


@contextmanager
def torch_once() -> Iterator[None]:
    """Let `tieconv.parity` take logits of the reference and of the floor from its earlier runs in this block."""
    known: dict[tuple[str, str], dict[Side, torch.Tensor]] = {}
    models: dict[tuple[str, str], tuple[Any, passes.TorchRuns]] = {}

    def once(
        subject: measured_pair.Subject, dtype: str, work: passes.Work, store: passes.LogitStore
    ) -> passes.TorchRuns:
        key = subject.root, subject.precision
        wanted = [(side, cell) for side in ("reference", "floor") for cell in work.cells]
        if not known.get(key, {}).keys() >= set(wanted):
            made = passes.run_torch(subject, dtype, work, store)
            known[key] = {side: value.clone() for side in wanted if (value := store.get(side)) is not None}
            models[key] = load(subject.root, subject.evidence.checkpoint.config_values, subject.precision), made
            return made
        for side in wanted:
            store.put(side, known[key][side])
        model, (identity, numbers, _) = models[key]
        return passes.identity_of(subject, identity.unused, model), numbers, ()

    genuine = passes.run_torch
    passes.run_torch = once
    try:
        yield
    finally:
        passes.run_torch = genuine


Run = Callable[[Any, Any, Any, str], None]


class _Kept:
    """A store of logits that remembers what it was given."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.given: list[tuple[Any, Any]] = []

    def put(self, name: Any, logits: Any) -> None:
        self.given.append((name, logits))
        self.store.put(name, logits)


@contextmanager
def logits_once() -> Iterator[None]:
    """Take the logits of the reference and of the floor from an earlier run of the same weights, precision and batches.

    A quantised graph is measured against its own weights in the checkpoint's model, so the model's path is no key.

    A user's own batch, and rows of `inputs_embeds`, are always run.
    """
    known: dict[Any, list[tuple[Any, Any]]] = {}

    def once(run: Run) -> Run:
        def filled(reference: Any, work: Any, store: Any, name: str) -> None:
            path = getattr(reference.model, "name_or_path", "")
            parameters = (tensor.detach().cpu().contiguous().view(-1) for tensor in reference.model.parameters())
            weights = tuple(zlib.crc32(tensor.view(torch.uint8).numpy()) for tensor in parameters)
            key = name, path, weights, reference.dtype, repr(work.cells), work.kind, work.types, work.placed
            if not path or work.own is not None or work.rows_drawn is not None:
                run(reference, work, store, name)
                return
            if key not in known:
                kept = _Kept(store)
                run(reference, work, kept, name)
                known[key] = kept.given
                return
            for name, logits in known[key]:
                store.put(name, logits)

        return filled

    genuine = torch_runs.run_model
    torch_runs.run_model = once(genuine)
    try:
        yield
    finally:
        torch_runs.run_model = genuine
