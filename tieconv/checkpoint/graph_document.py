"""The `tieconv.plan/1` document of a command that works on graphs."""

from __future__ import annotations

from tieconv.checkpoint.graph import GraphOutcome, GraphPlan, SharedMatrix
from tieconv.checkpoint.plan import PLAN_SCHEMA
from tieconv.version import VERSION


def graph_document(outcome: GraphOutcome) -> dict[str, object]:
    """Schema `tieconv.plan/1`, with what is particular to graphs under ``graphs``, ``matrices`` and ``proofs``."""
    plan = outcome.plan
    return {
        "schema": PLAN_SCHEMA,
        "tieconv": VERSION,
        "command": plan.command,
        "source": plan.source,
        "format": "onnx",
        "summary": plan.summary,
        "head_form": str(plan.form) if plan.command == "dedup" else None,
        "graphs": [{"name": name, "changed": name in plan.changed} for name in plan.names],
        "operations": _operations(plan),
        "matrices": [_matrix(matrix) for matrix in plan.matrices],
        "files_removed": [],
        "notes": list(plan.notes),
        "bytes_before": plan.bytes_before,
        "bytes_after": plan.bytes_after,
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "bytes_linked": plan.bytes_linked,
        "executed": outcome.executed,
        "verified": outcome.verified,
        "proofs": [
            {
                "graph": proof.graph,
                "proved": proof.proved,
                "why_not": proof.why_not,
                "copies": dict(proof.copies),
                "casts": list(proof.casts),
            }
            for proof in outcome.proofs
        ],
        "output": outcome.output,
    }


def _operations(plan: GraphPlan) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for matrix in plan.matrices:
        if not matrix.done:
            continue
        found.append({"op": "KeepTensor", "name": matrix.kept, "file": matrix.graph})
        if plan.command == "untie":
            found += [
                {"op": "CopyTensor", "name": name, "source": matrix.kept, "file": matrix.graph}
                for name in matrix.dropped
            ]
            continue
        because = f"{' and '.join(matrix.kinds)} of {matrix.kept}"
        found += [
            {"op": "DropTensor", "name": name, "because": because, "file": matrix.graph} for name in matrix.dropped
        ]
    return found


def _matrix(matrix: SharedMatrix) -> dict[str, object]:
    return {
        "graph": matrix.graph,
        "kinds": list(matrix.kinds),
        "kept": matrix.kept,
        "dropped": list(matrix.dropped),
        "nodes": list(matrix.nodes),
        "dtype": matrix.dtype,
        "shape": list(matrix.shape),
        "stored_before": matrix.stored_before,
        "stored_after": matrix.stored_after,
        "held_before": matrix.held_before,
        "held_after": matrix.held_after,
        "left": matrix.left,
    }
