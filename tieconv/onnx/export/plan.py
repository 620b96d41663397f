"""`export`: from our inspection to a graph with the tied matrix stored once, measured before it gets its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.graph import HeadForm
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.json_values import Printed, quoted
from tieconv.checkpoint.model_files import Checkpoint, Layout
from tieconv.checkpoint.operation import LinkFile
from tieconv.checkpoint.plan import Plan, Promises, plan_rows
from tieconv.checkpoint.results.exported import PRECISIONS, ExportOutcome, ExportPlan
from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.execute.refusals import check_fresh, check_place
from tieconv.execute.staging import sweep
from tieconv.execute.system_errors import free_bytes, no_space, writing
from tieconv.execute.target import Target, destination
from tieconv.onnx.export.caches import check_cache
from tieconv.onnx.export.carry_out import Progress, Settings, run
from tieconv.onnx.export.ties import tied_names
from tieconv.onnx.parity.graph.bindings import Kind
from tieconv.onnx.parity.measured_pair import check_model
from tieconv.onnx.write.dedup import HELD_TWICE
from tieconv.reference import architecture
from tieconv.text import shown, size

_WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".onnx", ".data", ".onnx_data", ".gguf", ".h5", ".msgpack", ".npz",
    ".index.json", ".distcp", ".metadata", ".pkl", ".tflite", ".mlmodel", ".xml",
)  # fmt: skip
OURS = ("model.onnx", "model.onnx.data", "export.json", "parity.json", "parity.html")
"""Files of OUT that are made here; a source file of such a name stays behind."""
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
    """An export that can be carried out. ``str()`` gives the `tieconv.plan/1` JSON."""

    plan: ExportPlan
    evidence: Inspection
    settings: Settings

    def outcome(self) -> ExportOutcome:
        """The plan as it stands, not executed."""
        return ExportOutcome(self.plan)

    def check(self, out: str | Path, *, overwrite: bool = False) -> None:
        """Every refusal that needs no writing, as `execute` would make it."""
        final = self._check(out, overwrite)
        needed = self.plan.bytes_written + self.plan.bytes_linked
        with writing(final.name, final.parent, 0):
            if needed > (free := free_bytes(final.parent)):
                raise no_space(final.name, needed, free)

    def clear(self, out: str | Path) -> None:
        """Remove what a killed run left beside ``out``, so that `check` does not meet it."""
        sweep(destination(_other_formats(self.evidence.checkpoint, self.plan.copied), _target(out, False)))

    def _check(self, out: str | Path, overwrite: bool) -> Path:
        """OUT, absolute: it may be written, and the model is the one that was inspected. Asked again at the end."""
        plan, target = _other_formats(self.evidence.checkpoint, self.plan.copied), _target(out, overwrite)
        final = destination(plan, target)
        with writing(final.name, final.parent, 0):
            check_place(plan, target)
            check_fresh(plan)
        return final

    def execute(
        self, out: str | Path, *, overwrite: bool = False, progress: Progress = lambda stage, done, whole: None
    ) -> ExportOutcome:
        """Export beside ``out``, prove it, measure it, rename it into place.

        A parity that failed or was not run leaves ``out`` as it was: the outcome is then not executed, and holds the
        report. Raises a `TieconvError` and leaves ``out`` as it was where anything else fails.
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
        """The document of schema `tieconv.plan/1`."""
        return self.outcome().to_dict()

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.plan.source), "export", f"writes about {size(self.plan.bytes_written)}"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.plan.summary, self.plan.notes)


def plan_export(
    evidence: Inspection, precision: str, form: HeadForm, opset: int | None, provider: str, *, parity: bool
) -> PlannedExport:
    """The plan that exports the model of ``evidence``.

    Raises `UnreadableError` for what transformers does not load, `RefusedError` for a model with a finding of level
    error: what it computes then depends on who loads it; and for one whose cache is no keys and values.
    """
    checkpoint = evidence.checkpoint
    check_model(checkpoint)
    _check_consistent(evidence)
    name = architecture(checkpoint.config_values, checkpoint.source)
    check_cache(name, checkpoint.root, checkpoint.source)
    kind = _kind(name, checkpoint.config_values)
    copied = _companions(checkpoint)
    tied = tied_names(evidence)
    plan = ExportPlan(
        source=checkpoint.source,
        architecture=name,
        kind=str(kind),
        precision=precision,
        form=form,
        opset=opset,
        provider=provider,
        parity=parity,
        inputs=_AXES.get(kind, ()),
        tied=tied,
        copied=copied,
        bytes_read=sum(record.nbytes for record in checkpoint.tensors.values()),
        bytes_written=_estimate(evidence, precision),
        notes=tuple(_notes(precision, provider, form if tied else None, parity=parity)),
    )
    return PlannedExport(plan, evidence, Settings(PRECISIONS[precision], form, opset, provider, parity))


def _notes(precision: str, provider: str, shared: HeadForm | None, *, parity: bool) -> list[str]:
    """What the user should know beforehand; ``shared`` is the form of a head that is tied."""
    notes = [HELD_TWICE] if shared is HeadForm.TRANSPOSE else []
    if precision == "bf16" and parity and provider != "cuda":
        notes.append("onnxruntime's CPU provider cannot run bf16: without a GPU give --no-parity")
    if not parity:
        notes.append("the logits will not be measured; weights are compared bit for bit all the same")
    return notes


def _check_consistent(evidence: Inspection) -> None:
    fault = next((finding for finding in evidence.findings if finding.level is Level.ERROR), None)
    if fault is None:
        return
    remedy = fault.remedy.command if fault.remedy else f"tieconv explain {fault.rule}"
    raise RefusedError(
        f"{shown(evidence.checkpoint.source)} is not exported as it is: {fault.rule}: {fault.message}",
        f"repair it first: {remedy}",
        "export.finding",
    )


def _kind(name: str, config: Mapping[str, object]) -> Kind:
    """What the graph will compute, as far as the config says; the class itself is asked when it is loaded."""
    if config.get("is_encoder_decoder") is True:
        return Kind.SEQ2SEQ
    return Kind.MASKED if "MaskedLM" in name else Kind.CACHED


def _companions(checkpoint: Checkpoint) -> dict[str, int]:
    """The files that come along: all but weights, and what has the name of a file of ours."""
    config = checkpoint.config
    companions = {**checkpoint.companions, **({config.name: len(config.text.encode())} if config else {})}
    return {
        name: size
        for name, size in companions.items()
        if not name.lower().endswith(_WEIGHTS) and name not in OURS and name not in checkpoint.others
    }


def _estimate(evidence: Inspection, precision: str) -> int:
    """Bytes of the graph's data: every tensor once in the precision, tied ones together."""
    tensors = evidence.checkpoint.tensors
    again = {name for names in tied_names(evidence) for name in [n for n in names if n in tensors][1:]}
    width = 4 if precision == "fp32" else 2
    return sum(record.elements * width for name, record in tensors.items() if name not in again)


def _target(out: str | Path, overwrite: bool) -> Target:
    return Target(Path(out), overwrite=overwrite)


def _other_formats(checkpoint: Checkpoint, copied: Mapping[str, int]) -> Plan:
    """The plan of the other formats, as far as the checks of OUT look at it."""
    links = tuple(LinkFile(name, size) for name, size in copied.items())
    whole = replace(checkpoint, layout=Layout.SINGLE)
    return Plan("export", whole, checkpoint.states, (), (), (), links, (), Promises(None, ()), "")
