"""Render a parity report as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.results.parity import Case, Gate, Identity, Lost, Parity, Verdict
from tieconv.checkpoint.results.parity_metrics import Figures, Metrics
from tieconv.reporters.text.columns import Paint, columns, plain, wrapped
from tieconv.reporters.text.quantised_text import quantised_facts
from tieconv.text import count, shown, size

_SHOWN = 12
_PASSED = "passed: the graph holds the checkpoint's weights, and its errors are within the limits"
_QUANTISED_PASSED = "passed: the graph computes with its quantised weights, and its losses are within the limits"
_STYLES = {Verdict.PASSED: "good", Verdict.FAILED: "error", Verdict.NOT_RUN: "warning"}


def render(report: Parity, paint: Paint = plain, width: int | None = None) -> str:
    """Return the whole report, without a newline at the end."""
    blocks = [_title(report, paint), "\n".join(columns(facts(report), width=width))]
    if report.identity is not None and (report.identity.lost or report.identity.unexplained):
        blocks.append("\n".join([paint("weights", "heading"), *columns(_weights(report.identity), width=width)]))
    if report.cases:
        blocks.append("\n".join([paint("cases", "heading"), *columns(_cases(report.cases))]))
    if report.gates:
        gates = columns((_gate(gate, paint) for gate in report.gates), width=width)
        blocks.append("\n".join([paint("gates", "heading"), *gates]))
    blocks.append("\n".join(_verdict(report, paint, width)))
    return "\n\n".join(blocks)


def _title(report: Parity, paint: Paint) -> str:
    return f"{paint(shown(report.graph), 'heading')} against {paint(shown(report.model), 'heading')}"


def facts(report: Parity) -> Iterator[tuple[str, str]]:
    """Yield what was measured, where and with what, as names and sentences."""
    structure, use = report.structure, report.provider
    if structure is not None:
        yield "graph", f"{structure.kind}, {structure.precision}, opset {structure.opset}"
        for note in structure.notes:
            yield "fed", shown(note, 400)
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
    if metrics is not None:
        yield from _not_judged(metrics)


def _not_judged(metrics: Metrics) -> Iterator[tuple[str, str]]:
    """Yield the figures that no gate uses."""
    free = metrics.free_run
    if free is not None:
        runs = f"{free.identical:.1%} of {free.sequences} greedy runs of {free.steps} tokens"
        yield "free run", f"{runs} are the reference's to the end (not judged)"
    logits = metrics.tf32.logits if metrics.tf32 is not None else None
    if logits is not None:
        yield "TF32", f"with TF32 the RMS error is {number(logits.ratio)} times torch's (not judged; off above)"


def _coverage(identity: Identity) -> str:
    share = identity.bytes_found / identity.bytes if identity.bytes else 1.0
    forms = ", ".join(f"{number} {form}" for form, number in sorted(identity.how.items()))
    copies = f"; the graph stores the word embedding {count(identity.copies, 'time')}" if identity.copies else ""
    unused = f"; the class does not read {count(len(identity.unused), 'stored tensor')}" if identity.unused else ""
    return (
        f"{identity.found} of {count(identity.tensors, 'tensor')} ({share:.1%} of {size(identity.bytes)}) "
        f"bit for bit in the graph: {forms or 'none'}{copies}{unused}"
    )


def _weights(identity: Identity) -> list[tuple[str, ...]]:
    rows = [_lost("not found", entry) for entry in identity.lost]
    rows += [_lost("in the graph only", entry) for entry in identity.unexplained]
    left = len(rows) - _SHOWN
    return [*rows[:_SHOWN], ("…", f"{left:,} more (--json lists them)")] if left > 0 else rows


def _lost(kind: str, entry: Lost) -> tuple[str, ...]:
    judged = "fails the verdict" if entry.required else "not judged"
    return kind, shown(entry.name), f"{list(entry.shape)} {entry.dtype}", f"{entry.reason} ({judged})"


_HEAD = ("batch", "sequence", "past", "padding", "n", "relative RMS", "torch's", "ratio", "max ratio", "top-1", "KL")


def _cases(cases: Iterable[Case]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each shape, with the worst of its seeds."""
    yield _HEAD
    shapes: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        shapes.setdefault((case.batch, case.sequence, case.past, case.padding, case.group), []).append(case)
    for (*shape, _), of_shape in shapes.items():
        broken = next((case.error for case in of_shape if case.error), "")
        if broken:
            yield (*map(str, shape), "", shown(broken, 100))
            continue
        worst = max(of_shape, key=lambda case: case.ratio or 0.0)
        assert worst.graph is not None and worst.floor is not None
        yield (*map(str, shape), *_figures(worst.graph, worst.floor, of_shape), _kind(worst))


def _figures(graph: Figures, floor: Figures, cases: list[Case]) -> tuple[str, ...]:
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


def _kind(case: Case) -> str:
    """Return the group, if the shape alone does not tell it."""
    return "" if case.group in ("one token", "no past", "past", "left padding") else case.group


def _gate(gate: Gate, paint: Paint) -> tuple[str, ...]:
    mark = paint("passed", "good") if gate.passed else paint("FAILED", "error")
    figures = f"{number(gate.value)} {'≤' if gate.passed else '>'} {number(gate.limit)}"
    return mark, gate.name, figures, shown(gate.sentence, 400)


def number(value: float | None) -> str:
    """Return three digits, or ``none`` without a figure."""
    if value is None:
        return "none"
    return f"{value:.3g}" if value < 10000 else f"{value:.1e}"


def _verdict(report: Parity, paint: Paint, width: int | None) -> Iterator[str]:
    sentences = {
        Verdict.PASSED: _PASSED if report.quantised is None else _QUANTISED_PASSED,
        Verdict.FAILED: "failed: " + "; ".join(gate.name for gate in report.gates if not gate.passed),
        Verdict.NOT_RUN: f"not run: {shown(report.reason, 400)}",
    }[report.verdict]
    yield from (paint(line, _STYLES[report.verdict]) for line in wrapped(sentences, "", width))
    if report.reason and report.verdict is Verdict.FAILED:
        yield from wrapped(f"cause: {shown(report.reason, 400)}", "", width)
