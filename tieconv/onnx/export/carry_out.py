"""Run an export: load, join ties, trace, share, verify, measure, rename. It succeeds completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.exported import ExportOutcome, ExportPlan
from tieconv.checkpoint.results.parity import Identity, Parity, Verdict
from tieconv.errors import VerificationError
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
from tieconv.onnx.export.embeds.attention_blocks import first_pass
from tieconv.onnx.export.embeds.probes import probe
from tieconv.onnx.export.embeds.two_graphs import separate
from tieconv.onnx.export.encoder_decoder.trace_pair import trace_pair
from tieconv.onnx.export.export_settings import Settings
from tieconv.onnx.export.layouts.arrange import GRAPH, arrange, arrange_pair, publish_names, published
from tieconv.onnx.export.layouts.interface import STEM
from tieconv.onnx.export.sample_inputs import kind_of, sample
from tieconv.onnx.export.share import Shared, share
from tieconv.onnx.export.ties import join_ties
from tieconv.onnx.export.weight_promises import check_finite, check_once
from tieconv.onnx.parity.encoder_decoder.pair_files import DECODER, ENCODER
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.parity.graph.embedding_pair import EMBEDDING
from tieconv.onnx.parity.quantised.measure_quantised import run_quantised_parity, stored_quantised_gates
from tieconv.onnx.parity.validate import run_parity, stored_gates
from tieconv.onnx.quantise.prove_once import prove_once
from tieconv.onnx.quantise.quantise_export import quantise_tied
from tieconv.reference import Reference, load, load_config
from tieconv.text import shown

Progress = Callable[[str, int, int], None]
"""Called with the stage that begins, its number from 0, and the number of stages."""


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
    stems: tuple[str, ...] = (STEM,)

    def run(self) -> ExportOutcome:
        raw = self.staging.held / "raw"
        os.mkdir(raw)
        versions = export_adapter.versions()
        document, reference = self._trace(raw)
        self._begin("share")
        shared = self._shared(raw)
        identity = None if reference is None else self._proved(reference)
        del reference
        report = self._measure()
        check_once(self.plan, report.identity if report else identity, len({self._data(stem) for stem in self.stems}))
        outcome = ExportOutcome(
            replace(self.plan, notes=tuple(dict.fromkeys((*self.plan.notes, *shared.notes)))),
            matrices=shared.matrices,
            proofs=shared.proofs,
            parity=report,
            files=self._sizes(),
            versions=versions,
        )
        if report is not None and report.verdict is not Verdict.PASSED:
            return outcome
        self._begin("write")
        identity = report.identity if report else identity
        self._publish(outcome, describe(outcome, document, self._graphs(), identity))
        return replace(outcome, executed=True, verified=True)

    def _shared(self, raw: Path) -> Shared:
        """Store every matrix once. A quantised export is quantised before."""
        if self.settings.scheme is None:
            shared = share(raw, self.staging.new, self.settings.form)
            if not self.plan.inputs_embeds:
                return shared
            return replace(shared, proofs=separate(self.staging.new, GRAPH, shared.matrices))
        made = quantise_tied(raw, self.staging.held / "quantised", self.settings.scheme, self.plan, self._data())
        shared = share(self.staging.held / "quantised", self.staging.new, self.settings.form)
        proof = prove_once(self.staging.new, GRAPH, made.tied)
        return replace(shared, proofs=(proof,), notes=(*shared.notes, *made.notes))

    def _begin(self, stage: str) -> None:
        stages = 5 + self.settings.options.parity
        self.progress(stage, self.stage, stages)
        self.stage += 1

    def _sizes(self) -> dict[str, int]:
        """Return the bytes of the graph and of its data by their paths in OUT, before they are moved there."""
        names = self._paths()
        if self.plan.inputs_embeds:
            names[EMBEDDING] = Path(EMBEDDING)
        made = {name: self.staging.new / name for name in names}
        return {names[name].as_posix(): file.stat().st_size for name, file in made.items() if file.exists()}

    def _paths(self) -> dict[str, Path]:
        """Return the paths in OUT of the graphs and their data, by their names until then."""
        return published(self.settings.layout, self.plan.precision, self.stems, self.settings.scheme)

    def _graphs(self) -> list[Path]:
        return [self.staging.new / f"{stem}.onnx" for stem in self.stems]

    def _data(self, stem: str = STEM) -> str:
        return self.settings.layout.data_of(self.plan.precision, stem, self.settings.scheme)

    @property
    def _measured(self) -> str:
        """The graph that parity measures, or the directory with the graphs of an encoder-decoder."""
        return str(self.staging.new / GRAPH if self.stems == (STEM,) else self.staging.new)

    def _trace(self, raw: Path) -> tuple[dict[str, Any], Reference | None]:
        """Write the exporter's graph to ``raw``; return its document.

        Without parity, also return the loaded model: the axes and weights of the finished graph are compared with it.
        """
        self._begin("load")
        checkpoint = self.evidence.checkpoint
        reference = load(checkpoint.root, checkpoint.config_values, self.settings.dtype)
        embeds, one_graph = self.plan.inputs_embeds, self.settings.scheme is not None
        kind = kind_of(reference.model, embeds=embeds, one_graph=one_graph)
        self.settings.layout.check(self.settings.model, kind, self.plan.precision, self.settings.scheme)
        check_finite(reference, self.plan.source)
        join_ties(reference.model, self.evidence)
        if kind is Kind.PAIR:
            self._trace_pair(reference, raw)
            return {}, None if self.settings.options.parity else reference
        config = load_config(checkpoint.root)
        reads = probe(reference, int(config.vocab_size)) if embeds else None
        inputs = sample(reference, kind, config, reads)
        self._begin("trace")
        with always_clamped(reference.model), first_pass(reads is not None and bool(reads.blocks)):
            made = export_adapter.export_graph(
                reference.model, inputs, self.settings.options.opset, self.settings.options.fuse
            )
        if reads is not None:
            embedding = export_adapter.embedding_graph(reference.model, self.settings.options.opset)
            export_adapter.read_rows(made, embedding, reads.causal if reads.blocks else None)
        document = export_adapter.save(made, raw)
        arrange(raw, self.settings.layout, self.settings.model, self._data())
        if self.settings.layout.renames:
            document = {}  # transformers finds the tensors by the exporter's names
        del made, inputs
        return document, None if self.settings.options.parity else reference

    def _trace_pair(self, reference: Reference, raw: Path) -> None:
        self._begin("trace")
        layout, settings = self.settings.layout, self.settings
        self.stems = (ENCODER, DECODER)
        with always_clamped(reference.model):
            trace_pair(reference, raw, self._data, settings.options.opset, settings.options.fuse)
        arrange_pair(raw / f"{DECODER}.onnx", layout, settings.model)

    def _proved(self, reference: Reference) -> Identity:
        stored = stored_gates if self.settings.scheme is None else stored_quantised_gates
        identity, gates = stored(self._measured, self.evidence, reference)
        fault = next((gate for gate in gates if not gate.passed), None)
        if fault is not None:
            raise VerificationError(
                f"{shown(self.plan.source)}: the exported graph differs from the model: {fault.sentence}",
                f"nothing was written; a newer exporter may make more axes dynamic: {export_adapter.tried()}",
                "export.graph",
            )
        return identity

    def _measure(self) -> Parity | None:
        if not self.settings.options.parity:
            return None
        self._begin("parity")
        measure = run_parity if self.settings.scheme is None else run_quantised_parity
        report = measure(self._measured, self.evidence, self.settings.options.provider)
        path = self.settings.layout.graph(self.plan.precision, self.stems[-1], self.settings.scheme)
        return replace(report, graph=path)

    def _documents(self) -> dict[str, str]:
        kind, scheme = Kind(self.plan.kind), self.settings.scheme
        return self.settings.layout.documents(self.settings.model, self.plan.precision, kind, scheme)

    def _publish(self, outcome: ExportOutcome, document: str) -> None:
        new = self.staging.new
        files = Files(Path(self.evidence.checkpoint.root), new)
        files.copy(self.plan.copied)
        files.write("export.json", document)
        for name, text in self._documents().items():
            files.write(name, text)
        publish_names(new, self._paths())
        if outcome.parity is not None:
            from tieconv.reporters.html.parity_page import render

            files.write("parity.json", f"{outcome.parity}\n")
            files.write("parity.html", render(outcome.parity))
        files.sync()
        for made in ("raw", "quantised"):
            if (self.staging.held / made).exists():
                tree.remove(self.staging.held / made)
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
