"""Turn stored logits into cases, pools, gates and histograms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tieconv.checkpoint.results.parity import Case, Gate, Histogram
from tieconv.checkpoint.results.parity_metrics import Pooled, Pools
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.gates import case_gates, logit_gates
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.measure import Errors, histogram, pool, ratios
from tieconv.onnx.parity.passes import Work


@record
class Judged:
    """The errors of every cell, for the graph and for the floor."""

    precision: str
    cases: tuple[Case, ...]
    graph: Mapping[Cell, Errors]
    floor: Mapping[Cell, Errors]

    def pooled(self, *, steps: bool) -> tuple[Errors, Errors]:
        """Return the pooled errors of graph and floor over the single passes, or over the cached steps."""
        chosen = [cell for cell in self.graph if bool(cell.steps) == steps]
        return pool(self.graph[cell] for cell in chosen), pool(self.floor[cell] for cell in chosen)

    def gates(self) -> Iterator[Gate]:
        yield from case_gates(self.cases)
        for steps, prefix, noun in ((False, "", "the graph"), (True, "steps_", "the cached steps")):
            graph, floor = self.pooled(steps=steps)
            if graph.positions:
                yield from logit_gates(prefix, noun, graph, floor, self.precision)

    def pools(self) -> Pools:
        """Return the pooled figures for the report."""
        return Pools(self._pool(steps=False), self._pool(steps=True))

    def _pool(self, *, steps: bool) -> Pooled | None:
        graph, floor = self.pooled(steps=steps)
        if not graph.positions:
            return None
        return Pooled(*ratios(graph, floor, self.precision), graph.figures(), floor.figures())

    def histograms(self) -> Iterator[Histogram]:
        for group in dict.fromkeys(cell.group for cell in self.graph):
            chosen = [cell for cell in self.graph if cell.group == group]
            yield histogram(group, pool(map(self.graph.__getitem__, chosen)), pool(map(self.floor.__getitem__, chosen)))


def judge(
    work: Work,
    store: LogitStore,
    errors: Mapping[Cell, str],
    precision: str,
    name: str = "graph",
    chosen: Sequence[Cell] = (),
) -> Judged:
    """Return the errors of every cell, or of the ``chosen`` ones, against the reference.

    The graph's logits are stored under ``name``.
    """
    cases: list[Case] = []
    of_graph: dict[Cell, Errors] = {}
    of_floor: dict[Cell, Errors] = {}
    for cell in chosen or work.cells:
        shape = (cell.group, cell.batch, cell.sequence, cell.past, cell.padding, cell.seed)
        reference, floor, graph = (store.get((side, cell)) for side in ("reference", "floor", name))
        if cell in errors or reference is None or floor is None or graph is None:
            cases.append(Case(*shape, None, None, None, None, errors.get(cell, "no logits")))
            continue
        if graph.shape != reference.shape:
            message = f"logits of {list(graph.shape)} instead of {list(reference.shape)}"
            cases.append(Case(*shape, None, None, None, None, message))
            continue
        ours, theirs = Errors(), Errors()
        ours.add(reference, graph)
        theirs.add(reference, floor)
        of_graph[cell], of_floor[cell] = ours, theirs
        cases.append(Case(*shape, ours.figures(), theirs.figures(), *ratios(ours, theirs, precision)))
    return Judged(precision, tuple(cases), of_graph, of_floor)
