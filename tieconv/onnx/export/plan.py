"""Plan an export: a graph with the tied matrix stored once, measured before the final rename."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tieconv.checkpoint.files.model_files import Checkpoint, Layout
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.json_values import Printed, quoted
from tieconv.checkpoint.results.exported import ExportOutcome, ExportPlan
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.export_options import ExportOptions
from tieconv.checkpoint.write_plan.graph import HeadForm
from tieconv.checkpoint.write_plan.operation import LinkFile
from tieconv.checkpoint.write_plan.plan import Plan, Promises, plan_rows
from tieconv.errors import RefusedError
from tieconv.execute.refusals import check_fresh, check_place
from tieconv.execute.staging import sweep
from tieconv.execute.system_errors import free_bytes, no_space, writing
from tieconv.execute.target import Target, destination
from tieconv.onnx.export.caches import check_cache
from tieconv.onnx.export.carry_out import Progress, run
from tieconv.onnx.export.embeds_choice import AXES, check_options, rows_only
from tieconv.onnx.export.encoder_decoder.planned_inputs import pair_inputs
from tieconv.onnx.export.export_settings import Settings
from tieconv.onnx.export.layouts.read import read_model
from tieconv.onnx.export.layouts.registry import LAYOUTS
from tieconv.onnx.export.sample_inputs import encoder_decoder_kind
from tieconv.onnx.export.size_estimate import estimated_bytes
from tieconv.onnx.export.ties import tied_names
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.parity.graph.embedding_pair import EMBEDDING
from tieconv.onnx.parity.measured_pair import check_model
from tieconv.onnx.quantise.quantise_export import check_scheme, head_note
from tieconv.onnx.write.dedup import HELD_TWICE
from tieconv.reference import architecture
from tieconv.reference.packages import need
from tieconv.text import shown, size

_WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".data", ".onnx_data", ".gguf", ".h5", ".msgpack", ".npz",
    ".index.json", ".distcp", ".metadata", ".pkl", ".tflite", ".mlmodel", ".xml",
)  # fmt: skip
OURS = (EMBEDDING, "model.onnx", "model.onnx.data", "export.json", "parity.json", "parity.html")
"""Files that the export makes. A source file with such a name is not copied."""
_AXES = {
    Kind.CACHED: (
        "input_ids [batch, sequence]",
        "attention_mask [batch, past + sequence]",
        "position_ids [batch, sequence]",
        "past_key_values [batch, heads, past, width] of each layer",
    ),
    Kind.MASKED: ("input_ids [batch, sequence]", "attention_mask [batch, sequence]"),
    Kind.SEQ2SEQ: (
        "input_ids [batch, sequence]",
        "attention_mask [batch, sequence]",
        "decoder_input_ids [batch, decoder sequence]",
    ),
}


@record
class PlannedExport(Printed):
    """A plan of an export. ``str()`` gives the `tieconv.plan/1` JSON."""

    plan: ExportPlan
    evidence: Inspection
    settings: Settings

    def outcome(self) -> ExportOutcome:
        """Return the plan without executing it."""
        return ExportOutcome(self.plan)

    def check(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Raise every refusal that is known before writing, as `execute` would."""
        final = self._check(out, overwrite)
        needed = self.plan.bytes_written + self.plan.bytes_linked
        with writing(final.name, final.parent, 0):
            if needed > (free := free_bytes(final.parent)):
                raise no_space(final.name, needed, free)

    def clear(self, out: str | Path) -> None:
        """Remove what a killed run left beside ``out``, so that `check` does not refuse it."""
        sweep(destination(_other_formats(self.evidence.checkpoint, self.plan.copied), _target(out, False)))

    def _check(self, out: str | Path, overwrite: bool) -> Path:
        """Return OUT as an absolute path. Raise if it cannot be written or the model has changed."""
        plan, target = _other_formats(self.evidence.checkpoint, self.plan.copied), _target(out, overwrite)
        final = destination(plan, target)
        with writing(final.name, final.parent, 0):
            check_place(plan, target)
            check_fresh(plan)
        return final

    def execute(
        self, out: str | Path, *, overwrite: bool = False, progress: Progress = lambda stage, done, whole: None
    ) -> ExportOutcome:
        """Export beside ``out``, verify the graph, measure it, and rename it to ``out``.

        If parity fails or does not run, ``out`` is unchanged. The outcome is then not executed, and holds the report.
        On any other failure, raises a `TieconvError` and leaves ``out`` unchanged.
        """
        final = destination(_other_formats(self.evidence.checkpoint, self.plan.copied), _target(out, overwrite))

        def check(first: bool) -> None:
            if first:
                self.check(out, overwrite=overwrite)
            else:
                self._check(out, overwrite)

        outcome = run(self.plan, self.evidence, self.settings, final, check, overwrite=overwrite, progress=progress)
        return replace(outcome, output=str(out)) if outcome.executed else outcome

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.plan.source), "export", f"writes about {size(self.plan.bytes_written)}"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.plan.notes)


def plan_export(evidence: Inspection, options: ExportOptions) -> PlannedExport:
    """Return the plan that exports the model of ``evidence``.

    With ``options.inputs_embeds``, the graphs are an embedding and a decoder of its rows. A decoder of images or sound
    is always exported so.

    Raises `UnreadableError` if transformers cannot load the model. Raises `RefusedError` for a finding of level error,
    because loaders then disagree on the model. Raises `RefusedError` if the cache holds other states than keys and
    values. Raises `RefusedError` if the program of ``options.layout`` cannot load the graph.
    """
    checkpoint = evidence.checkpoint
    check_model(checkpoint)
    _check_consistent(evidence)
    name = architecture(checkpoint.config_values, checkpoint.source)
    kind = _kind(name, checkpoint.config_values, one_graph=options.quantise is not None)
    parts = rows_only(name, checkpoint, kind, wanted=options.inputs_embeds)
    check_cache(name, checkpoint.root, checkpoint.source)
    layout = LAYOUTS[options.layout]
    settings = Settings(options, layout, read_model(checkpoint, name, layout))
    precision, scheme = options.precision, settings.scheme
    if parts is not None:
        check_options(options.layout, scheme)
    layout.check(settings.model, kind, precision, scheme)
    inputs = pair_inputs(name, checkpoint.root) if kind is Kind.PAIR else AXES if parts else _AXES.get(kind, ())
    copied = _companions(checkpoint, layout.made)
    tied = tied_names(evidence)
    shared = settings.form if tied and not scheme else None
    notes = [*_notes(options, shared), *layout.notes(kind, precision)]
    if scheme is not None:
        check_scheme(scheme, precision, options.fuse, checkpoint.source)
        notes.append(head_note(scheme))
    plan = ExportPlan(
        source=checkpoint.source,
        architecture=name,
        kind=str(kind),
        precision=precision,
        form=settings.form,
        opset=options.opset,
        provider=options.provider,
        parity=options.parity,
        inputs=inputs,
        tied=tied,
        copied=copied,
        bytes_read=sum(record.nbytes for record in checkpoint.tensors.values()),
        bytes_written=estimated_bytes(evidence, precision, scheme, parts.tensors if parts else ()),
        notes=tuple(notes),
        fuse=options.fuse,
        layout=options.layout,
        quantise=options.quantise or "",
        inputs_embeds=parts is not None,
        left_out=parts.modules if parts else (),
    )
    return PlannedExport(plan, evidence, settings)


def _notes(options: ExportOptions, shared: HeadForm | None) -> list[str]:
    """Return what the user should know before the export. ``shared`` is the form of a tied head."""
    notes = [HELD_TWICE] if shared is HeadForm.TRANSPOSE else []
    if options.precision == "bf16" and options.parity and not options.provider.startswith("cuda"):
        notes.append("ONNX Runtime's CPU provider cannot run bf16: without a GPU use --no-parity")
    if not options.parity:
        notes.append("the logits will not be measured; the weights are still compared bit for bit")
    return notes


def _check_consistent(evidence: Inspection) -> None:
    fault = next((finding for finding in evidence.findings if finding.level is Level.ERROR), None)
    if fault is None:
        return
    remedy = fault.remedy.command if fault.remedy else f"tieconv explain {fault.rule}"
    raise RefusedError(
        f"{shown(evidence.checkpoint.source)} must be repaired before the export: {fault.rule}: {fault.message}",
        f"repair it first: {remedy}",
        "export.finding",
    )


def _kind(name: str, config: Mapping[str, object], *, one_graph: bool) -> Kind:
    """Return what the graph will compute according to the config. The loaded class decides later."""
    if config.get("is_encoder_decoder") is True:
        cls = getattr(need("transformers", "onnx,torch", "exporting"), name, None)
        return encoder_decoder_kind(cls, one_graph=one_graph) if cls is not None else Kind.SEQ2SEQ
    return Kind.MASKED if "MaskedLM" in name else Kind.CACHED


def _companions(checkpoint: Checkpoint, made: frozenset[str]) -> dict[str, int]:
    """Return the files to copy: all but weights, and files with a name that the export writes."""
    config = checkpoint.config
    companions = {**checkpoint.companions, **({config.name: len(config.text.encode())} if config else {})}
    return {
        name: size
        for name, size in companions.items()
        if not name.lower().endswith(_WEIGHTS) and name not in {*OURS, *made} and name not in checkpoint.others
    }


def _target(out: str | Path, overwrite: bool) -> Target:
    return Target(Path(out), overwrite=overwrite)


def _other_formats(checkpoint: Checkpoint, copied: Mapping[str, int]) -> Plan:
    """Return the plan in the form that the checks of OUT read."""
    links = tuple(LinkFile(name, size) for name, size in copied.items())
    whole = replace(checkpoint, layout=Layout.SINGLE)
    return Plan("export", whole, checkpoint.states, (), (), (), links, (), Promises(None, ()), "")
