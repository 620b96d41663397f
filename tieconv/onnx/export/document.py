"""Write `export.json`: what transformers needs to load the graph, and how it was exported and verified."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tieconv.checkpoint.results.exported import ExportOutcome
from tieconv.checkpoint.results.parity import Identity
from tieconv.onnx.parity.graph.embedding_pair import EMBEDDING, read_graphs
from tieconv.onnx.parity.graph.file import Graph, Value
from tieconv.version import VERSION

EXPORT_SCHEMA = "tieconv.export/1"


def describe(
    outcome: ExportOutcome, document: Mapping[str, Any], graphs: Sequence[Path], identity: Identity | None
) -> str:
    """Return the exporter's ``document`` with a section ``tieconv``. It holds no paths and no times."""
    section = _section(outcome, [read_graphs(str(graph)) for graph in graphs], identity)
    return json.dumps({**document, "tieconv": section}, indent=2) + "\n"


def _section(outcome: ExportOutcome, graphs: Sequence[Graph], identity: Identity | None) -> dict[str, Any]:
    plan, report = outcome.plan, outcome.parity
    named = {graph.path: {"graph": Path(graph.path).name} if len(graphs) > 1 else {} for graph in graphs}
    return {
        "schema": EXPORT_SCHEMA,
        "tieconv": VERSION,
        "architecture": plan.architecture,
        "kind": plan.kind,
        "precision": plan.precision,
        "head_form": str(plan.form),
        "fuse": plan.fuse,
        "layout": plan.layout,
        "quantise": plan.quantise or None,
        "opset": graphs[0].opset,
        "inputs": [_value(value) | named[graph.path] for graph in graphs for value in _own_inputs(graph)],
        "outputs": [_value(value) | named[graph.path] for graph in graphs for value in graph.outputs],
        "embedding": None if graphs[-1].embedding is None else _embedding(graphs[-1].embedding),
        "not_exported": list(plan.left_out),
        "tied": [list(names) for names in plan.tied],
        "shared": [
            {"initializer": m.initializer, "dtype": m.dtype, "shape": list(m.shape), "bytes": m.stored_after}
            for m in outcome.matrices
            if m.done
        ],
        "session": [
            {"proved": proof.proved, "why_not": proof.why_not, "copies": dict(proof.copies)} for proof in outcome.proofs
        ],
        "weights": None
        if identity is None
        else {"tensors": identity.tensors, "found": identity.found, "embedding_stored": identity.copies},
        "files": dict(outcome.files),
        "parity": {"verdict": "not_run", "reason": "--no-parity"}
        if report is None
        else {"verdict": str(report.verdict), "provider": report.provider.active, "report": "parity.json"},
        "versions": dict(outcome.versions),
    }


def _own_inputs(graph: Graph) -> Sequence[Value]:
    """Return the inputs without those of the embedding's graph, which come first."""
    return graph.inputs[len(graph.embedding.inputs) if graph.embedding is not None else 0 :]


def _embedding(graph: Graph) -> dict[str, object]:
    """Return what the graph before the decoder reads and makes."""
    inputs, outputs = ([_value(value) for value in values] for values in (graph.inputs, graph.outputs))
    return {"file": EMBEDDING, "inputs": inputs, "outputs": outputs}


def _value(value: Value) -> dict[str, object]:
    return {"name": value.name, "dtype": value.dtype, "shape": list(value.shape)}
