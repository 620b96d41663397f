"""Render a plan for graphs as text."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.graph_plan import GraphOutcome, GraphPlan, SessionProof, SharedMatrix
from tieconv.reporters.text.columns import Paint, columns, plain, wrapped
from tieconv.text import count, shown, size

_SHOWN = 4


def render(outcome: GraphOutcome, paint: Paint = plain, width: int | None = None) -> str:
    """Return the plan without a newline at the end. Notes are wrapped to ``width`` columns if it is given."""
    plan = outcome.plan
    lines = wrapped(f"{paint(plan.command, 'heading')} {shown(plan.source)}: {plan.summary}", "", width)
    lines += columns(_rows(plan), width=width)
    for note in plan.notes:
        first, *rest = wrapped(shown(note, 400), "  note: ", width)
        lines += [first.replace("note", paint("note", "warning"), 1), *rest]
    return "\n".join(lines)


def render_proofs(outcome: GraphOutcome, paint: Paint = plain, width: int | None = None) -> str:
    """Return a line for each session of the written graphs with what it holds, or an empty text without sessions."""
    lines: list[str] = []
    for proof in outcome.proofs:
        if proof.proved:
            held = ", ".join(f"{shown(name)} {_times(copies)}" for name, copies in proof.copies)
            lines.append(f"  {paint('proved', 'good')}: a session of {shown(proof.graph)} holds {held}")
            lines += [
                f"  note: the CPU provider also holds a copy of {shown(name)} in a wider type, to compute with it"
                for name in proof.casts
            ]
            lines += _runs(proof, paint, width)
        else:
            first, *rest = wrapped(shown(f"{proof.graph}: {proof.why_not}", 400), "  not proved: ", width)
            lines += [first.replace("not proved", paint("not proved", "warning"), 1), *rest]
    return "\n".join(lines)


def _runs(proof: SessionProof, paint: Paint, width: int | None) -> list[str]:
    """Return what was run in sessions of both graphs, and what was not."""
    runs = proof.runs
    if runs is None:
        return []
    lines: list[str] = []
    if runs.equal:
        sentence = f"{count(runs.equal, 'run')} gave the same bits as the source, on 1 and 2 threads"
        first, *rest = wrapped(f"{proof.graph}: {sentence}: {', '.join(runs.cases)}", "  proved: ", width)
        lines += [first.replace("proved", paint("proved", "good"), 1), *rest]
    for word, cases in (("other bits", runs.differing), ("not run", runs.not_run)):
        if cases:
            more = f"; and {len(cases) - _SHOWN:,} more" if len(cases) > _SHOWN else ""
            first, *rest = wrapped(
                f"{proof.graph}: {'; '.join(map(shown, cases[:_SHOWN]))}{more}", f"  {word}: ", width
            )
            lines += [first.replace(word, paint(word, "warning"), 1), *rest]
    return lines


def _times(copies: int) -> str:
    return "once" if copies == 1 else f"{copies} times"


def _rows(plan: GraphPlan) -> Iterator[tuple[str, ...]]:
    if len(plan.names) > 1:
        yield from (("graph", shown(name), plan.answer(name)) for name in plan.names)
    for matrix in plan.matrices:
        if matrix.done:
            yield from _matrix(plan, matrix)
    for name in plan.changed:
        yield "rewrite", shown(name), "graph"
    yield "on disk", size(plan.bytes_before), f"becomes {size(plan.bytes_after)}"
    before = sum(matrix.held_before for matrix in plan.matrices)
    after = sum(matrix.held_after for matrix in plan.matrices)
    if before != after:
        yield "in session", size(before), f"for these matrices becomes {size(after)}"
    figures = f"{size(plan.bytes_read)} read, {size(plan.bytes_written)} written, {size(plan.bytes_linked)} linked"
    yield "bytes", figures


def _matrix(plan: GraphPlan, matrix: SharedMatrix) -> Iterator[tuple[str, ...]]:
    form = f"{matrix.dtype} {list(matrix.shape)}"
    own = matrix.stored_before if plan.command == "untie" else matrix.stored_after
    yield "keep", shown(matrix.initializer), f"{size(own)}, {form}"
    for name in matrix.dropped:
        if plan.command == "untie":
            yield "add", shown(name), f"a transposed copy of {shown(matrix.initializer)}"
        else:
            yield "drop", shown(name), f"copy of {shown(matrix.initializer)} ({', '.join(matrix.kinds)})"
    if matrix.nodes:
        head_form = f", head as {matrix.form}" if matrix.form else ""
        yield "rewrite", count(len(matrix.nodes), "node"), f"{shown(', '.join(matrix.nodes))}{head_form}"
