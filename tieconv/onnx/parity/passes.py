"""Run the same batches through graph, reference and floor, with one model in memory at a time."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tieconv.checkpoint.results.parity import FreeRun, Gate, Identity, ProviderUse
from tieconv.checkpoint.value_type import identity_record, record
from tieconv.errors import NotRunError
from tieconv.onnx.ort_session import CUDA, Chained, open_session, out_of_memory
from tieconv.onnx.parity.batches import (
    PROMPT,
    Cell,
    Drawn,
    cells,
    compared,
    embedding_cells,
    make_batch,
    single_seed_cells,
    stepped,
    token_cells,
    with_features,
    with_rows,
    without_tokens,
)
from tieconv.onnx.parity.bindings import Bindings, Kind, Padding, Role
from tieconv.onnx.parity.graph_file import DTYPES, Graph
from tieconv.onnx.parity.graph_forward import CachedModel, GraphModel, PairModel, extended, fixed
from tieconv.onnx.parity.lookups import embedding_gates
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.weight_identity import factors, folds, weight_identity
from tieconv.reference import Batch, EncoderInput, Reference, load, position_limit
from tieconv.reference.model import CPU, stored_outside, stored_unread
from tieconv.sources.local import open_files
from tieconv.sources.temporary import temporary_directory
from tieconv.text import shown

Steps = Callable[[Batch, tuple[int, ...]], Iterator[torch.Tensor]]


@record
class Work:
    """The cells for a kind of graph, and each cell's batch, which is always the same.

    ``window`` is the sliding window that is measured; 0 means none. ``ids`` go through the graph one by one.
    ``length``, ``rows`` and ``own`` are what the user wants to be measured too. ``rows_drawn`` describes the rows of a
    decoder of `inputs_embeds`. ``features`` are those that an encoder reads in place of token ids.
    """

    kind: Kind
    config: Any
    types: bool
    placed: bool = True
    padding: Padding = Padding.FRONT
    decoder_mask: bool = False
    holes: bool = True
    window: int = 0
    ids: tuple[int, ...] = ()
    length: int = 0
    rows: int = 0
    own: Batch | None = None
    rows_drawn: Drawn | None = None
    features: EncoderInput | None = None

    @property
    def cells(self) -> list[Cell]:
        """The user's batch, then nine shapes with three seeds each, those with one seed, single tokens and steps."""
        kind, longest, where, drawn = self.kind, longest_sequence(self.config), self.padding, self.rows_drawn
        more = partial(single_seed_cells, holes=self.holes, window=self.window, length=self.length, batch=self.rows)
        chosen = [
            *self._own_cells(),
            *cells(kind, longest, where),
            *more(kind, longest, where),
            *token_cells(kind, self.ids, where),
            *(embedding_cells(longest, where, blocks=drawn.blocks) if drawn is not None else ()),
            *(stepped(longest, where, kind) if kind.steps else ()),
        ]
        return chosen if self.features is None else list(dict.fromkeys(map(without_tokens, chosen)))

    def _own_cells(self) -> Iterator[Cell]:
        """Yield the user's batch in one pass, and its last token after the others."""
        if self.own is None:
            return
        rows, length = self.own.answered.shape
        before = self.own.ids.shape[1] if self.kind.encodes else 0
        yield Cell(rows, length, before, 0, 0, where=self.padding, own=True)
        if self.kind is Kind.CACHED and length > 1 and bool(self.own.mask[:, -1].all()):
            yield Cell(rows, 1, length - 1, 0, 0, where=self.padding, own=True)

    def batch(self, cell: Cell) -> Batch:
        batch = self.own if cell.own else None
        if batch is None:
            more = {"types": self.types, "placed": self.placed, "decoder_mask": self.decoder_mask}
            batch = make_batch(cell, self.kind, self.config, **more)
            batch = batch if self.features is None else with_features(batch, cell, self.features)
        return batch if self.rows_drawn is None else with_rows(batch, cell, self.rows_drawn)

    def judged(self, cell: Cell, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the judged positions, one row each."""
        return logits[:, -cell.judged :][compared(cell, self.kind, self.batch(cell))[:, -cell.judged :]]

    def with_same_tokens(self) -> Iterator[list[Cell]]:
        """Yield lists of cells whose rows are the same, so that the reference computes them once."""
        alike: dict[tuple[object, ...], list[Cell]] = {}
        for cell in self.cells:
            encoded = cell.past if self.kind.encodes else 0
            shape = cell.seed, cell.batch, cell.length, encoded, cell.padding, cell.layout
            key = (*shape, cell.tokens, cell.own, cell.embeds, cell.blocks, cell.blocks and cell.past)
            alike.setdefault(key, []).append(cell)
        yield from alike.values()


def make_work(bindings: Bindings, config: Any, window: int = 0, ids: tuple[int, ...] = ()) -> Work:
    """Return the work for a graph with these inputs.

    ``window`` is the sliding window to measure. ``ids`` are those that go through the graph one by one.
    """
    kind, inputs = bindings.kind, bindings.inputs
    return Work(
        kind,
        config,
        types=Role.TYPES in inputs,
        # A masked model numbers its positions itself, starting at the padding. A decoder needs position ids.
        placed=kind is not Kind.MASKED or Role.POSITIONS in inputs,
        padding=bindings.padding,
        decoder_mask=Role.DECODER_MASK in inputs,
        # Without position ids, a decoder may count a hole's positions. Rotary embeddings then see another distance.
        holes=kind is Kind.MASKED or kind.encodes or Role.POSITIONS in inputs,
        window=window,
        ids=ids,
        rows_drawn=Drawn(bindings.width, bindings.axes, Role.BLOCKS in inputs, bindings.causal)
        if bindings.width
        else None,
        features=features_of(bindings),
    )


def features_of(bindings: Bindings) -> EncoderInput | None:
    """Return the features that the model's encoder reads; ``None`` for token ids."""
    value = bindings.features
    return None if value is None else EncoderInput(value.name, tuple(map(fixed, value.shape[1:])))


def longest_sequence(config: Any) -> int:
    """Return how many positions the model has; a large number if its config does not say."""
    return position_limit(config) or 1 << 30


def pieces(cell: Cell, kind: Kind) -> tuple[int, ...]:
    """Return the lengths in which a cell's tokens are fed to a model with a cache."""
    if kind is Kind.PAIR:
        return (cell.sequence - cell.steps, *([1] * cell.steps))
    if cell.steps:
        return (cell.past, *([1] * cell.steps))
    return (cell.past, cell.sequence) if cell.past else (cell.sequence,)


def cached_logits(steps: Steps, batch: Batch, cell: Cell, kind: Kind) -> torch.Tensor:
    """Return the logits of the cell's tokens, without those of the past."""
    made = list(steps(batch, pieces(cell, kind)))
    return torch.cat(made[1:] if len(made) > 1 else made, 1)


def run_graph(
    graph: CachedModel, work: Work, store: LogitStore, name: str, cells: Sequence[Cell] = ()
) -> dict[Cell, str]:
    """Run every cell, or these ``cells``, through the graph; return the runtime's error for each failed cell.

    Raises `NotRunError` if memory runs out or the device fails.
    """
    errors: dict[Cell, str] = {}
    for cell in cells or work.cells:
        batch = work.batch(cell)
        try:
            cached = work.kind.steps
            logits = cached_logits(graph.steps, batch, cell, work.kind) if cached else graph.logits(batch)
            store.put((name, cell), work.judged(cell, logits))
        except NotRunError:
            raise
        except Exception as error:
            # Each status of the runtime has a separate exception class, made in C++.
            if out_of_memory(error):
                raise NotRunError("memory ran out while the graph ran", "use a machine with more memory") from error
            errors[cell] = shown(error, 300)
    return errors


def run_reference(reference: Reference, work: Work, store: LogitStore) -> None:
    """Run every cell through the reference in one pass, without a cache."""
    for alike in work.with_same_tokens():
        logits = reference.logits(work.batch(alike[0]), max(cell.judged for cell in alike))
        for cell in alike:
            store.put(("reference", cell), work.judged(cell, logits))


def run_passes(model: Reference, work: Work, store: LogitStore, name: str) -> None:
    """Run every cell through the model in a separate pass; its logits are stored as ``name``."""
    for cell in work.cells:
        store.put((name, cell), work.judged(cell, model.logits(work.batch(cell), cell.judged)))


def run_floor(model: Reference, work: Work, store: LogitStore) -> None:
    """Run every cell through torch in the export's precision, with a cache if the graph has one."""
    for cell in work.cells:
        batch = work.batch(cell)
        cached = work.kind.steps and len(pieces(cell, work.kind)) > 1
        logits = cached_logits(model.steps, batch, cell, work.kind) if cached else model.logits(batch, cell.judged)
        store.put(("floor", cell), work.judged(cell, logits))


def prompt(work: Work, cell: Cell) -> Batch:
    """Return the first tokens of a stepped cell, from which free runs start."""
    return work.batch(cell).until(pieces(cell, work.kind)[0])


# Run the graph in a session of ONNX Runtime: every batch, and free runs if it has a cache.

_WHOLE = ("INT64", "INT32", "BOOL")


@record
class SessionRuns:
    """Where the graph ran and what failed.

    ``tf32`` is set if the graph ran again with products rounded to TF32. ``tokens`` (sequences, steps) are those of the
    free runs.
    """

    use: ProviderUse
    graph: Mapping[Cell, str]
    tf32: Mapping[Cell, str] | None
    tokens: Any


def run_sessions(subject: Subject, work: Work, store: LogitStore) -> SessionRuns:
    """Run the graph, and a float32 graph on CUDA twice. Its logits are stored as `graph` and `tf32`."""
    model, use = _model(subject, tf32=False)
    errors = run_graph(model, work, store, "graph")
    tokens = free_runs(work, model.generate) if not errors else None
    del model  # one session at a time is in memory
    again = use.active == CUDA and subject.precision == "float32"
    tf32 = run_graph(_model(subject, tf32=True)[0], work, store, "tf32") if again else None
    return SessionRuns(use, errors, tf32, tokens)


def _model(subject: Subject, *, tf32: bool) -> tuple[CachedModel, ProviderUse]:
    """Return what runs the batches, and where it runs."""
    opened = {
        graph.path: open_session(
            graph.path,
            subject.provider,
            precision=subject.precision,
            tf32=tf32,
            weight_gathers=weight_gathers(graph),
            shape_nodes=shape_nodes(graph),
        )
        for graph in subject.graphs
    }
    *first, session = opened.values()
    if subject.pair is not None:
        # The graphs run on one provider, or a session fails.
        uses = [session.use for session in opened.values()]
        placement = Counter[str]()
        for use in uses:
            placement.update(use.placement)
        notes = tuple(dict.fromkeys(note for use in uses for note in use.notes))
        return PairModel(opened, subject.pair), replace(uses[0], placement=dict(placement), notes=notes)
    if first:  # a decoder behind the session of its embedding
        session = Chained(session.inner, session.ort, session.use, first[0], Role.IDS, Role.EMBEDS)
    return GraphModel(session, subject.bindings, subject.window), session.use


def weight_gathers(graph: Graph) -> frozenset[str]:
    """Return the names of the `Gather` nodes that read rows of a float weight."""
    floats = {weight.name for weight in graph.weights if weight.dtype in DTYPES and prod(weight.shape) > 1}
    return frozenset(
        node.name or ""
        for node in graph.model.graph.all_nodes()
        if node.op_type == "Gather" and node.inputs[0] is not None and node.inputs[0].name in floats
    )


def shape_nodes(graph: Graph) -> frozenset[str]:
    """Return the names of the nodes whose results are all known to be whole numbers or truth values."""
    return frozenset(
        node.name
        for node in graph.model.graph.all_nodes()
        if node.name and all(value.dtype is not None and value.dtype.name in _WHOLE for value in node.outputs)
    )


# Run the checkpoint in torch, first as the reference, then as the floor in the graph's precision.
#
# Only one of the two is in memory at a time.


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
    generate = partial(reference_generate, reference)
    free = agreement(tokens, free_runs(work, generate) if tokens is not None else None)
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


# Compare greedy generation from the same prompts.
#
# The result is reported but never judged, because one near-tie changes all later tokens.

Generate = Callable[[Batch, int], torch.Tensor]


def free_runs(work: Work, generate: Generate) -> torch.Tensor | None:
    """Return the tokens (sequences × steps) of every stepped cell with a short prompt, or ``None`` without one."""
    stepped = [cell for cell in work.cells if cell.steps and pieces(cell, work.kind)[0] == PROMPT]
    runs = [generate(prompt(work, cell), cell.steps) for cell in stepped]
    return torch.cat(runs) if runs else None


def reference_generate(reference: Reference, batch: Batch, steps: int) -> torch.Tensor:
    """Return greedy tokens of the reference (batch × steps), with one full pass per token."""
    tokens = []
    for _ in range(steps):
        tokens.append(reference.logits(batch)[:, -1].argmax(-1))
        batch = extended(batch, tokens[-1])
    return torch.stack(tokens, 1)


def agreement(ours: torch.Tensor | None, theirs: torch.Tensor | None) -> FreeRun | None:
    """Return the share of identical sequences, and the mean number of steps before the first change."""
    if ours is None or theirs is None:
        return None
    same = (ours == theirs).long()
    return FreeRun(
        len(same),
        same.shape[1],
        float(same.all(1).double().mean()),
        float(same.cumprod(1).sum(1).double().mean()),
    )


class LogitStore(ExitStack):
    """Tensors by key in a temporary directory that is removed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = self.enter_context(temporary_directory())
        self._numbers = itertools.count()
        self._paths: dict[object, str] = {}

    def put(self, key: object, logits: torch.Tensor) -> None:
        self._paths[key] = os.path.join(self._directory, f"{next(self._numbers)}.pt")
        torch.save(logits.contiguous().clone(), self._paths[key])

    def get(self, key: object) -> torch.Tensor | None:
        """Return the tensor, mapped from its file, or ``None`` if the key is unknown."""
        path = self._paths.get(key)
        return None if path is None else torch.load(path, weights_only=True, mmap=True)


# Collect the numbers that a torch model computes with: epsilons, scales, soft caps and rotary frequencies.

_SCALE = re.compile("scal|multipl|cap")
"""Entries of a config that may be written as whole numbers and are multiplied all the same."""
ACTIVATIONS = (0.044715, math.sqrt(2 / math.pi), math.sqrt(0.5), math.sqrt(2), 1.702)
"""Numbers of GELU and its approximations."""


@identity_record
class ModelNumbers:
    """``epsilons`` are those of norms, ``factors`` all other numbers, ``vectors`` the buffers with one axis by name."""

    epsilons: frozenset[float]
    factors: tuple[float, ...]
    vectors: Mapping[str, npt.NDArray[np.float64]]


def model_numbers(reference: Reference, config: Any) -> ModelNumbers:
    """Return the numbers of the loaded model, of its config, and those that follow from its sizes."""
    model = reference.model
    own = {value for module in model.modules() for value in vars(module).values() if isinstance(value, float)}
    scalars = {float(buffer) for buffer in model.buffers() if buffer.numel() == 1 and buffer.is_floating_point()}
    known = {*own, *scalars, *factors(config), *_entries(config)} - reference.epsilons
    vectors = {
        name: buffer.double().numpy()
        for name, buffer in model.named_buffers()
        if buffer.ndim == 1 and buffer.numel() > 1 and buffer.is_floating_point()
    }
    return ModelNumbers(reference.epsilons, tuple(sorted({*ACTIVATIONS, *_forms(known)})), vectors)


def _entries(config: Any) -> Iterator[float]:
    for name, value in config.to_dict().items():
        whole = isinstance(value, int) and not isinstance(value, bool) and _SCALE.search(name)
        if isinstance(value, float) or whole:
            yield float(value)


def _forms(known: set[float]) -> Iterator[float]:
    """Yield each positive number, its root, and the inverses: exporters divide, and split an attention scale."""
    for value in known:
        if value > 0 and math.isfinite(value) and value != 1:
            yield from (value, 1 / value, math.sqrt(value), 1 / math.sqrt(value))
