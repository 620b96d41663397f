"""Turn stored logits into cases, pools, gates and histograms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from tieconv.checkpoint.results import parity
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.batches import Cell
from tieconv.onnx.parity.passes import LogitStore, Work
from tieconv.text import count


@record
class Judged:
    """The errors of every cell, for the graph and for the floor.

    ``not_judged`` counts the positions where torch's logits are not finite, so that the floor has no error.
    """

    precision: str
    cases: tuple[parity.Case, ...]
    graph: Mapping[Cell, Errors]
    floor: Mapping[Cell, Errors]
    not_judged: int

    def pooled(self, *, steps: bool) -> tuple[Errors, Errors]:
        """Return the pooled errors of graph and floor over the single passes, or over the cached steps."""
        chosen = [cell for cell in self.graph if bool(cell.steps) == steps]
        return pool(self.graph[cell] for cell in chosen), pool(self.floor[cell] for cell in chosen)

    def gates(self) -> Iterator[parity.Gate]:
        """Yield the gates: the graph runs in each case, no case is far off, and the pooled errors."""
        broken = [case for case in self.cases if case.error]
        explanation = "the graph runs at every shape that was fed"
        if broken:
            case = broken[0]
            shape = f"batch {case.batch}, sequence {case.sequence}, past {case.past}, padding {case.padding}"
            explanation = f"the graph fails at {shape}: {case.error}"
        yield parity.Gate("runs", float(len(broken)), 0.0, not broken, explanation)
        worst = max((case.ratio for case in self.cases if case.ratio is not None), default=None)
        if worst is not None:
            yield parity.limited("case_ratio", worst, CELL_LIMIT, "the largest RMS ratio of any one case")
        for steps, prefix, noun in ((False, "", "the graph"), (True, "steps_", "the cached steps")):
            graph, floor = self.pooled(steps=steps)
            if not graph.positions:
                continue
            rms, largest = ratios(graph, floor, self.precision)
            limit = 2 * floor.figures().max_abs
            flips = (
                f"lead of the reference's top-1 token at {count(graph.flips, 'position')} where the graph has another"
            )
            same = "torch's in the same precision"
            for name, value, most, meaning in (
                ("rms_ratio", rms, RMS_LIMIT, f"RMS error of {noun} divided by {same}, over all cases"),
                (
                    "max_ratio",
                    largest,
                    MAX_LIMIT,
                    f"largest error of {noun} divided by torch's largest in the same precision",
                ),
                ("flip_margin", graph.flip_margin, limit, f"largest {flips}; limit: twice torch's largest error"),
            ):
                yield parity.limited(f"{prefix}{name}", value, most, meaning)

    def pools(self) -> parity.Pools:
        """Return the pooled figures for the report, of the single passes and of the cached steps."""
        pools = []
        for steps in (False, True):
            graph, floor = self.pooled(steps=steps)
            figures = graph.figures(), floor.figures()
            pools.append(parity.Pooled(*ratios(graph, floor, self.precision), *figures) if graph.positions else None)
        return parity.Pools(*pools)

    def fed(self, work: Work) -> parity.Fed:
        """Return what was fed. A healthy graph has up to twice the floor's error, which a fault must exceed too."""
        least = float(torch.finfo(getattr(torch, self.precision)).eps)
        cells = list(self.graph)
        positions = sum(errors.positions for errors in self.graph.values())
        floors = [errors.figures().relative_rms for errors in self.floor.values()]
        budget, steps = None if math.isinf(work.seconds) else work.seconds, sum(cell.steps for cell in cells)
        tokens = max(map(work.tokens, cells), default=0)
        rows = max((cell.batch for cell in cells if not cell.tokens), default=0)
        left_out = Counter(cell.group for cell in work.left_out)
        most = max([tokens, *map(work.tokens, work.left_out)])
        if work.longest is not None and most < work.longest and work.own_shape is None:
            left_out[parity.LONGER] = 1
        change, share = (CELL_LIMIT + RMS_LIMIT) * max([least, *floors]), 1 - 0.05 ** (1 / max(positions, 1))
        fed = len(cells), positions, tokens, rows, steps
        return parity.Fed(budget, *fed, left_out, change, share, self.not_judged, work.longest)

    def verdict(self, gates: Sequence[parity.Gate], measured: str) -> tuple[parity.Verdict, str]:
        """Return the verdict of ``gates``, and why they do not judge the graph if they do not.

        A report that lacks the gate ``measured`` fails.
        """
        states = {gate.state: gate for gate in reversed(gates)}
        if "failed" in states:
            return parity.Verdict.FAILED, ""
        if self.not_judged:
            every = self.not_judged + sum(errors.positions for errors in self.graph.values())
            where = f"at {self.not_judged:,} of {count(every, 'position')}, where the graph cannot be judged"
            return parity.Verdict.NOT_RUN, f"torch's {self.precision} logits are not finite {where}"
        if "not judged" in states:
            gate = states["not judged"]
            return parity.Verdict.NOT_RUN, f"the gate {gate.name} has no finite limit: {gate.sentence}"
        passed = any(gate.name == measured for gate in gates)
        return parity.Verdict.PASSED if passed else parity.Verdict.FAILED, ""

    def histograms(self) -> Iterator[parity.Histogram]:
        """Yield the two distributions of errors of each group of cases."""
        for group in dict.fromkeys(cell.group for cell in self.graph):
            chosen = [cell for cell in self.graph if cell.group == group]
            graph, floor = (pool(map(errors.__getitem__, chosen)) for errors in (self.graph, self.floor))
            yield parity.Histogram(group, START, WIDTH, tuple(graph.counts), tuple(floor.counts))


def judge(work: Work, store: LogitStore, errors: Mapping[Cell, str], precision: str, name: str = "graph") -> Judged:
    """Return the errors of every cell against the reference. The graph's logits are stored under ``name``."""
    cases: list[parity.Case] = []
    of_graph: dict[Cell, Errors] = {}
    of_floor: dict[Cell, Errors] = {}
    not_judged = 0
    for cell in work.cells:
        shape = (cell.group, cell.batch, cell.sequence, cell.past, cell.padding, cell.seed)
        reference, floor, graph = (store.get((side, cell)) for side in ("reference", "floor", name))
        if cell in errors or reference is None or floor is None or graph is None:
            cases.append(parity.Case(*shape, None, None, None, None, errors.get(cell, "no logits")))
            continue
        if graph.shape != reference.shape:
            message = f"logits of {list(graph.shape)} instead of {list(reference.shape)}"
            cases.append(parity.Case(*shape, None, None, None, None, message))
            continue
        ours, theirs = Errors(), Errors()
        finite = ((floor == reference) | (floor - reference).isfinite()).all(-1)
        if not finite.all():
            not_judged += int((~finite).sum())
            reference, floor, graph = (logits[finite] for logits in (reference, floor, graph))
        ours.add(reference, graph)
        theirs.add(reference, floor)
        of_graph[cell], of_floor[cell] = ours, theirs
        measured = ours.figures(), theirs.figures(), *ratios(ours, theirs, precision)
        cases.append(parity.Case(*shape, *(measured if ours.positions else [None] * 4)))
    return Judged(precision, tuple(cases), of_graph, of_floor, not_judged)


# Define the conditions of the verdict.


def structure_gates(structure: parity.Structure) -> Iterator[parity.Gate]:
    """Yield the gate that the graph runs at every shape."""
    passed = not structure.faults
    explanation = "; ".join(structure.faults) if structure.faults else "every batch, sequence and cache axis is dynamic"
    yield parity.Gate("structure", float(len(structure.faults)), 0.0, passed, explanation)


def identity_gates(identity: parity.Identity) -> Iterator[parity.Gate]:
    """Yield the gates that the graph holds the required weights of the checkpoint."""
    absent = [entry for entry in identity.lost if entry.required]
    alien = [entry for entry in identity.unexplained if entry.required]
    explanation = f"the graph holds {identity.found} of {count(identity.tensors, 'tensor')} bit for bit"
    if absent:
        first = f"{':' if len(absent) == 1 else '; first:'} {absent[0].name}"
        explanation = f"the graph lacks {count(len(absent), 'required tensor')}{first}"
    yield parity.Gate("weights", float(len(absent)), 0.0, not absent, explanation)
    explanation = "every matrix of the graph with the shape of a tensor holds a tensor of the checkpoint"
    if alien:
        explanation = f"shape of a checkpoint tensor, but other bytes: {', '.join(entry.name for entry in alien[:3])}"
    yield parity.Gate("graph_weights", float(len(alien)), 0.0, not alien, explanation)


def lookup_gates(seen: parity.Vocabulary | None) -> Iterator[parity.Gate]:
    """Yield the gate that the graph looks up the checkpoint's row for every id, if the lookup is visible."""
    if seen is None:
        return
    number = len(seen.wrong)
    explanation = f"the graph looks up the checkpoint's row bit for bit for each of {count(seen.ids, 'id')}"
    if number:
        first = ", ".join(map(str, seen.wrong[:3]))
        explanation = f"the graph looks up another row than the checkpoint's for {count(number, 'id')}: {first}"
    yield parity.Gate("token_lookup", float(number), 0.0, not number, explanation)


# Define the limits of the gates.
#
# Correct graphs measured 0.5 to 1.3 pooled and at most 3 in one case. Faulty graphs measured 9 or more.

RMS_LIMIT = 2.0
"""Limit of the graph's RMS error divided by the floor's, pooled over all cases."""
MAX_LIMIT = 4.0
"""Limit of the graph's largest error divided by the floor's, pooled over all cases."""
CELL_LIMIT = 5.0
"""Limit of the graph's RMS error divided by the floor's in any one case."""

# Measure errors of logits against the reference: figures of one case, pools of many, histograms.

START, WIDTH, BINS = -12.0, 0.25, 56
"""Bins of histograms: |error| / RMS of the logits, from 1e-12 to 1e2 in quarters of a decade."""
_ROWS = 16


@dataclass
class Errors:
    """Sums over positions that give `Figures`. `add` takes logits (positions × vocabulary)."""

    positions: int = 0
    values: int = 0
    squares: float = 0.0
    signal: float = 0.0
    max_abs: float = 0.0
    flips: int = 0
    flip_margin: float = 0.0
    kl: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0] * BINS)

    def add(self, reference: torch.Tensor, got: torch.Tensor) -> None:
        """Add positions. A value that is not finite counts as an infinite error if the reference's value is finite."""
        values = _centred(reference.double())
        scale = float(values.square().mean().sqrt()) if values.numel() else 0.0
        for first in range(0, len(reference), _ROWS):
            self._add(reference[first : first + _ROWS].double(), got[first : first + _ROWS].double(), scale)

    def _add(self, ref: torch.Tensor, got: torch.Tensor, scale: float) -> None:
        error = torch.where(got == ref, torch.zeros_like(ref), got - ref).nan_to_num(math.inf, math.inf, math.inf).abs()
        best, argmax = ref.argmax(-1, keepdim=True), got.nan_to_num(-math.inf).argmax(-1, keepdim=True)
        margin = (ref.gather(1, best) - ref.gather(1, argmax))[best != argmax]
        log = ref.log_softmax(-1)
        divergence = torch.where(log.exp() > 0, log.exp() * (log - got.log_softmax(-1)), torch.zeros_like(log))
        places = ((error / max(scale, 1e-300)).clamp(min=10**START).log10() - START).div(WIDTH).floor()
        counts = torch.bincount(places.clamp(0, BINS - 1).long().flatten(), minlength=BINS)
        squares, signal = float(error.square().sum()), float(_centred(ref).square().sum())
        flips = len(margin), float(margin.max()) if len(margin) else 0.0
        sums = len(ref), ref.numel(), squares, signal, float(error.max()), *flips, float(divergence.sum())
        self.include(Errors(*sums, counts.tolist()))

    def include(self, part: Errors) -> None:
        """Add the positions of another sum."""
        self.positions += part.positions
        self.values += part.values
        self.squares += part.squares
        self.signal += part.signal
        self.max_abs = max(self.max_abs, part.max_abs)
        self.flips += part.flips
        self.flip_margin = max(self.flip_margin, part.flip_margin)
        self.kl += part.kl
        self.counts = [ours + more for ours, more in zip(self.counts, part.counts, strict=True)]

    @property
    def scale(self) -> float:
        """The RMS of the reference without its mean."""
        return math.sqrt(self.signal / max(self.values, 1))

    def figures(self) -> parity.Figures:
        rms = math.sqrt(self.squares / max(self.values, 1))
        relative = rms / self.scale if self.scale else math.inf if rms else 0.0
        kl = max(self.kl, 0.0) / max(self.positions, 1)
        return parity.Figures(self.positions, rms, relative, self.max_abs, self.flips, self.flip_margin, kl)


def pool(parts: Iterable[Errors]) -> Errors:
    """Return the sums of all parts."""
    whole = Errors()
    for part in parts:
        whole.include(part)
    return whole


def ratios(graph: Errors, floor: Errors, precision: str) -> tuple[float, float]:
    """Return the graph's RMS error and largest error, each divided by the floor's.

    The floor is at least one rounding unit of the logits, because no graph can be more exact. That unit is the
    precision's eps times the RMS of the logits.
    """
    least = float(torch.finfo(getattr(torch, precision)).eps) * graph.scale
    ours, theirs = graph.figures(), floor.figures()
    return _over(ours.rms, max(theirs.rms, least)), _over(ours.max_abs, max(theirs.max_abs, least))


def _over(value: float, floor: float) -> float:
    if not math.isfinite(value):
        return math.inf
    return value / floor if floor else math.inf if value else 0.0


def _centred(logits: torch.Tensor) -> torch.Tensor:
    """Return the logits minus each position's mean, which softmax ignores. Masked logits (-inf) count as the mean."""
    finite = torch.where(logits.isfinite(), logits, torch.nan)
    return (finite - finite.nanmean(-1, keepdim=True)).nan_to_num(0.0)
