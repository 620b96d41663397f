"""Run an export: load, join ties, trace, share, verify, measure, rename. It succeeds completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.exported import ExportOutcome, ExportPlan
from tieconv.checkpoint.results.parity import Identity, Parity, Verdict
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.errors import RefusedError, VerificationError
from tieconv.execute import tree
from tieconv.execute.contents.attributes import Like, inherit_directory
from tieconv.execute.publish import swap
from tieconv.execute.publish.interrupts import Interrupts, interrupts
from tieconv.execute.publish.owned import checked, owning
from tieconv.execute.staging import Staging
from tieconv.execute.system_errors import writing
from tieconv.onnx.export import adapter as export_adapter
from tieconv.onnx.export.clamp import always_clamped
from tieconv.onnx.export.companion_files import Files
from tieconv.onnx.export.document import describe
from tieconv.onnx.export.sample_inputs import kind_of, sample
from tieconv.onnx.export.share import share
from tieconv.onnx.export.ties import join_ties
from tieconv.onnx.parity.validate import run_parity, stored_gates
from tieconv.reference import Reference, load, load_config
from tieconv.text import shown

Progress = Callable[[str, int, int], None]
"""Called with the stage that begins, its number from 0, and the number of stages."""
GRAPH, DATA = "model.onnx", "model.onnx.data"


@record
class Settings:
    """Options of an export. ``dtype`` is a torch name, ``fuse`` a provider of ONNX Runtime."""

    dtype: str
    form: HeadForm
    opset: int | None
    provider: str
    parity: bool
    fuse: str | None = None


def run(
    plan: ExportPlan,
    evidence: Inspection,
    settings: Settings,
    final: Path,
    check: Callable[[bool], None],
    *,
    overwrite: bool,
    progress: Progress,
) -> ExportOutcome:
    """Export to ``final``, an absolute path, as `PlannedExport.execute` describes.

    ``check`` raises if ``final`` cannot be written. It is called at the start and before the rename.
    """
    with interrupts() as signals:
        checked(final, lambda: check(True))

        def write(staging: Staging) -> ExportOutcome:
            return _Job(plan, evidence, settings, final, staging, signals, check, overwrite, progress).run()

        return owning(final, signals, write)


@dataclass
class _Job:
    plan: ExportPlan
    evidence: Inspection
    settings: Settings
    final: Path
    staging: Staging
    signals: Interrupts
    check: Callable[[bool], None]
    overwrite: bool
    progress: Progress
    stage: int = 0

    def run(self) -> ExportOutcome:
        raw = self.staging.held / "raw"
        os.mkdir(raw)
        versions = export_adapter.versions()
        document, reference = self._trace(raw)
        self._begin("share")
        shared = share(raw, self.staging.new, self.settings.form)
        identity = None if reference is None else self._proved(reference)
        del reference
        report = self._measure()
        _check_once(self.plan, report.identity if report else identity)
        outcome = ExportOutcome(
            replace(self.plan, notes=tuple(dict.fromkeys((*self.plan.notes, *shared.notes)))),
            matrices=shared.matrices,
            proofs=shared.proofs,
            parity=report,
            files={name: (self.staging.new / name).stat().st_size for name in (GRAPH, DATA) if self._has(name)},
            versions=versions,
        )
        if report is not None and report.verdict is not Verdict.PASSED:
            return outcome
        self._begin("write")
        identity = report.identity if report else identity
        self._publish(outcome, describe(outcome, document, self.staging.new / GRAPH, identity))
        return replace(outcome, executed=True, verified=True)

    def _begin(self, stage: str) -> None:
        stages = 5 + self.settings.parity
        self.progress(stage, self.stage, stages)
        self.stage += 1

    def _has(self, name: str) -> bool:
        return (self.staging.new / name).exists()

    def _trace(self, raw: Path) -> tuple[dict[str, Any], Reference | None]:
        """Write the exporter's graph to ``raw``; return its document.

        Without parity, also return the loaded model: the axes and weights of the finished graph are compared with it.
        """
        self._begin("load")
        checkpoint = self.evidence.checkpoint
        reference = load(checkpoint.root, checkpoint.config_values, self.settings.dtype)
        kind = kind_of(reference.model)
        _check_finite(reference, self.plan.source)
        join_ties(reference.model, self.evidence)
        inputs = sample(reference, kind, load_config(checkpoint.root))
        self._begin("trace")
        with always_clamped(reference.model):
            made = export_adapter.export_graph(reference.model, inputs, self.settings.opset, self.settings.fuse)
        document = export_adapter.save(made, raw)
        del made, inputs
        return document, None if self.settings.parity else reference

    def _proved(self, reference: Reference) -> Identity:
        identity, gates = stored_gates(str(self.staging.new / GRAPH), self.evidence, reference)
        fault = next((gate for gate in gates if not gate.passed), None)
        if fault is not None:
            raise VerificationError(
                f"{shown(self.plan.source)}: the exported graph differs from the model: {fault.sentence}",
                f"nothing was written; a newer exporter may make more axes dynamic: {export_adapter.tried()}",
                "export.graph",
            )
        return identity

    def _measure(self) -> Parity | None:
        if not self.settings.parity:
            return None
        self._begin("parity")
        report = run_parity(str(self.staging.new / GRAPH), self.evidence, self.settings.provider)
        return replace(report, graph=GRAPH)

    def _publish(self, outcome: ExportOutcome, document: str) -> None:
        new = self.staging.new
        files = Files(Path(self.evidence.checkpoint.root), new)
        files.copy(self.plan.copied)
        files.write("export.json", document)
        if outcome.parity is not None:
            from tieconv.reporters.html.parity_page import render

            files.write("parity.json", f"{outcome.parity}\n")
            files.write("parity.html", render(outcome.parity))
        files.sync()
        tree.remove(self.staging.held / "raw")
        self.check(False)
        files.check_fresh()
        self._begin("rename")
        with self.signals.shielded(), writing(self.final.name, self.staging.held, 0):
            self.staging.check()
            if self.overwrite and os.path.isdir(self.final):
                old = os.lstat(self.final)
                inherit_directory(new, Like(self.final, True))
                self.staging.set_aside(old)
                swap.publish_directory(new, self.final, self.staging.old, old)
            else:
                swap.publish_new(new, self.final)


def _check_once(plan: ExportPlan, identity: Identity | None) -> None:
    """Check that the tied embedding is stored once, as promised. Raises `VerificationError`."""
    if plan.tied and identity is not None and identity.copies > 1:
        raise VerificationError(
            f"{shown(plan.source)}: the graph stores {shown(plan.tied[0][0])} {identity.copies} times",
            "nothing was written; report this with the model's class",
            "export.copies",
        )


def _check_finite(reference: Reference, source: str) -> None:
    """Check that no parameter overflows in the precision. Raises `RefusedError`."""
    for name, parameter in reference.model.named_parameters():
        if parameter.is_floating_point() and not _is_finite(parameter.data):
            raise RefusedError(
                f"{shown(source)}: {shown(name)} holds values that overflow in {reference.dtype}",
                "use a precision with a wider range: --precision fp32 or bf16"
                if reference.dtype == "float16"
                else "inspect the tensor: tieconv inspect --depth full",
                "export.range",
            )


def _is_finite(values: torch.Tensor) -> bool:
    """Return whether no value is NaN or infinite. `torch.isfinite` would need as much memory as the values again."""
    return not values.numel() or bool(torch.stack(values.aminmax()).isfinite().all())
