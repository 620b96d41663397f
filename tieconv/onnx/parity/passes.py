"""The same batches through the graph, the reference and the floor, one model in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from tieconv.checkpoint.value_type import record
from tieconv.errors import NotRunError
from tieconv.onnx.parity.cells import PROMPT, Cell, cells, compared, make_batch, stepped
from tieconv.onnx.parity.graph.bindings import Bindings, Kind, Padding, Role
from tieconv.onnx.parity.graph.forward import GraphModel
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.session.open_ import out_of_memory
from tieconv.reference import Batch, Reference
from tieconv.text import shown

Steps = Callable[[Batch, tuple[int, ...]], Iterator[torch.Tensor]]


@record
class Work:
    """What is fed: the cells of a kind of graph, and each cell's batch, always the same."""

    kind: Kind
    config: Any
    types: bool
    placed: bool = True
    padding: Padding = Padding.FRONT

    @property
    def cells(self) -> list[Cell]:
        longest = _longest(self.config)
        single = cells(self.kind, longest, self.padding)
        return [*single, *(stepped(longest, self.padding) if self.kind is Kind.CACHED else ())]

    def batch(self, cell: Cell) -> Batch:
        return make_batch(cell, self.kind, self.config, types=self.types, placed=self.placed)

    def judged(self, cell: Cell, logits: torch.Tensor) -> torch.Tensor:
        """The logits of positions that are judged, one row each."""
        return logits[:, -cell.sequence :][compared(cell, self.kind, self.batch(cell))]


def make_work(bindings: Bindings, config: Any) -> Work:
    """The work for a graph with these inputs."""
    kind, inputs = bindings.kind, bindings.inputs
    # A masked model numbers its positions as it was trained to, from the padding on; a decoder must be told.
    placed = kind is not Kind.MASKED or Role.POSITIONS in inputs
    return Work(kind, config, Role.TYPES in inputs, placed, bindings.padding)


def _longest(config: Any) -> int:
    limit = getattr(config, "max_position_embeddings", None)
    return int(limit) if isinstance(limit, int) and limit > 0 else 1 << 30


def pieces(cell: Cell) -> tuple[int, ...]:
    """How a cell's tokens are fed to a model with a cache."""
    if cell.steps:
        return (PROMPT, *([1] * cell.steps))
    return (cell.past, cell.sequence) if cell.past else (cell.sequence,)


def cached_logits(steps: Steps, batch: Batch, cell: Cell) -> torch.Tensor:
    """Logits of the cell's own tokens, those of the past left out."""
    made = list(steps(batch, pieces(cell)))
    return torch.cat(made[1:] if cell.past else made, 1)


def run_graph(graph: GraphModel, work: Work, store: LogitStore, name: str) -> dict[Cell, str]:
    """Run every cell through the graph; return what the runtime said of those that failed.

    Raises `NotRunError` where memory runs out or the device fails.
    """
    errors: dict[Cell, str] = {}
    for cell in work.cells:
        batch = work.batch(cell)
        try:
            cached = work.kind is Kind.CACHED
            logits = cached_logits(graph.steps, batch, cell) if cached else graph.logits(batch)
            store.put((name, cell), work.judged(cell, logits))
        except NotRunError:
            raise
        except Exception as error:
            # Each status of the runtime is an exception class of its own, all made in C++.
            if out_of_memory(error):
                raise NotRunError("memory ran out while the graph was run", "run it on a larger machine") from error
            errors[cell] = shown(error, 300)
    return errors


def run_reference(reference: Reference, work: Work, store: LogitStore) -> None:
    """Every cell through the reference in one pass each, without a cache."""
    for cell in work.cells:
        store.put(("reference", cell), work.judged(cell, reference.logits(work.batch(cell))))


def run_floor(model: Reference, work: Work, store: LogitStore) -> None:
    """Every cell through torch in the export's precision, with a cache where the graph has one."""
    for cell in work.cells:
        batch = work.batch(cell)
        cached = work.kind is Kind.CACHED and cell.past
        logits = cached_logits(model.steps, batch, cell) if cached else model.logits(batch)
        store.put(("floor", cell), work.judged(cell, logits))


def prompt(work: Work, cell: Cell) -> Batch:
    """The first tokens of a stepped cell, from which free runs start."""
    return work.batch(cell).until(PROMPT)
