"""The JSON documents of the contract, from the frozen types."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING

from tieconv.version import VERSION

if TYPE_CHECKING:
    from tieconv.checkpoint.inspection import Finding, Head, Inspection, Member, StorageUse, Tie
    from tieconv.checkpoint.plan import Operation, Outcome
    from tieconv.checkpoint.prediction import Prediction
    from tieconv.checkpoint.records import Adapter

INSPECT_SCHEMA = "tieconv.inspect/1"
PLAN_SCHEMA = "tieconv.plan/1"


def inspection_document(inspection: Inspection) -> dict[str, object]:
    """Schema `tieconv.inspect/1`."""
    checkpoint, config = inspection.checkpoint, inspection.config
    adapter = {"adapter": _adapter(inspection, checkpoint.adapter)} if checkpoint.adapter else {}
    return {
        "schema": INSPECT_SCHEMA,
        "tieconv": VERSION,
        "depth": str(inspection.depth),
        "model": {
            "source": checkpoint.source,
            "format": checkpoint.format,
            "layout": str(checkpoint.layout),
            "files": [{"name": file.name, "bytes": file.size} for file in checkpoint.files],
            "tensors": len(checkpoint.tensors),
            "parameters": sum(tensor.elements for tensor in checkpoint.tensors.values()),
            "bytes_stored": inspection.bytes_stored,
            "bytes_unique": inspection.bytes_unique,
        },
        "config": {
            "model_type": config.model_type,
            "architectures": list(config.architectures),
            "declared": [
                {"path": entry.path, "value": plain(entry.value), "present": entry.present} for entry in config.declared
            ],
            "effective": config.effective,
            "why": config.why,
        },
        "family": {
            "name": inspection.family.model_type or None,
            "architecture": inspection.family.architecture or None,
            "knowledge": str(inspection.family.knowledge),
            "tying": str(inspection.family.tying),
        },
        "head": _head(inspection.head),
        "ties": [_tie(tie) for tie in inspection.ties],
        "duplicates": [
            {"kind": str(found.kind), "tensors": list(found.tensors), "bytes_wasted": found.bytes_wasted}
            for found in inspection.duplicates
        ],
        "storage": _storage(inspection.storage),
        "consumers": [_prediction(entry) for entry in inspection.consumers],
        **adapter,
        "findings": [finding_document(finding) for finding in inspection.findings],
    }


def _storage(storage: StorageUse | None) -> dict[str, object] | None:
    """``null`` where every tensor has its bytes for itself."""
    if storage is None:
        return None
    return {
        "storages": storage.storages,
        "bytes": storage.stored,
        "bytes_unused": storage.unused,
        "overlaps": [{"kind": found.kind, "tensors": list(found.tensors)} for found in storage.overlaps],
        "slack": [
            {"file": found.file, "tensors": list(found.tensors), "bytes": found.stored, "bytes_unused": found.unused}
            for found in storage.slack
        ],
    }


def finding_document(finding: Finding) -> dict[str, object]:
    """One entry of ``findings``."""
    remedy = {"command": finding.remedy.command, "safe": finding.remedy.safe} if finding.remedy else None
    return {
        "rule": finding.rule,
        "level": str(finding.level),
        "message": finding.message,
        "tensors": list(finding.tensors),
        "remedy": remedy,
    }


def _adapter(inspection: Inspection, adapter: Adapter) -> dict[str, object]:
    return {
        "kind": adapter.kind,
        "base_model": adapter.base,
        "base_tied": inspection.base and inspection.base.config.effective,
        "target_modules": list(adapter.targets),
        "modules_to_save": list(adapter.saved),
    }


def _prediction(prediction: Prediction) -> dict[str, object]:
    values = {key: plain(value) for key, value in asdict(prediction).items()}
    return {**values, "outcome": str(prediction.outcome)}


def _head(head: Head) -> dict[str, object]:
    embedding, output, bias = head.input_embedding, head.output_head, head.output_bias
    return {
        "input_embedding": embedding
        and {"name": embedding.name, "shape": list(embedding.shape), "dtype": embedding.dtype},
        "output_head": output and {key: plain(value) for key, value in asdict(output).items()},
        "output_bias": bias and {"name": bias.name, "state": str(bias.state), "max_abs": bias.max_abs},
    }


def _tie(tie: Tie) -> dict[str, object]:
    return {
        "role": str(tie.role),
        "canonical": tie.canonical,
        "declared": tie.declared,
        "consistent": tie.consistent,
        "bytes_wasted": tie.bytes_wasted,
        "members": [_member(member) for member in tie.members],
    }


def _member(member: Member) -> dict[str, object]:
    document: dict[str, object] = {
        "name": member.name,
        "stored": member.stored,
        "state": str(member.state),
        "detail": {key: plain(value) for key, value in member.detail.items()},
    }
    if member.loads_as is not None:
        document["loads_as"] = member.loads_as
    return document


def outcome_document(outcome: Outcome) -> dict[str, object]:
    """Schema `tieconv.plan/1`."""
    plan = outcome.plan
    return {
        "schema": PLAN_SCHEMA,
        "tieconv": VERSION,
        "command": plan.command,
        "source": plan.checkpoint.source,
        "summary": plan.summary,
        "operations": [_operation(operation) for operation in plan.operations],
        "files_removed": list(plan.removed),
        "notes": list(plan.notes),
        "bytes_read": plan.bytes_read,
        "bytes_written": plan.bytes_written,
        "bytes_linked": plan.bytes_linked,
        "executed": outcome.executed,
        "verified": outcome.verified,
        "output": outcome.output,
    }


def _operation(operation: Operation) -> dict[str, object]:
    return {"op": type(operation).__name__, **{key: plain(value) for key, value in asdict(operation).items()}}


def plain(value: object) -> object:
    """JSON-ready: tuples as lists, non-finite numbers (which JSON lacks) as text."""
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value
