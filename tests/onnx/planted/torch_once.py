"""Run the torch side of a parity measurement once for each model and precision, for many graphs of one model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tieconv.onnx.parity import passes
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.passes import LogitStore, TorchRuns, Work, identity_of, run_torch
from tieconv.reference import load

Side = tuple[str, object]


@contextmanager
def torch_once() -> Iterator[None]:
    """Let `tieconv.parity` take logits of the reference and of the floor from its earlier runs in this block."""
    known: dict[tuple[str, str], dict[Side, torch.Tensor]] = {}
    models: dict[tuple[str, str], tuple[Any, TorchRuns]] = {}

    def once(subject: Subject, dtype: str, work: Work, store: LogitStore) -> TorchRuns:
        key = subject.root, subject.precision
        wanted = [(side, cell) for side in ("reference", "floor") for cell in work.cells]
        if not known.get(key, {}).keys() >= set(wanted):
            made = run_torch(subject, dtype, work, store)
            known[key] = {side: value.clone() for side in wanted if (value := store.get(side)) is not None}
            models[key] = load(subject.root, subject.evidence.checkpoint.config_values, subject.precision), made
            return made
        for side in wanted:
            store.put(side, known[key][side])
        model, (identity, numbers, _) = models[key]
        return identity_of(subject, identity.unused, model), numbers, ()

    genuine = passes.run_torch
    passes.run_torch = once
    try:
        yield
    finally:
        passes.run_torch = genuine
