"""Run the same batches through graph, reference and floor, with one model in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError
from tieconv.onnx.parity.batches.batch_shapes import cells, embedding_cells, single_seed_cells, stepped
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.batches.draw import compared, make_batch
from tieconv.onnx.parity.batches.draw_features import with_features, without_tokens
from tieconv.onnx.parity.batches.draw_rows import Drawn, with_rows
from tieconv.onnx.parity.encoder_decoder.pair_sessions import PairModel
from tieconv.onnx.parity.graph.bindings import Bindings, Kind, Padding, Role
from tieconv.onnx.parity.graph.forward import GraphModel, fixed
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.vocabulary.one_token import token_cells
from tieconv.onnx.session.open_ import out_of_memory
from tieconv.reference import Batch, EncoderInput, Reference, position_limit
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
        return self._cells if self.features is None else list(dict.fromkeys(map(without_tokens, self._cells)))

    @property
    def _cells(self) -> list[Cell]:
        longest = longest_sequence(self.config)
        single = cells(self.kind, longest, self.padding)
        more = single_seed_cells(
            self.kind,
            longest,
            self.padding,
            holes=self.holes,
            window=self.window,
            length=self.length,
            batch=self.rows,
        )
        tokens = token_cells(self.kind, self.ids, self.padding)
        drawn = self.rows_drawn
        of_rows = embedding_cells(longest, self.padding, blocks=drawn.blocks) if drawn is not None else ()
        return [
            *self._own_cells(),
            *single,
            *more,
            *tokens,
            *of_rows,
            *(stepped(longest, self.padding, self.kind) if self.kind.steps else ()),
        ]

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
        batch = self.own if cell.own and self.own is not None else self._drawn(cell)
        return batch if self.rows_drawn is None else with_rows(batch, cell, self.rows_drawn)

    def _drawn(self, cell: Cell) -> Batch:
        batch = make_batch(
            cell, self.kind, self.config, types=self.types, placed=self.placed, decoder_mask=self.decoder_mask
        )
        return batch if self.features is None else with_features(batch, cell, self.features)

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
    # A masked model numbers its positions itself, starting at the padding. A decoder needs position ids.
    placed = kind is not Kind.MASKED or Role.POSITIONS in inputs
    # Without position ids, a decoder may count a hole's positions. Rotary embeddings then see another distance.
    holes = kind is Kind.MASKED or kind.encodes or Role.POSITIONS in inputs
    decoder_mask = Role.DECODER_MASK in inputs
    drawn = Drawn(bindings.width, bindings.axes, Role.BLOCKS in inputs, bindings.causal) if bindings.width else None
    padding = bindings.padding
    work = Work(kind, config, Role.TYPES in inputs, placed, padding, decoder_mask, holes, window, ids, rows_drawn=drawn)
    return replace(work, features=features_of(bindings))


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
    graph: GraphModel | PairModel, work: Work, store: LogitStore, name: str, cells: Sequence[Cell] = ()
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
