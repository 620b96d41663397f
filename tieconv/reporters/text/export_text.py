"""Render an export, planned or done, as text."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.results.exported import ExportOutcome, ExportPlan
from tieconv.checkpoint.results.parity import Parity
from tieconv.checkpoint.write_plan.graph import SessionProof
from tieconv.reporters.text.columns import Paint, columns, plain, wrapped
from tieconv.text import count, shown, size


def render(outcome: ExportOutcome, paint: Paint = plain, width: int | None = None) -> str:
    """Return what an export will do, without a newline at the end; notes are wrapped to ``width`` columns."""
    plan = outcome.plan
    lines = wrapped(f"{paint('export', 'heading')} {shown(plan.source)}: {shown(plan.summary)}", "", width)
    lines += columns([*_rows(plan), *_estimate(plan)], width=width)
    return "\n".join([*lines, *_notes(plan.notes, paint, width)])


def render_results(outcome: ExportOutcome, before: ExportPlan, paint: Paint = plain, width: int | None = None) -> str:
    """Return what an export made and measured, with the notes that the plan ``before`` did not have."""
    lines = columns(_results(outcome), width=width)
    several = len(outcome.proofs) > 1
    lines += [_session(proof, paint, f" of {shown(proof.graph)}" if several else "") for proof in outcome.proofs]
    if outcome.parity is not None:
        lines.append(_parity(outcome.parity, paint))
    new = tuple(note for note in outcome.plan.notes if note not in before.notes)
    return "\n".join([*lines, *_notes(new, paint, width)])


def _notes(notes: tuple[str, ...], paint: Paint, width: int | None) -> Iterator[str]:
    for note in notes:
        first, *rest = wrapped(shown(note, 400), "  note: ", width)
        yield first.replace("note", paint("note", "warning"), 1)
        yield from rest


def _rows(plan: ExportPlan) -> Iterator[tuple[str, ...]]:
    for index, text in enumerate(plan.inputs):
        yield "inputs" if index == 0 else "", text
    if plan.left_out:
        yield "not exported", shown(", ".join(plan.left_out), 300)
    for names in plan.tied:
        yield "tied", shown(" = ".join(names), 300)
    yield "head", f"quantised: {plan.quantise}" if plan.quantise else f"as {plan.form}"
    if plan.fuse:
        yield "fused", f"for ONNX Runtime's {plan.fuse} provider"
    if plan.layout != "plain":
        yield "layout", f"for {plan.layout}"
    files = sorted(plan.copied)
    text = shown(", ".join(files[:6]), 200) + (f" and {len(files) - 6} more" if len(files) > 6 else "")
    yield "copy", f"{count(len(files), 'file')}, {size(plan.bytes_linked)}" + (f": {text}" if files else "")


def _estimate(plan: ExportPlan) -> Iterator[tuple[str, ...]]:
    yield "bytes", f"{size(plan.bytes_read)} read, about {size(plan.bytes_written)} written"
    yield "parity", f"measured before OUT is written (--provider {plan.provider})" if plan.parity else "not measured"


def _results(outcome: ExportOutcome) -> Iterator[tuple[str, ...]]:
    for name, nbytes in outcome.files.items():
        yield "wrote" if outcome.executed else "made", f"{shown(name)}, {size(nbytes)}"
    for matrix in outcome.matrices:
        if matrix.done:
            form = f"{matrix.dtype} {list(matrix.shape)}"
            yield "stored", f"{shown(matrix.initializer)} once: {size(matrix.stored_after)}, {form}"
        elif matrix.left:
            yield "left", shown(matrix.left, 300)


def _session(proof: SessionProof, paint: Paint, of: str) -> str:
    if not proof.proved:
        return f"  {paint('not proved', 'warning')} in a session{of}: {shown(proof.why_not, 300)}"
    held = ", ".join(f"{shown(name)} {'once' if n == 1 else f'{n} times'}" for name, n in proof.copies)
    return f"  {paint('proved', 'good')}: a session{of} {f'holds {held}' if held else 'can load the graph'}"


def _parity(report: Parity, paint: Paint) -> str:
    style = {"passed": "good", "failed": "error"}.get(report.verdict, "warning")
    failed = [gate.sentence for gate in report.gates if not gate.passed]
    values = {gate.name: gate.value for gate in report.gates}
    ratio = values.get("rms_ratio")
    text = shown(failed[0], 300) if failed else shown(report.reason, 300)
    if report.verdict == "passed" and ratio is not None:
        text = f"the error is {ratio:.2f} times torch's in the same precision, {report.provider.active}"
    return f"  parity {paint(str(report.verdict), style)}: {text}"
