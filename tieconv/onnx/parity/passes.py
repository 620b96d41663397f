"""Run the same batches through graph, reference and floor, with one model in memory at a time."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from math import prod
from typing import Any

import torch

from tieconv.checkpoint.results.parity import Gate, Identity, ProviderUse
from tieconv.checkpoint.value_type import identity_record, record
from tieconv.errors import NotRunError
from tieconv.onnx.child import advance
from tieconv.onnx.ort_session import CUDA, Chained, open_session, out_of_memory, release_memory
from tieconv.onnx.parity import batches
from tieconv.onnx.parity.bindings import Bindings, Kind, Padding, Role
from tieconv.onnx.parity.graph_file import DTYPES, Graph
from tieconv.onnx.parity.graph_forward import CachedModel, GraphModel, PairModel, fixed
from tieconv.onnx.parity.lookups import embedding_gates
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.weight_identity import factors, folds, weight_identity
from tieconv.reference.model import CPU, Batch, EncoderInput, Reference, load, stored_outside, stored_unread
from tieconv.reference.windows import position_limit
from tieconv.sources.local import open_files
from tieconv.sources.temporary import temporary_directory
from tieconv.text import shown


@record
class Work:
    """The cells for a kind of graph, and each cell's batch, which is always the same.

    ``window`` is the sliding window that is measured; 0 means none. ``ids`` go through the graph one by one, and
    ``first_ids`` do at any budget. ``seconds`` is the budget for a model of so many ``weights``. With ``full`` it feeds
    more rows too, and ``prompt`` tokens: all positions of the model, or 0.
    ``length``, ``rows`` and ``own`` are what the user wants to be measured too. ``rows_drawn`` are the bindings of a
    decoder of `inputs_embeds`, whose rows are drawn. ``features`` are those that an encoder reads in place of token
    ids. ``own_shape`` has the rows, tokens and padding of a graph that is run at one shape alone.
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
    first_ids: tuple[int, ...] = ()
    seconds: float = math.inf
    weights: int = 0
    full: bool = True
    prompt: int = 0
    length: int = 0
    rows: int = 0
    own: Batch | None = None
    rows_drawn: Bindings | None = None
    features: EncoderInput | None = None
    own_shape: tuple[int, int, int] | None = None

    @property
    def cells(self) -> list[batches.Cell]:
        """The cells that are fed: those of every measurement, what the user gave, and what else fits in the budget."""
        chosen = list(self._first())
        left = self.seconds - sum(cell.seconds(self.weights) for cell in chosen)
        for cell in itertools.chain(self._more(), self._full() if self.full else ()):
            seconds = cell.seconds(self.weights)
            if cell not in chosen and seconds <= left:
                chosen.append(cell)
                left -= seconds
        return chosen if self.features is None else list(dict.fromkeys(map(batches.without_tokens, chosen)))

    @property
    def left_out(self) -> list[batches.Cell]:
        """The cells that a larger budget would feed."""
        fed = set(self.cells)
        more = [*self._more(), *self._full()]
        wanted = more if self.features is None else map(batches.without_tokens, more)
        return [cell for cell in dict.fromkeys(wanted) if cell not in fed]

    @property
    def longest(self) -> int | None:
        """How many positions the model has; ``None`` if its config does not say."""
        return position_limit(self.config)

    def tokens(self, cell: batches.Cell) -> int:
        """Return how many positions the cell fills. Encoder and decoder count separately."""
        return max(cell.past, cell.sequence) if self.kind.encodes else cell.length

    def _first(self) -> Iterator[batches.Cell]:
        kind, longest, where, drawn = self.kind, longest_sequence(self.config), self.padding, self.rows_drawn
        yield from self._own_cells()
        if self.own_shape is not None:
            rows, tokens, padding = self.own_shape
            yield from (batches.Cell(rows, tokens, 0, padding, seed, where=where) for seed in batches.SEEDS)
            return
        yield from batches.first_cells(kind, longest, where, holes=self.holes)
        usual = set(batches.single_seed_cells(kind, longest, where, holes=self.holes))
        wanted = batches.single_seed_cells(kind, longest, where, holes=self.holes, length=self.length, batch=self.rows)
        yield from (cell for cell in wanted if cell not in usual)
        yield from batches.token_cells(kind, self.first_ids, where)
        if drawn is not None:
            yield from islice(batches.embedding_cells(longest, where, blocks=Role.BLOCKS in drawn.inputs), 2)

    def _more(self) -> Iterator[batches.Cell]:
        """Yield nine shapes with three seeds each, those with one seed, single tokens and steps."""
        kind, longest, where, drawn = self.kind, longest_sequence(self.config), self.padding, self.rows_drawn
        if self.own_shape is not None:
            return
        yield from batches.single_seed_cells(kind, longest, where, holes=self.holes, window=self.window)
        yield from batches.cells(kind, longest, where)
        yield from batches.token_cells(kind, tuple(token for token in self.ids if token not in self.first_ids), where)
        if drawn is not None:
            yield from batches.embedding_cells(longest, where, blocks=Role.BLOCKS in drawn.inputs)
        if kind.steps:
            yield from batches.stepped(longest, where, kind)

    def _full(self) -> Iterator[batches.Cell]:
        if self.own_shape is None:
            longest = longest_sequence(self.config)
            cells = batches.full_cells(self.kind, self.prompt, self.padding)
            yield from (cell for cell in cells if self.tokens(cell) <= longest)

    def _own_cells(self) -> Iterator[batches.Cell]:
        """Yield the user's batch in one pass, and its last token after the others."""
        if self.own is None:
            return
        rows, length = self.own.answered.shape
        before = self.own.ids.shape[1] if self.kind.encodes else 0
        yield batches.Cell(rows, length, before, 0, 0, where=self.padding, own=True)
        if self.kind is Kind.CACHED and length > 1 and bool(self.own.mask[:, -1].all()):
            yield batches.Cell(rows, 1, length - 1, 0, 0, where=self.padding, own=True)

    def batch(self, cell: batches.Cell) -> Batch:
        batch = self.own if cell.own else None
        if batch is None:
            more = {"types": self.types, "placed": self.placed, "decoder_mask": self.decoder_mask}
            batch = batches.make_batch(cell, self.kind, self.config, **more)
            batch = batch if self.features is None else batches.with_features(batch, cell, self.features)
        return batch if self.rows_drawn is None else batches.with_rows(batch, cell, self.rows_drawn)

    def judged(self, cell: batches.Cell, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits of the judged positions, one row each."""
        return logits[:, -cell.judged :][batches.compared(cell, self.kind, self.batch(cell))[:, -cell.judged :]]

    def announced(self, groups: list[list[batches.Cell]], side: str) -> Iterator[list[batches.Cell]]:
        """Yield the groups, and say before each how far the measurement is. ``side`` runs only a group's first cell."""
        first, share = {"graph": (0, 3), "reference": (3, 5), "floor": (8, 2)}.get(side, (0, 10))  # tenths of the time
        times = [1000 * alike[0].seconds(self.weights) for alike in groups]
        done, whole = 0.0, sum(times)
        for alike, time in zip(groups, times, strict=True):
            advance(f"running the {side}", first * whole + share * done, 10 * whole)
            yield alike
            done += time

    def with_same_tokens(self) -> Iterator[list[batches.Cell]]:
        """Yield lists of cells whose rows are the same, so that the reference computes them once."""
        alike: dict[tuple[object, ...], list[batches.Cell]] = {}
        for cell in self.cells:
            encoded = cell.past if self.kind.encodes else 0
            shape = cell.seed, cell.batch, cell.length, encoded, cell.padding, cell.layout
            key = (*shape, cell.tokens, cell.own, cell.embeds, cell.blocks, cell.blocks and cell.past)
            alike.setdefault(key, []).append(cell)
        yield from alike.values()


def make_work(bindings: Bindings, config: Any, window: int = 0) -> Work:
    """Return the work for a graph with these inputs. ``window`` is the sliding window to measure."""
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
        rows_drawn=bindings if bindings.width else None,
        features=features_of(bindings),
    )


def features_of(bindings: Bindings) -> EncoderInput | None:
    """Return the features that the model's encoder reads; ``None`` for token ids."""
    value = bindings.features
    return None if value is None else EncoderInput(value.name, tuple(map(fixed, value.shape[1:])))


def longest_sequence(config: Any) -> int:
    """Return how many positions the model has; a large number if its config does not say."""
    return position_limit(config) or 1 << 30


def pieces(cell: batches.Cell, kind: Kind) -> tuple[int, ...]:
    """Return the lengths in which a cell's tokens are fed to a model with a cache."""
    if kind is Kind.PAIR:
        return (cell.sequence - cell.steps, *([1] * cell.steps))
    if cell.steps or cell.later:
        return (cell.past, *([1] * cell.steps), *cell.later)
    return (cell.past, cell.sequence) if cell.past else (cell.sequence,)


def run_graph(graph: CachedModel, work: Work, store: LogitStore, name: str) -> dict[batches.Cell, str]:
    """Run every cell through the graph; return the runtime's error for each failed cell.

    Raises `NotRunError` if memory runs out or the device fails.
    """
    errors: dict[batches.Cell, str] = {}
    for (cell,) in work.announced([[cell] for cell in work.cells], "graph"):
        batch = work.batch(cell)
        try:
            if work.kind.steps:
                made = list(graph.steps(batch, pieces(cell, work.kind)))
                logits = torch.cat(made[1:] if len(made) > 1 else made, 1)  # without those of the past
            else:
                logits = graph.logits(batch)
            store.put((name, cell), work.judged(cell, logits))
        except NotRunError:
            raise
        except Exception as error:
            # Each status of the runtime has a separate exception class, made in C++.
            if out_of_memory(error):
                raise NotRunError("memory ran out while the graph ran", "use a machine with more memory") from error
            errors[cell] = shown(error, 300)
    return errors


def run_model(model: Reference, work: Work, store: LogitStore, name: str) -> None:
    """Run every cell through torch in one pass, without a cache; its logits are stored as ``name``.

    Cells with the same tokens run once, whatever the pieces in which a graph with a cache gets them.
    """
    for alike in work.announced(list(work.with_same_tokens()), name):
        logits = model.logits(work.batch(alike[0]), max(cell.judged for cell in alike))
        for cell in alike:
            store.put((name, cell), work.judged(cell, logits))


# Run the graph in a session of ONNX Runtime.

_WHOLE = ("INT64", "INT32", "BOOL")


Failed = Mapping[batches.Cell, str]
"""The runtime's error for each failed cell."""


def run_sessions(subject: Subject, work: Work, store: LogitStore) -> tuple[ProviderUse, Failed, Failed | None]:
    """Run the graph, and a float32 graph on CUDA again, with products rounded to TF32.

    Its logits are stored as `graph` and `tf32`. Returns where the graph ran, and what failed in each run.
    """
    model, use = _model(subject, tf32=False)
    errors = run_graph(model, work, store, "graph")
    del model  # one session at a time is in memory
    release_memory()
    again = use.active == CUDA and subject.precision == "float32"
    tf32 = run_graph(_model(subject, tf32=True)[0], work, store, "tf32") if again else None
    return use, errors, tf32


def _model(subject: Subject, *, tf32: bool) -> tuple[CachedModel, ProviderUse]:
    """Return what runs the batches, and where it runs."""
    make = partial(open_session, provider=subject.provider, precision=subject.precision, tf32=tf32)
    opened = {
        graph.path: make(graph.path, weight_gathers=weight_gathers(graph), shape_nodes=shape_nodes(graph))
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
# A float32 model is both: one layer at a time is in float64. Otherwise one of the two is in memory at a time.


TorchRuns = tuple[Identity, "ModelNumbers", tuple[Gate, ...]]
"""The weights compared bit for bit, the numbers that the model computes with, and the gates of an embedding's graph."""


def run_torch(subject: Subject, dtype: str, work: Work, store: LogitStore) -> TorchRuns:
    """Run the reference in ``dtype``, then the floor; their logits are stored under these names."""
    config, tensors = subject.evidence.checkpoint.config_values, subject.evidence.checkpoint.tensors
    exact = dtype == "float64" and all(tensor.dtype != "F64" for tensor in tensors.values())
    model = load(subject.root, config, "float32" if exact else dtype, subject.torch_device)
    with model.in_float64() if exact else nullcontext():
        run_model(model, work, store, "reference")
    unused, floor = model.unused, model
    del model
    if floor.dtype != subject.precision:
        del floor
        floor = load(subject.root, config, subject.precision, subject.torch_device)
    run_model(floor, work, store, "floor")
    floor.move(CPU)
    gates = tuple(embedding_gates(subject, floor))
    return identity_of(subject, unused, floor), model_numbers(floor, subject.config), gates


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
        forms, name = tuple(folds(subject.config)), embedding.name if embedding else None
        stored = checkpoint, files, subject.precision, forms, unused, name
        return weight_identity(subject.graph, *stored, model.matrices, model.offsets)


class LogitStore(ExitStack):
    """Tensors by key in a temporary directory that is removed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = self.enter_context(temporary_directory())
        self._numbers = itertools.count()
        self._paths: dict[object, str] = {}

    def put(self, key: object, logits: torch.Tensor) -> None:
        self._paths[key] = os.path.join(self._directory, f"{next(self._numbers)}.pt")
        whole = logits.is_contiguous() and logits.untyped_storage().nbytes() == logits.nbytes
        torch.save(logits if whole else logits.contiguous().clone(), self._paths[key])

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
    """``epsilons`` are those of norms, ``factors`` all other numbers."""

    epsilons: frozenset[float]
    factors: tuple[float, ...]


def model_numbers(reference: Reference, config: Any) -> ModelNumbers:
    """Return the numbers of the loaded model, of its config, and those that follow from its sizes."""
    model = reference.model
    own = {value for module in model.modules() for value in vars(module).values() if isinstance(value, float)}
    scalars = {float(buffer) for buffer in model.buffers() if buffer.numel() == 1 and buffer.is_floating_point()}
    entries = {
        float(value)
        for name, value in config.to_dict().items()
        if isinstance(value, float) or (type(value) is int and _SCALE.search(name))
    }
    known = {*own, *scalars, *factors(config), *entries} - reference.epsilons
    return ModelNumbers(reference.epsilons, tuple(sorted({*ACTIVATIONS, *_forms(known)})))


def _forms(known: set[float]) -> Iterator[float]:
    """Yield each positive number, its root, and the inverses: exporters divide, and split an attention scale."""
    for value in known:
        if value > 0 and math.isfinite(value) and value != 1:
            yield from (value, 1 / value, math.sqrt(value), 1 / math.sqrt(value))
