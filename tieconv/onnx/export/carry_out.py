"""Run an export: load, join ties, trace, share, verify, measure, rename. It succeeds completely or not at all."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tieconv.checkpoint import graph_plan
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import FileState
from tieconv.checkpoint.results.parity import Identity, Parity, Verdict
from tieconv.checkpoint.tie_group import Tie
from tieconv.checkpoint.value_type import record, values_of
from tieconv.checkpoint.write_plan import OutputText
from tieconv.errors import RefusedError, VerificationError
from tieconv.execute import publish, tree
from tieconv.execute.copy import Like, inherit_directory
from tieconv.execute.staging import Staging
from tieconv.execute.target import stale
from tieconv.execute.verify import Verifier
from tieconv.execute.write import Syncer, Writer
from tieconv.onnx.child import Progress, reporting
from tieconv.onnx.export import adapter as export_adapter
from tieconv.onnx.export.adapter import program_of
from tieconv.onnx.export.encoder_decoder import trace_pair
from tieconv.onnx.export.layouts import GRAPH, STEM, Layout, arrange, arrange_pair, publish_names, published
from tieconv.onnx.export.sample_inputs import first_pass, join_embedding, kind_of, probe, sample, separate
from tieconv.onnx.parity.bindings import DECODER, ENCODER, Kind
from tieconv.onnx.parity.graph_file import CAUSAL, EMBEDDING, Value, read_graphs
from tieconv.onnx.parity.measured_pair import Wishes
from tieconv.onnx.parity.validate import run_parity, run_quantised_parity, stored_gates, stored_quantised_gates
from tieconv.onnx.quantise import prove_once, quantise_tied
from tieconv.onnx.write.data_placement import lay_out
from tieconv.onnx.write.plan import notes_of, plan_graph_dedup
from tieconv.onnx.write.session_proof import check_written, prove
from tieconv.reference.model import Reference, load, load_config
from tieconv.sources.local import closing, locate
from tieconv.text import Hint, call, option, shown
from tieconv.version import VERSION

# A `Progress` is called with the stage that begins, its number from 0, and the number of stages. While parity runs, it
# is called with how much of it is done, and how much there is.


def run(
    plan: graph_plan.ExportPlan,
    evidence: Inspection,
    layout: Layout,
    final: Path,
    check: Callable[[bool], None],
    *,
    overwrite: bool,
    progress: Progress,
) -> graph_plan.ExportOutcome:
    """Export to ``final``, an absolute path, as `PlannedExport.execute` describes.

    ``check`` raises if ``final`` cannot be written. It is called at the start and before the rename.
    """
    number = itertools.count()

    def begin(stage: str) -> None:
        progress(stage, next(number), 5 + plan.options.parity)

    with publish.interrupts() as signals:
        publish.checked(final, lambda: check(True))

        def write(staging: Staging) -> graph_plan.ExportOutcome:
            job = Job(plan, evidence, layout, staging, begin, progress)
            made = job.make()
            if made.outcome.parity is not None and made.outcome.parity.verdict is not Verdict.PASSED:
                return made.outcome
            begin("write")
            copied = job.write_documents(made)
            check(False)
            for name, state in copied.items():
                if tree.file_state_at(Path(evidence.checkpoint.root) / name) != state:
                    raise stale(name)
            begin("rename")
            with signals.shielded(), tree.writing(final.name, staging.held, 0):
                staging.check()
                if overwrite and os.path.isdir(final):
                    old = os.lstat(final)
                    inherit_directory(staging.new, Like(final, True))
                    staging.set_aside(old)
                    publish.publish_directory(staging.new, final, staging.old, old)
                else:
                    publish.publish_new(staging.new, final)
            return replace(made.outcome, executed=True, verified=True)

        def write_or_clean_up(staging: Staging) -> graph_plan.ExportOutcome:
            try:
                return write(staging)
            except KeyboardInterrupt:  # the disk may need seconds for gigabytes that it is still writing
                progress("clean up", 0, 0)
                raise

        return publish.owning(final, signals, write_or_clean_up)


@record
class Made:
    """A finished export in the staging directory."""

    outcome: graph_plan.ExportOutcome
    document: str
    stems: tuple[str, ...]
    identity: Identity | None


@record
class Job:
    """What an export needs: the plan, the layout of its files, and where it is made.

    ``begin`` reports the stage that begins, and ``progress`` how far the measurement is.
    """

    plan: graph_plan.ExportPlan
    evidence: Inspection
    layout: Layout
    staging: Staging
    begin: Callable[[str], None]
    progress: Progress

    def make(self) -> Made:
        """Trace the model, store every matrix once, and compare or measure the result."""
        raw = self.staging.held / "raw"
        os.mkdir(raw)
        versions = export_adapter.versions()
        document, stems, reference = self._traced(raw)
        self.begin("share")
        shared = self._shared(raw)
        # The graph that parity measures, or the directory with the graphs of an encoder-decoder.
        measured = str(self.staging.new / GRAPH if stems == (STEM,) else self.staging.new)
        identity = None if reference is None else self._proved(measured, reference)
        del reference
        report = self._measured(measured, stems) if self.plan.options.parity else None
        identity = report.identity if report else identity
        check_once(self.plan, identity, len(set(map(self.layout.data_of, stems))))
        names = published(self.layout, stems)  # paths in OUT by the names until then
        if self.plan.options.inputs_embeds:
            names[EMBEDDING] = Path(EMBEDDING)
        files = {path.as_posix(): self.staging.new / name for name, path in names.items()}
        outcome = graph_plan.ExportOutcome(
            replace(self.plan, notes=tuple(dict.fromkeys((*self.plan.notes, *shared.notes)))),
            matrices=shared.matrices,
            proofs=shared.proofs,
            parity=report,
            files={path: file.stat().st_size for path, file in files.items() if file.exists()},
            versions=versions,
        )
        return Made(outcome, document, stems, identity)

    def _traced(self, raw: Path) -> tuple[str, tuple[str, ...], Reference | None]:
        """Write the exporter's graph to ``raw``. Return the exporter's document, JSON, and the names of its graphs.

        Without parity, also return the loaded model: the axes and weights of the finished graph are compared with it.
        """
        self.begin("load")
        checkpoint, layout, options = self.evidence.checkpoint, self.layout, self.plan.options
        reference = load(checkpoint.root, checkpoint.config_values, options.dtype)
        embeds = options.inputs_embeds
        kind = kind_of(reference.model, embeds=embeds, one_graph=layout.scheme is not None)
        layout.check(kind)
        for name, parameter in reference.model.named_parameters():
            if parameter.is_floating_point() and not _is_finite(parameter.data):
                hint = Hint("inspect the tensor: ", call("inspect", depth="full"))
                if reference.dtype == "float16":
                    hint = Hint("use a precision with a wider range: ", option(precision="fp32"), " or bf16")
                problem = f"{shown(self.plan.source)}: {shown(name)} holds values that overflow in {reference.dtype}"
                raise RefusedError(problem, hint, "export.range")
        join_ties(reference.model, self.evidence)
        loaded = None if options.parity else reference
        if kind is Kind.PAIR:
            self.begin("trace")
            with always_clamped(reference.model):
                trace_pair(reference, raw, layout.data_of, options.opset, options.fuse)
            arrange_pair(raw / f"{DECODER}.onnx", layout)
            return "{}", (ENCODER, DECODER), loaded
        config = load_config(checkpoint.root)
        reads = probe(reference, int(config.vocab_size)) if embeds else None
        inputs = sample(reference, kind, config, reads)
        self.begin("trace")
        with always_clamped(reference.model), first_pass(reads is not None and bool(reads.blocks)):
            made = export_adapter.export_graph(reference.model, inputs, options.opset, options.fuse)
        if reads is not None:
            embedding = export_adapter.embedding_graph(reference.model, options.opset)
            causal = reads.causal if reads.blocks else None
            program = program_of(made)
            join_embedding(program, embedding)
            if causal is not None:
                program.metadata_props[CAUSAL] = str(causal)
        document = export_adapter.save(made, raw)
        arrange(raw, layout)
        # With other names of the cache, transformers would not find the tensors by its document.
        return "{}" if layout.renames else json.dumps(document), (STEM,), loaded

    def _shared(self, raw: Path) -> Shared:
        """Store every matrix once. A quantised export is quantised before."""
        layout, new, held, options = self.layout, self.staging.new, self.staging.held, self.plan.options
        if layout.scheme is None:
            shared = share(raw, new, options.head_form)
            return replace(shared, proofs=separate(new, GRAPH, shared.matrices)) if options.inputs_embeds else shared
        made = quantise_tied(raw, held / "quantised", layout.scheme, self.plan, layout.data_of())
        shared = share(held / "quantised", new, options.head_form)
        return replace(shared, proofs=(prove_once(new, GRAPH, made.tied),), notes=(*shared.notes, *made.notes))

    def _proved(self, measured: str, reference: Reference) -> Identity:
        stored = stored_gates if self.layout.scheme is None else stored_quantised_gates
        identity, gates = stored(measured, self.evidence, reference)
        fault = next((gate for gate in gates if not gate.passed), None)
        if fault is not None:
            problem = f"{shown(self.plan.source)}: the exported graph differs from the model: {fault.sentence}"
            hint = f"nothing was written; a newer exporter may make more axes dynamic: {export_adapter.tried()}"
            raise VerificationError(problem, hint, "export.graph")
        return identity

    def _measured(self, measured: str, stems: tuple[str, ...]) -> Parity:
        self.begin("parity")
        provider, budget = self.plan.options.provider, self.plan.options.budget
        with reporting(self.progress):
            if self.layout.scheme is None:
                report = run_parity(measured, self.evidence, provider, wishes=Wishes(budget=budget))
            else:
                report = run_quantised_parity(measured, self.evidence, provider, budget=budget)
        return replace(report, graph=self.layout.graph(stems[-1]))

    def write_documents(self, made: Made) -> dict[str, FileState]:
        """Write all other files, and give the graphs their final names. All files are durable then.

        Return the states of the copied files.
        """
        new, outcome = self.staging.new, made.outcome
        graphs = [new / f"{stem}.onnx" for stem in made.stems]
        texts = {"export.json": describe(outcome, made.document, graphs, made.identity)}
        texts |= self.layout.documents(Kind(self.plan.kind))
        if outcome.parity is not None:
            from tieconv.reporters.html.parity_page import render

            texts |= {"parity.json": f"{outcome.parity}\n", "parity.html": render(outcome.parity)}
        syncer = Syncer()
        try:
            root = Path(self.evidence.checkpoint.root)
            writer = Writer(root, new, syncer, lambda count: None, lambda name: None)
            for name in self.plan.copied:
                writer.companion(name)
            for name, text in texts.items():
                writer.text(OutputText(name, text))
            publish_names(new, published(self.layout, made.stems))
            for name, status in tree.walk(new):
                if status.st_size and not os.path.isdir(new / name):
                    with closing(os.open(new / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor:
                        syncer.add(descriptor)
            syncer.finish()
        finally:
            syncer.stop()
        for directory in tree.directories(new):
            tree.sync_directory(directory)
        for folder in (self.staging.held / "raw", self.staging.held / "quantised"):
            if folder.exists():
                tree.remove(folder)
        return writer.record.sources


def describe(
    outcome: graph_plan.ExportOutcome, document: str, graphs: Sequence[Path], identity: Identity | None
) -> str:
    """Return the exporter's ``document``, which is JSON, with a section ``tieconv``. It holds no paths and no times."""
    plan, report = outcome.plan, outcome.parity
    read = [read_graphs(str(path)) for path in graphs]
    inputs, outputs = [], []
    for graph in read:
        named = {"graph": Path(graph.path).name} if len(read) > 1 else {}
        # The inputs of the embedding's graph come first.
        own = graph.inputs[len(graph.embedding.inputs) if graph.embedding is not None else 0 :]
        inputs += [value | named for value in _values(own)]
        outputs += [value | named for value in _values(graph.outputs)]
    first = read[-1].embedding
    section = {
        "schema": "tieconv.export/1",
        "tieconv": VERSION,
        **plan.described(),
        "opset": read[0].opset,
        "inputs": inputs,
        "outputs": outputs,
        "embedding": first and {"file": EMBEDDING, "inputs": _values(first.inputs), "outputs": _values(first.outputs)},
        **values_of(plan, "not_exported=left_out tied"),
        "shared": [values_of(m, "initializer dtype shape bytes=stored_after") for m in outcome.matrices if m.done],
        "session": [proof.to_dict() for proof in outcome.proofs],
        "weights": identity and values_of(identity, "tensors found embedding_stored=copies"),
        **values_of(outcome, "files"),
        "parity": {"verdict": "not_run", "reason": "--no-parity"}
        if report is None
        else {"verdict": str(report.verdict), "provider": report.provider.active, "report": "parity.json"},
        **values_of(outcome, "versions"),
    }
    return json.dumps({**json.loads(document), "tieconv": section}, indent=2) + "\n"


def _values(values: Iterable[Value]) -> list[dict[str, object]]:
    return [values_of(value, "name dtype shape") for value in values]


# Check what an export promises about weights: finite before the trace, the tied matrix stored once after it.


def check_once(plan: graph_plan.ExportPlan, identity: Identity | None, files: int) -> None:
    """Check that each of the data files stores the tied embedding once, as promised. Raises `VerificationError`."""
    if plan.tied and identity is not None and identity.copies > files:
        problem = f"{shown(plan.source)}: the graph stores {shown(plan.tied[0][0])} {identity.copies} times"
        raise VerificationError(problem, "nothing was written; report this with the model's class", "export.copies")


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

    matrices: tuple[graph_plan.SharedMatrix, ...]
    proofs: tuple[graph_plan.SessionProof, ...]
    notes: tuple[str, ...]


def share(raw: Path, new: Path, form: graph_plan.HeadForm) -> Shared:
    """Move the graphs of the directory ``raw`` to ``new``, and store every matrix of each once.

    If no tensor byte changes (the usual case), only the graph is written and the data file is moved. Raises
    `VerificationError` if the result is not as promised.
    """
    planned = plan_graph_dedup(locate(str(raw)), form)
    store = lay_out(planned.files, None)
    os.mkdir(new)
    syncer = Syncer()
    writer = Writer(raw, new, syncer, lambda count: None, lambda name: None)
    verifier = Verifier(raw, new, writer.record, True, lambda count: None)
    try:
        for output in store.files:
            writer.weights(output, output.name)
            verifier.weights(output, output.name)
    finally:
        syncer.stop()  # `Job.write_documents` makes all files durable
    anew = {output.name for output in store.files}
    for path in [path for path in raw.iterdir() if path.name not in anew and path.name not in store.removed]:
        os.rename(path, new / path.name)
    proofs = []
    for file in planned.files:
        check_written(new, file.name, file, planned.matrices)
        done = [matrix for matrix in planned.matrices if matrix.done and matrix.graph == file.name]
        proofs.append(prove(new, new / file.name, file.name, done))
    notes = notes_of(planned.matrices, lambda form: f"tieconv export with --head-form {form}")
    return Shared(planned.matrices, tuple(proofs), tuple(notes))


# Make tied names one parameter before the export, by our inspection and not by what the loader does.

_SAME = (State.CANONICAL, State.ABSENT, State.ALIASED, State.IDENTICAL)
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def tied_names(evidence: Inspection) -> tuple[tuple[str, ...], ...]:
    """Return groups of names in the checkpoint that hold one tensor: tied and consistent, or equal copies."""
    groups = (_one_tensor(tie) for tie in evidence.ties)
    return tuple(names for names in groups if len(names) > 1)


def _one_tensor(tie: Tie) -> tuple[str, ...]:
    members = [m for m in tie.members if m.state in _SAME and (m.stored or tie.declared)]
    return tuple(dict.fromkeys(member.name for member in members))


def join_ties(model: Any, evidence: Inspection) -> tuple[tuple[str, ...], ...]:
    """Make the parameters of each group one object; return the groups by the model's parameter names.

    Only parameters with the same bytes are joined. The inspection proved that the checkpoint's tensors are equal. The
    comparison here proves that the loader kept both unchanged.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    joined = []
    for tie in evidence.ties:
        loads = {m.name: m.loads_as or m.name for m in tie.members}
        names = [name for member in _one_tensor(tie) for name in _parameter(model, parameters, loads[member])]
        if len(names) > 1:
            first, *rest = dict.fromkeys(names)
            same = [name for name in rest if _equal(parameters[first], parameters[name])]
            for name in same:
                owner, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(owner), leaf, parameters[first])
            if same:
                joined.append((first, *same))
    return tuple(joined)


def _parameter(model: Any, parameters: dict[str, Any], name: str) -> Iterator[str]:
    """Yield the parameter that loads a stored name. A checkpoint may have or lack the base model's prefix."""
    prefix = f"{model.base_model_prefix}."
    for candidate in (name, prefix + name, name.removeprefix(prefix)):
        if candidate in parameters:
            yield candidate
            return


def _equal(left: Any, right: Any) -> bool:
    if left is right:
        return True
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    bits = _BITS[left.element_size()]
    return bool(torch.equal(left.data.contiguous().view(bits), right.data.contiguous().view(bits)))
