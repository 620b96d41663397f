"""Run an export: load, join ties, trace, share, verify, measure, rename. It succeeds completely or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tieconv.checkpoint.graph_plan import (
    PRECISIONS,
    ExportOptions,
    ExportOutcome,
    ExportPlan,
    HeadForm,
    SessionProof,
    SharedMatrix,
)
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.results.parity import Identity, Parity, Verdict
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan import OutputText
from tieconv.errors import RefusedError, VerificationError
from tieconv.execute import publish, tree
from tieconv.execute.copy import Like, inherit_directory
from tieconv.execute.publish import Interrupts, checked, interrupts, owning
from tieconv.execute.staging import Staging
from tieconv.execute.target import stale
from tieconv.execute.tree import writing
from tieconv.execute.write import Syncer, Writer
from tieconv.onnx.export import adapter as export_adapter
from tieconv.onnx.export.embeds import first_pass, probe, separate
from tieconv.onnx.export.encoder_decoder import trace_pair
from tieconv.onnx.export.layouts import GRAPH, STEM, Layout, Model, arrange, arrange_pair, publish_names, published
from tieconv.onnx.export.sample_inputs import kind_of, sample
from tieconv.onnx.export.ties import join_ties
from tieconv.onnx.parity.bindings import Kind
from tieconv.onnx.parity.encoder_decoder_pair import DECODER, ENCODER
from tieconv.onnx.parity.graph_file import EMBEDDING, Graph, Value, read_graphs
from tieconv.onnx.parity.quantised_graph import run_quantised_parity, stored_quantised_gates
from tieconv.onnx.parity.validate import run_parity, stored_gates
from tieconv.onnx.quantise import Scheme, prove_once, quantise_tied
from tieconv.onnx.write.data_placement import Store, lay_out
from tieconv.onnx.write.plan import PlannedGraphs, notes_of, plan_graph_dedup
from tieconv.onnx.write.session_proof import check_written, prove
from tieconv.reference import Reference, load, load_config
from tieconv.sources.local.files import locate
from tieconv.sources.user_files import new_file
from tieconv.text import shown
from tieconv.version import VERSION

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
                publish.publish_directory(new, self.final, self.staging.old, old)
            else:
                publish.publish_new(new, self.final)


@record
class Settings:
    """The ``options`` of the user, the ``layout`` that they name, and the ``model`` as that layout reads it."""

    options: ExportOptions
    layout: Layout
    model: Model

    @property
    def dtype(self) -> str:
        """The precision as torch names it."""
        return PRECISIONS[self.options.precision]

    @property
    def form(self) -> HeadForm:
        """The form of the head. Fused operators include the head's FusedMatMul."""
        return HeadForm.FUSED if self.options.fuse else self.options.head_form

    @property
    def scheme(self) -> Scheme | None:
        """How the weights are quantised."""
        return None if self.options.quantise is None else Scheme(self.options.quantise)


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


class Files:
    """Writes to the directory ``new``; ``root`` is the model."""

    def __init__(self, root: Path, new: Path) -> None:
        self._root, self._new = root, new
        self._syncer = Syncer()
        self._writer = Writer(root, new, self._syncer, lambda count: None, lambda name: None)

    def copy(self, names: Iterable[str]) -> None:
        """Copy files of the model unchanged."""
        for name in names:
            self._writer.companion(name)

    def write(self, name: str, text: str) -> None:
        """Write a document."""
        self._writer.text(OutputText(name, text))

    def sync(self) -> None:
        """Make all files under the directory durable. Raises the first `OSError`."""
        try:
            for name, status in tree.walk(self._new):
                if status.st_size and not os.path.isdir(self._new / name):
                    descriptor = os.open(self._new / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                    self._syncer.add(descriptor)
                    os.close(descriptor)
            self._syncer.finish()
        finally:
            self._syncer.stop()
        for directory in tree.directories(self._new):
            tree.sync_directory(directory)

    def check_fresh(self) -> None:
        """Raise `StalePlanError` if a copied file has changed since."""
        for name, state in self._writer.record.sources.items():
            if tree.file_state_at(self._root / name) != state:
                raise stale(name)


# Check what an export promises about weights: finite before the trace, the tied matrix stored once after it.


def check_once(plan: ExportPlan, identity: Identity | None, files: int) -> None:
    """Check that each of the data files stores the tied embedding once, as promised. Raises `VerificationError`."""
    if plan.tied and identity is not None and identity.copies > files:
        raise VerificationError(
            f"{shown(plan.source)}: the graph stores {shown(plan.tied[0][0])} {identity.copies} times",
            "nothing was written; report this with the model's class",
            "export.copies",
        )


def check_finite(reference: Reference, source: str) -> None:
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


class _Unknown:
    """Replaces "is every element finite?" while tracing, and answers no, so that the guard is traced."""

    def all(self) -> bool:
        return False


@contextmanager
def always_clamped(model: Any) -> Iterator[None]:
    """Make fp16 encoders clamp always, not only after an overflow.

    They write ``if not torch.isfinite(x).all(): x = clamp(x, -m, m)``, m = 64504, which no tracer can follow. Clamping
    always gives the same values. The only exception is a value beyond 64504 if nothing overflowed. transformers 5.23
    uses `torch.isfinite` for nothing else.
    """
    if model.dtype != torch.float16 or not getattr(model.config, "is_encoder_decoder", False):
        yield
        return
    before = torch.isfinite
    torch.isfinite = lambda tensor: _Unknown()
    try:
        yield
    finally:
        torch.isfinite = before


# Store every matrix of the exporter's graph once, read the graph again, and verify it in a session.


@record
class Shared:
    """The result for each matrix, and what a session holds."""

    matrices: tuple[SharedMatrix, ...]
    proofs: tuple[SessionProof, ...]
    notes: tuple[str, ...]


def share(raw: Path, new: Path, form: HeadForm) -> Shared:
    """Move the graphs of the directory ``raw`` to ``new``, and store every matrix of each once.

    If no tensor byte changes (the usual case), only the graph is written and the data file is moved. Raises
    `VerificationError` if the result is not as promised.
    """
    planned = plan_graph_dedup(locate(str(raw)), form)
    store = lay_out(planned.files, None)
    anew = store.data or store.removed
    proofs = planned.execute(new).proofs if anew else _in_place(planned, store, raw, new)
    notes = notes_of(planned.matrices, lambda form: f"tieconv export with --head-form {form}")
    return Shared(planned.matrices, proofs, tuple(notes))


def _in_place(planned: PlannedGraphs, store: Store, raw: Path, new: Path) -> tuple[SessionProof, ...]:
    os.mkdir(new)
    graphs = {file.name for file in planned.files}
    for data in [path for path in raw.iterdir() if path.name not in graphs]:
        os.rename(data, new / data.name)
    for file in planned.files:
        if file.name in store.graphs:
            with new_file(new / file.name) as graph:
                graph.write(store.graphs[file.name])
        else:
            os.rename(raw / file.name, new / file.name)
        check_written(new, file.name, file, planned.matrices)
    return tuple(_proved(new, file.name, planned) for file in planned.files)


def _proved(new: Path, name: str, planned: PlannedGraphs) -> SessionProof:
    return prove(new, new / name, name, [matrix for matrix in planned.matrices if matrix.done and matrix.graph == name])
