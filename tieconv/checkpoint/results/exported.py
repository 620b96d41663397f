"""The plan and the outcome of `export`: data for reports, no graph library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from tieconv.checkpoint.json_values import Printed
from tieconv.checkpoint.results.parity import Parity
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm, SessionProof, SharedMatrix
from tieconv.checkpoint.write_plan.plan import PLAN_SCHEMA, plan_facts, plan_rows
from tieconv.version import VERSION

PRECISIONS = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
"""The values of `--precision`, and torch's names for them."""


@record
class ExportPlan:
    """What `export` will export, and how.

    ``kind`` is what the graph computes, ``inputs`` are its inputs with their axes. ``tied`` are names of the checkpoint
    that become one parameter. ``bytes_read`` are the bytes of the weights. ``bytes_written`` is an estimate with each
    tied matrix once. ``copied`` maps the files copied unchanged to their bytes. ``layout`` is the value of `--layout`,
    ``fuse`` the provider of ONNX Runtime for whose operators the graph is fused. ``quantise`` is the scheme of a
    quantised graph, else empty. With ``inputs_embeds`` the decoder reads rows, and a second graph makes them from token
    ids. ``left_out`` are the modules of the model that are not exported.
    """

    source: str
    architecture: str
    kind: str
    precision: str
    form: HeadForm
    opset: int | None
    provider: str
    parity: bool
    inputs: tuple[str, ...]
    tied: tuple[tuple[str, ...], ...]
    copied: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    notes: tuple[str, ...] = ()
    fuse: str | None = None
    layout: str = "plain"
    quantise: str = ""
    inputs_embeds: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def bytes_linked(self) -> int:
        return sum(self.copied.values())

    @property
    def summary(self) -> str:
        """One line."""
        tied = "tied matrix stored once" if self.tied else "nothing tied"
        precision = f"{self.precision}, {self.quantise}" if self.quantise else self.precision
        kind = f"{self.kind}, from inputs_embeds" if self.inputs_embeds else self.kind
        part = "language model of " if self.left_out else ""
        return f"{part}{self.architecture}, {kind}, {precision}, {tied}"


@record
class ExportOutcome(Printed):
    """The outcome of the plan. ``executed`` is false if nothing was written, for example after a failed parity run.

    ``ties`` has, for every group that became one parameter, its names in the checkpoint. ``files`` are the bytes of the
    graph and its data. ``versions`` are those of the packages that made it.
    """

    plan: ExportPlan
    executed: bool = False
    verified: bool = False
    output: str | None = None
    matrices: tuple[SharedMatrix, ...] = ()
    proofs: tuple[SessionProof, ...] = ()
    parity: Parity | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`, with the values of an export under separate keys."""
        plan = self.plan
        return {
            "schema": PLAN_SCHEMA,
            "tieconv": VERSION,
            "command": "export",
            "source": plan.source,
            "summary": plan.summary,
            "architecture": plan.architecture,
            "kind": plan.kind,
            "precision": plan.precision,
            "head_form": str(plan.form),
            "fuse": plan.fuse,
            "layout": plan.layout,
            "quantise": plan.quantise or None,
            "opset": plan.opset,
            "inputs": list(plan.inputs),
            "inputs_embeds": plan.inputs_embeds,
            "not_exported": list(plan.left_out),
            "tied": [list(names) for names in plan.tied],
            "operations": [],
            "files_removed": [],
            "notes": list(plan.notes),
            "bytes_read": plan.bytes_read,
            "bytes_written": sum(self.files.values()) if self.files else plan.bytes_written,
            "bytes_linked": plan.bytes_linked,
            "executed": self.executed,
            "verified": self.verified,
            "output": self.output,
            "files": dict(self.files),
            "session": [
                {"proved": proof.proved, "why_not": proof.why_not, "copies": dict(proof.copies)}
                for proof in self.proofs
            ],
            "parity": None if self.parity is None else self.parity.to_dict(),
            "versions": dict(self.versions),
        }

    def _facts(self) -> tuple[str, ...]:
        return *plan_facts("export", self.plan.source, self.output), *(
            () if self.parity is None else (f"parity {self.parity.verdict}",)
        )

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.plan.notes)

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True, allow_nan=False)
