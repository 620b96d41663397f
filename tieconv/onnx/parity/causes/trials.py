"""Name the constant that makes a graph fail: the graph agrees with a number of the model in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import torch

from tieconv.errors import NotRunError, UnreadableError
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.causes.candidates import Candidate, candidates
from tieconv.onnx.parity.causes.graph_constants import Constant, graph_constants, replaced
from tieconv.onnx.parity.causes.model_numbers import ModelNumbers
from tieconv.onnx.parity.gate_limits import CELL_LIMIT
from tieconv.onnx.parity.graph.forward import GraphModel
from tieconv.onnx.parity.judge import Judged, judge
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.measure import Errors, ratios
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.passes import Work, run_graph
from tieconv.onnx.session.open_ import open_session
from tieconv.text import count, shown

TRIALS = 16
"""Most constants that are tried. Each trial is a session that runs two cases at most."""
_TRIAL = "trial"
_PASSES = "the worst case passes"


def wrong_constant(
    subject: Subject, work: Work, store: LogitStore, judged: Judged, numbers: ModelNumbers
) -> Iterator[str]:
    """Yield one sentence: the constant with which the worst case passes, or that none does.

    Yields nothing if no case was measured, or if the model has two graphs: their constants are not tried.
    """
    if subject.pair is not None or subject.graph.embedding is not None:
        return
    cells = _cells(work, judged)
    if not cells:
        return
    rounding = 4 * float(torch.finfo(getattr(torch, subject.precision)).eps)
    scale = _scale(store, judged, cells[-1])
    with open(subject.graph.path, "rb") as file:
        unchanged = file.read()
    if _passes(subject, work, store, judged, unchanged, cells):
        yield "the same graph passes in a second session: the first session or its device computed wrong"
        return
    chosen = candidates(graph_constants(subject.graph.model), numbers, rounding, scale)
    for candidate in chosen[:TRIALS]:
        changed = replaced(subject.graph.path, candidate.constant, candidate.values)
        if _passes(subject, work, store, judged, changed, cells):
            yield _sentence(candidate)
            return
    also = "" if scale is None else f"every logit is {1 / scale:.6g} times the reference's; "
    tried = "" if not chosen else f": tieconv tried {count(min(len(chosen), TRIALS), 'replacement')}"
    yield f"{also}no single constant explains the error{tried}"


def _cells(work: Work, judged: Judged) -> list[Cell]:
    """Return the first cell that failed and the worst one. If all cells passed, return the worst one."""
    quotients = {
        cell: case.ratio for cell, case in zip(work.cells, judged.cases, strict=True) if case.ratio is not None
    }
    failed = [cell for cell, ratio in quotients.items() if ratio > CELL_LIMIT]
    if not quotients:
        return []
    worst = max(quotients, key=lambda cell: quotients[cell])
    return list(dict.fromkeys([*failed[:1], worst]))


def _passes(
    subject: Subject, work: Work, store: LogitStore, judged: Judged, data: bytes, cells: Sequence[Cell]
) -> bool:
    """Return whether the graph with these bytes agrees in these cells."""
    folder = os.path.dirname(os.path.abspath(subject.graph.path))
    try:
        session = open_session(data, subject.provider, precision=subject.precision, folder=folder)
    except (NotRunError, UnreadableError):
        return False
    model = GraphModel(session, subject.bindings, subject.window)
    errors = run_graph(model, work, store, _TRIAL, cells)
    trial = judge(work, store, errors, subject.precision, _TRIAL, cells)
    return not errors and all(
        _ratio(trial, cell) <= min(CELL_LIMIT, _ratio(judged, cell) / 2) for cell in cells if cell in trial.graph
    )


def _ratio(judged: Judged, cell: Cell) -> float:
    return ratios(judged.graph[cell], judged.floor[cell], judged.precision)[0]


def _scale(store: LogitStore, judged: Judged, cell: Cell) -> float | None:
    """Return the factor with which the graph's logits would pass as the reference's, if there is one."""
    reference, graph = store.get(("reference", cell)), store.get(("graph", cell))
    if reference is None or graph is None or not graph.isfinite().all() or not reference.isfinite().all():
        return None
    ours, wanted = graph.double(), reference.double()
    square = float(ours.square().sum())
    factor = float((ours * wanted).sum()) / square if square else 0.0
    scaled = Errors()
    scaled.add(wanted, ours * factor)
    limit = min(CELL_LIMIT, _ratio(judged, cell) / 2)
    passes = factor > 0 and ratios(scaled, judged.floor[cell], judged.precision)[0] <= limit
    return factor if passes else None


def _sentence(candidate: Candidate) -> str:
    constant = candidate.constant
    effect = f"with it, {_PASSES}"
    if constant.epsilon:
        number = float(candidate.values)
        return f"a norm of the graph has epsilon {constant.number:g}, but the model's class has {number:g}; {effect}"
    if constant.values.ndim:
        return (
            f"the constant {shown(constant.name)} differs from {shown(candidate.source)}; with those values, {_PASSES}"
        )
    shown_number = f"{float(candidate.values):.6g}"
    expected = f"{candidate.source} is {shown_number}" if candidate.source else f"the model has {shown_number}"
    return f"the constant {_names(constant)} is {constant.number:.6g}, but {expected}; {effect}"


def _names(constant: Constant) -> str:
    more = len(constant.uses) - 1
    return shown(constant.name) + (f" (used {len(constant.uses)} times)" if more else "")
