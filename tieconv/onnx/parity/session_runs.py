"""Run the graph in a session of ONNX Runtime: every batch, and free runs if it has a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tieconv.checkpoint.results.parity import ProviderUse
from tieconv.checkpoint.value_type import record
from tieconv.onnx.parity.batches.cell import Cell
from tieconv.onnx.parity.encoder_decoder.pair_sessions import PairModel
from tieconv.onnx.parity.free_run import free_runs
from tieconv.onnx.parity.graph.bindings import Role
from tieconv.onnx.parity.graph.embedding_pair import parts
from tieconv.onnx.parity.graph.file import DTYPES, Graph
from tieconv.onnx.parity.graph.forward import GraphModel
from tieconv.onnx.parity.logit_store import LogitStore
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.passes import Work, run_graph
from tieconv.onnx.session.chained import Chained
from tieconv.onnx.session.open_ import Session, open_session
from tieconv.onnx.session.provider import CUDA

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
    use, graph, tokens = _run(subject, work, store, tf32=False)
    again = use.active == CUDA and subject.precision == "float32"
    return SessionRuns(use, graph, _run(subject, work, store, tf32=True)[1] if again else None, tokens)


def _run(subject: Subject, work: Work, store: LogitStore, *, tf32: bool) -> tuple[ProviderUse, Mapping[Cell, str], Any]:
    model, use = _model(subject, tf32=tf32)
    errors = run_graph(model, work, store, "tf32" if tf32 else "graph")
    tokens = free_runs(work, model.generate) if not tf32 and not errors else None
    return use, errors, tokens


def _model(subject: Subject, *, tf32: bool) -> tuple[GraphModel | PairModel, ProviderUse]:
    """Return what runs the batches, and where it runs."""
    if subject.pair is not None:
        sessions = {graph.path: _session(subject, graph, tf32=tf32) for graph in subject.graphs}
        return PairModel(sessions, subject.pair), _joined([session.use for session in sessions.values()])
    *first, session = (_session(subject, graph, tf32=tf32) for graph in parts(subject.graph))
    if first:  # a decoder behind the session of its embedding
        session = Chained(session.inner, session.ort, session.use, first[0], Role.IDS, Role.EMBEDS)
    return GraphModel(session, subject.bindings, subject.window), session.use


def _session(subject: Subject, graph: Graph, *, tf32: bool) -> Session:
    return open_session(
        graph.path,
        subject.provider,
        precision=subject.precision,
        tf32=tf32,
        weight_gathers=weight_gathers(graph),
        shape_nodes=shape_nodes(graph),
    )


def _joined(uses: list[ProviderUse]) -> ProviderUse:
    """Return where several graphs ran. They run on one provider, or the session fails."""
    placement = Counter[str]()
    for use in uses:
        placement.update(use.placement)
    notes = tuple(dict.fromkeys(note for use in uses for note in use.notes))
    return replace(uses[0], placement=dict(placement), notes=notes)


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
