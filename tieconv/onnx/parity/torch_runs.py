"""Run the checkpoint in torch, first as the reference, then as the floor in the graph's precision.

Only one of the two is in memory at a time.
"""

from __future__ import annotations

from typing import Any

from tieconv.checkpoint.results.parity import Gate, Identity
from tieconv.checkpoint.results.parity_metrics import FreeRun
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.causes.model_numbers import ModelNumbers, model_numbers
from tieconv.onnx.parity.free_run import agreement, free_runs, reference_generate
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.passes import Work, features_of, run_floor, run_reference
from tieconv.onnx.parity.vocabulary.embedding_rows import embedding_gates
from tieconv.onnx.parity.weights.folds import folds
from tieconv.onnx.parity.weights.identity import weight_identity
from tieconv.reference import Reference, load
from tieconv.reference.model import CPU, stored_outside, stored_unread
from tieconv.sources.local.files import open_files


@record
class TorchRuns:
    """Results of the torch runs.

    ``free`` says how far free runs agree. ``identity`` compares the weights bit for bit. ``numbers`` are those
    that the model computes with. ``gates`` are those of an embedding's graph.
    """

    free: FreeRun | None
    identity: Identity
    numbers: ModelNumbers
    gates: tuple[Gate, ...] = ()


def run_torch(subject: Subject, dtype: str, tokens: Any, work: Work, store: LogitStore) -> TorchRuns:
    """Run the reference in ``dtype``, then the floor; their logits are stored under these names.

    ``tokens`` are those of the graph's free runs. The reference's free runs are compared with them.
    """
    config = subject.evidence.checkpoint.config_values
    reference = load(subject.root, config, dtype, subject.torch_device)
    run_reference(reference, work, store)
    free = agreement(tokens, free_runs(work, reference_generate(reference)) if tokens is not None else None)
    unused = reference.unused
    del reference
    floor = load(subject.root, config, subject.precision, subject.torch_device)
    run_floor(floor, work, store)
    floor.move(CPU)
    gates = tuple(embedding_gates(subject, floor))
    return TorchRuns(free, identity_of(subject, unused, floor), model_numbers(floor, subject.config), gates)


def identity_of(subject: Subject, unused: tuple[str, ...], model: Reference) -> Identity:
    """Compare the graph's weights with those of the checkpoint, bit for bit; ``model`` is the loaded checkpoint."""
    checkpoint = subject.evidence.checkpoint
    embedding = subject.evidence.head.input_embedding
    if subject.graph.embedding is not None:
        unused = (*unused, *stored_outside(model.model, checkpoint.tensors))
    reads = features_of(subject.bindings)
    if reads is not None:
        unused = (*unused, *stored_unread(model, reads, checkpoint.tensors))
    with open_files(checkpoint.root) as files:
        files.expect(checkpoint.files)
        return weight_identity(
            subject.graph,
            checkpoint,
            files,
            subject.precision,
            tuple(folds(subject.config)),
            unused,
            embedding.name if embedding else None,
            model.matrices,
            model.offsets,
        )
