"""Render a parity report as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tieconv.checkpoint.graph_plan import ExportOutcome, ExportPlan, SessionProof
from tieconv.checkpoint.results import parity
from tieconv.reporters.text import Paint, columns, notes, plain, wrapped
from tieconv.text import count, shown, size

_SHOWN = 12
_STYLES = {parity.Verdict.PASSED: "good", parity.Verdict.FAILED: "error", parity.Verdict.NOT_RUN: "warning"}


def render_parity(report: parity.Parity, paint: Paint = plain, width: int | None = None) -> str:
    """Return the whole report, without a newline at the end."""
    title = f"{paint(shown(report.graph), 'heading')} against {paint(shown(report.model), 'heading')}"
    blocks = [title, "\n".join(columns(facts(report), width=width))]
    if report.identity is not None and (report.identity.lost or report.identity.unexplained):
        blocks.append("\n".join([paint("weights", "heading"), *columns(_weights(report.identity), width=width)]))
    if report.cases:
        blocks.append("\n".join([paint("cases", "heading"), *columns(_cases(report.cases))]))
    if report.gates:
        gates = columns((_gate(gate, paint) for gate in report.gates), width=width)
        blocks.append("\n".join([paint("gates", "heading"), *gates]))
    blocks.append("\n".join(_verdict(report, paint, width)))
    return "\n\n".join(blocks)


def passed(report: parity.Parity) -> str:
    """Return what a report that passed has shown, without a full stop."""
    if report.quantised is None:
        return "the graph holds the required weights, and its errors are within the limits"
    return "the graph computes with its quantised weights, and its losses are within the limits"


def facts(report: parity.Parity) -> Iterator[tuple[str, str]]:
    """Yield what was measured, where and with what, as names and sentences."""
    structure, use = report.structure, report.provider
    if structure is not None:
        yield "graph", f"{structure.kind}, {structure.precision}, opset {structure.opset}"
        for note in structure.notes:
            yield "fed", shown(note, 400)
    if report.fed is not None:
        yield from _fed(report.fed, compared=any(case.graph is not None for case in report.cases))
    placed = ", ".join(f"{number} nodes on {shown(name)}" for name, number in use.placement.items())
    asked = f"requested: {use.requested}" + (f"; {placed}" if placed else "")
    yield "provider", f"{shown(use.active) or 'none'} ({asked})"
    if use.versions:
        yield "versions", ", ".join(f"{name} {shown(version)}" for name, version in use.versions.items())
    for note in use.notes:
        yield "note", shown(note, 400)
    metrics = report.metrics
    if metrics is not None:
        dtypes = f"torch {metrics.reference.dtype}; the floor is torch {metrics.floor.dtype}"
        where = "" if metrics.reference.device == "cpu" else f" on {metrics.reference.device}"
        yield "reference", f"{dtypes}{where}; seeds {', '.join(map(str, metrics.seeds))}"
    if report.identity is not None:
        yield "weights", _coverage(report.identity)
    if report.quantised is not None:
        yield from quantised_facts(report.quantised)
    logits = metrics.tf32.logits if metrics is not None and metrics.tf32 is not None else None
    if logits is not None:
        yield "TF32", f"with TF32 the RMS error is {number(logits.ratio)} times torch's (not judged; off above)"


def _fed(fed: parity.Fed, *, compared: bool) -> Iterator[tuple[str, str]]:
    """Yield what was fed, what was not, and how small a fault fails if a case was ``compared``."""
    within = "" if fed.budget is None else f" (budget {fed.budget:.0f} s)"
    steps = f", {count(fed.steps, 'cached step')}" if fed.steps else ""
    tokens = count(fed.tokens, "token")
    if fed.longest is not None:
        tokens = f"{fed.tokens:,} of the model's {count(fed.longest, 'position')}"
    most = f"up to {tokens} and {count(fed.rows, 'row')}{steps}"
    yield "fed", f"{count(fed.cases, 'case')}, {count(fed.positions, 'position')}: {most}{within}"
    groups = {group: number for group, number in fed.left_out.items() if group != parity.LONGER}
    if groups:
        listed = ", ".join(f"{number} {group}" for group, number in groups.items())
        yield "not fed", f"{sum(groups.values())} more batches ({listed}): --budget full"
    if parity.LONGER in fed.left_out:
        yield "not fed", f"prompts of more than {count(fed.tokens, 'token')}: --length"
    if fed.not_judged:
        yield "not judged", f"{count(fed.not_judged, 'more position')}, where torch's own logits are not finite"
    if not (fed.positions and compared):
        return
    often = f"in 1 of {1 / fed.share:.0f} random positions or more (19 times of 20)"
    yield "sees", f"a fault that changes the logits of a case by {fed.change:.1e} of their RMS, {often}"


def _coverage(identity: parity.Identity) -> str:
    share = identity.bytes_found / identity.bytes if identity.bytes else 1.0
    forms = ", ".join(f"{number} {form}" for form, number in sorted(identity.how.items()))
    copies = f"; the graph stores the word embedding {count(identity.copies, 'time')}" if identity.copies else ""
    unused = f"; the class does not read {count(len(identity.unused), 'stored tensor')}" if identity.unused else ""
    return (
        f"{identity.found} of {count(identity.tensors, 'tensor')} ({share:.1%} of {size(identity.bytes)}) "
        f"bit for bit in the graph: {forms or 'none'}{copies}{unused}"
    )


def _weights(identity: parity.Identity) -> list[tuple[str, ...]]:
    rows = [_lost("not found", entry) for entry in identity.lost]
    rows += [_lost("in the graph only", entry) for entry in identity.unexplained]
    left = len(rows) - _SHOWN
    return [*rows[:_SHOWN], ("…", f"{left:,} more (--json lists them)")] if left > 0 else rows


def _lost(kind: str, entry: parity.Lost) -> tuple[str, ...]:
    judged = "fails the verdict" if entry.required else "not judged"
    return kind, shown(entry.name), f"{list(entry.shape)} {entry.dtype}", f"{entry.reason} ({judged})"


def _cases(cases: Iterable[parity.Case]) -> Iterator[tuple[str, ...]]:
    yield ("batch", "sequence", "past", "padding", "n", "relative RMS", "torch's", "ratio", "max ratio", "top-1", "KL")
    shapes: dict[tuple[object, ...], list[parity.Case]] = {}
    for case in cases:
        shapes.setdefault((case.batch, case.sequence, case.past, case.padding, case.group), []).append(case)
    for (*shape, _), of_shape in shapes.items():
        broken = next((case.error for case in of_shape if case.error), "")
        if broken:
            yield (*map(str, shape), "", shown(broken, 100))
            continue
        worst = max(of_shape, key=lambda case: -1.0 if case.ratio is None else case.ratio)
        if worst.graph is None or worst.floor is None:
            yield (*map(str, shape), "0", "not judged")
            continue
        shaped = worst.group in ("one token", "no past", "past", "left padding")  # by the shape
        yield (*map(str, shape), *_figures(worst.graph, worst.floor, of_shape), "" if shaped else worst.group)


def _figures(graph: parity.Figures, floor: parity.Figures, cases: list[parity.Case]) -> tuple[str, ...]:
    positions = sum(case.graph.positions for case in cases if case.graph)
    flips = sum(case.graph.flips for case in cases if case.graph)
    return (
        f"{positions}",
        f"{graph.relative_rms:.2e}",
        f"{floor.relative_rms:.2e}",
        number(max(case.ratio or 0.0 for case in cases)),
        number(max(case.max_ratio or 0.0 for case in cases)),
        f"{1 - flips / positions:.1%}" if positions else "",
        f"{max(case.graph.kl for case in cases if case.graph):.1e}",
    )


def _gate(gate: parity.Gate, paint: Paint) -> tuple[str, ...]:
    styles = {"passed": ("passed", "good"), "failed": ("FAILED", "error"), "not judged": ("not judged", "warning")}
    mark = paint(*styles[gate.state])
    figures = f"{number(gate.value)} {'>' if gate.state == 'failed' else '≤'} {number(gate.limit)}"
    return mark, gate.name, figures, shown(gate.sentence, 400)


def number(value: float | None) -> str:
    """Return three digits, or ``none`` without a figure."""
    if value is None:
        return "none"
    return f"{value:.3g}" if value < 10000 else f"{value:.1e}"


def _verdict(report: parity.Parity, paint: Paint, width: int | None) -> Iterator[str]:
    sentences = {
        parity.Verdict.PASSED: f"passed: {passed(report)}",
        parity.Verdict.FAILED: "failed: " + "; ".join(gate.name for gate in report.gates if gate.state == "failed"),
        parity.Verdict.NOT_RUN: f"not run: {shown(report.reason, 400)}",
    }[report.verdict]
    yield from (paint(line, _STYLES[report.verdict]) for line in wrapped(sentences, "", width))
    if report.reason and report.verdict is parity.Verdict.FAILED:
        yield from wrapped(f"likely cause: {shown(report.reason, 400)}", "", width)
    identity = report.identity
    failed = report.verdict is parity.Verdict.FAILED and report.quantised is None
    if failed and identity is not None and 2 * identity.bytes_found < identity.bytes:
        share = "Less than half of the checkpoint's weights are in the graph bit for bit"
        sentence = f"{share}. Was it exported from this model?"
        yield from wrapped(sentence, "", width)


def quantised_facts(figures: parity.Quantised) -> Iterator[tuple[str, str]]:
    """Yield how the weights are quantised, and what the graph and the known-good quantiser lose."""
    forms = Counter(f"of {weight.operator} with {weight.bits} bits" for weight in figures.weights)
    listed = ", ".join(f"{number} {shown(form)}" for form, number in forms.items())
    errors = ((weight.error, weight.known_good_error) for weight in figures.weights)
    worst, known_good = max(errors, default=(0.0, 0.0))
    yield "quantised", f"{count(len(figures.weights), 'weight')}: {listed}"
    yield "error", f"{worst:.2e} at most (relative RMS), {known_good:.2e} by the known-good quantiser"
    for name, loss in (("loss", figures.graph), ("known good", figures.known_good)):
        if loss is not None:
            perplexity = "" if loss.perplexity is None else f", perplexity {loss.perplexity:.4g}"
            yield name, f"top-1 {loss.top1:.1%}, KL {loss.kl:.2e}{perplexity}"
    if figures.reference_perplexity is not None:
        source = f"{count(figures.tokens, 'token')}, {shown(figures.text)}"
        yield "perplexity", f"{figures.reference_perplexity:.4g} of the float reference on {source}"


# Render an export, planned or done, as text.
def render_export(outcome: ExportOutcome, paint: Paint = plain, width: int | None = None) -> str:
    """Return what an export will do, without a newline at the end; notes are wrapped to ``width`` columns."""
    plan = outcome.plan
    lines = wrapped(f"{paint('export', 'heading')} {shown(plan.source)}: {shown(plan.summary)}", "", width)
    estimate = f"{size(plan.bytes_read)} read, about {size(plan.bytes_written)} written"
    measured = f"measured before OUT is written (--provider {plan.options.provider})"
    proof = measured if plan.options.parity else "not measured"
    lines += columns([*_rows(plan), ("bytes", estimate), ("parity", proof)], width=width)
    return "\n".join([*lines, *notes(plan.notes, paint, width)])


def render_results(outcome: ExportOutcome, before: ExportPlan, paint: Paint = plain, width: int | None = None) -> str:
    """Return what an export made and measured, with the notes that the plan ``before`` did not have."""
    lines = columns(_results(outcome), width=width)
    several = len(outcome.proofs) > 1
    lines += [_session(proof, paint, f" of {shown(proof.graph)}" if several else "") for proof in outcome.proofs]
    if outcome.parity is not None:
        style = {"passed": "good", "failed": "error"}.get(outcome.parity.verdict, "warning")
        failed = [gate.sentence for gate in outcome.parity.gates if gate.state == "failed"]
        values = {gate.name: gate.value for gate in outcome.parity.gates}
        ratio = values.get("rms_ratio")
        text = shown(failed[0], 300) if failed else shown(outcome.parity.reason, 300)
        if outcome.parity.verdict == "passed" and ratio is not None:
            text = f"the error is {ratio:.2f} times torch's in the same precision, {outcome.parity.provider.active}"
        lines.append(f"  parity {paint(str(outcome.parity.verdict), style)}: {text}")
    new = tuple(note for note in outcome.plan.notes if note not in before.notes)
    return "\n".join([*lines, *notes(new, paint, width)])


def _rows(plan: ExportPlan) -> Iterator[tuple[str, ...]]:
    for index, text in enumerate(plan.inputs):
        yield "inputs" if index == 0 else "", text
    if plan.left_out:
        yield "not exported", shown(", ".join(plan.left_out), 300)
    for names in plan.tied:
        yield "tied", shown(" = ".join(names), 300)
    options = plan.options
    yield "head", f"quantised: {options.quantise}" if options.quantise else f"as {options.head_form}"
    if options.fuse:
        yield "fused", f"for ONNX Runtime's {options.fuse} provider"
    if options.layout != "plain":
        yield "layout", f"for {options.layout}"
    files = sorted(plan.copied)
    text = shown(", ".join(files[:6]), 200) + (f" and {len(files) - 6} more" if len(files) > 6 else "")
    yield "copy", f"{count(len(files), 'file')}, {size(plan.bytes_linked)}" + (f": {text}" if files else "")


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
