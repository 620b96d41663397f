"""A parity report as one page without other files: tables, and the error distributions as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tieconv.checkpoint.results.parity import Case, Figures, Gate, Histogram, Lost, Parity, Verdict
from tieconv.package_data import data_text
from tieconv.reporters.html import STYLE, page
from tieconv.reporters.html.analyze_page import drawn_figure
from tieconv.reporters.html.svg import Frame, Plot, Point
from tieconv.reporters.text.parity_text import facts, number, passed
from tieconv.text import count, shown

_OWN = data_text(__name__, "parity.css")


def render(report: Parity) -> str:
    """Return the page."""
    parts = (_head, _plots, _gates, _cases, _weights, _absent)
    title = f"{_text(report.verdict)}: parity of {_text(report.graph)}"
    return page(title, STYLE + _OWN, (line for part in parts for line in part(report)))


def _text(value: object) -> str:
    return escape(shown(value, 400))


def _head(report: Parity) -> Iterator[str]:
    yield f'<h1>{_text(report.graph)}</h1>\n<p class="soft">measured against {_text(report.model)}</p>'
    sentences = {
        Verdict.PASSED: f"{passed(report).capitalize()}.",
        Verdict.FAILED: f"{count(sum(gate.state == 'failed' for gate in report.gates), 'gate')} failed."
        + (f" Cause: {report.reason}." if report.reason else ""),
        Verdict.NOT_RUN: f"{report.reason}. Next: {report.hint}",
    }[report.verdict]
    name = str(report.verdict).replace("_", " ")
    yield f'<div class="verdict {report.verdict}"><strong>{name}</strong><br><span>{_text(sentences)}</span></div>'
    rows = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts(report))
    yield f"<dl>{rows}</dl>"


def _plots(report: Parity) -> Iterator[str]:
    if not report.histograms:
        return
    yield (
        "<h2>Errors</h2>\n<p>The distribution of the errors of all logits, measured against a float64 reference and "
        "divided by the RMS of the logits. A correct graph matches torch. A fault moves it to the right.</p>"
    )
    yield '<div class="plots">'
    for number_, histogram in enumerate(report.histograms):
        cases = [case for case in report.cases if case.group == histogram.group and case.graph and case.floor]
        yield from drawn_figure(error_plot(histogram, cases), f"p{number_}")
    yield "</div>"


def _sentence(cases: Sequence[Case]) -> str:
    worst = max((case.ratio or 0.0 for case in cases), default=0.0)
    positions = sum(case.graph.positions for case in cases if case.graph)
    return f"{count(len(cases), 'case')}, {count(positions, 'position')}; RMS ratio at most {number(worst)}."


def _gates(report: Parity) -> Iterator[str]:
    if report.gates:
        yield "<h2>Gates</h2>\n<p>Every gate must pass. The mark on a bar is its limit.</p>"
        yield "".join(map(_gate, report.gates))


def _gate(gate: Gate) -> str:
    name = _text(gate.name.replace("_", " "))
    sign = "&gt;" if gate.state == "failed" else "≤"
    return (
        f'<div class="gate"><div><span class="{gate.state}">{gate.state}</span> {name}</div>'
        f'<div>{gate_bar(gate)}<span class="soft">{number(gate.value)} {sign} {number(gate.limit)}</span></div>'
        f"<p>{_text(gate.sentence)}</p></div>"
    )


_COLUMNS = ("batch", "sequence", "past", "padding", "seed", "n", "relative RMS", "torch's", "ratio", "max ratio",
            "top-1", "KL")  # fmt: skip


def _cases(report: Parity) -> Iterator[str]:
    if not report.cases:
        return
    head = "".join(f'<th class="r">{name}</th>' for name in _COLUMNS)
    yield "<h2>Cases</h2>\n<p>n is the number of positions without padding. KL is their mean in nats.</p>"
    rows = "".join(map(_case, report.cases))
    yield f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _case(case: Case) -> str:
    shape = (case.batch, case.sequence, case.past, case.padding, case.seed)
    cells = _cells(shape)
    if case.graph is None or case.floor is None:
        return f'<tr class="case-bad">{cells}<td colspan="7">{_text(case.error or "not judged")}</td></tr>'
    graph = case.graph
    values = (f"{graph.positions}", f"{graph.relative_rms:.2e}", f"{case.floor.relative_rms:.2e}", number(case.ratio),
              number(case.max_ratio), f"{graph.top1:.1%}", f"{graph.kl:.1e}")  # fmt: skip
    return f"<tr>{cells}{_cells(values)}</tr>"


def _cells(values: Iterable[object]) -> str:
    return "".join(f'<td class="r">{value}</td>' for value in values)


def _weights(report: Parity) -> Iterator[str]:
    identity = report.identity
    if identity is None:
        return
    yield "<h2>Weights</h2>"
    if not identity.lost and not identity.unexplained:
        yield "<p>Every tensor is in the graph, and every matrix of the graph is in the checkpoint.</p>"
        return
    rows = "".join((*_lost("not in the graph", identity.lost), *_lost("in the graph only", identity.unexplained)))
    yield f'<div class="scroll"><table><tbody>{rows}</tbody></table></div>'
    if identity.unused:
        yield f"<p>The model's class does not read: {_text(', '.join(identity.unused))}</p>"


def _absent(report: Parity) -> Iterator[str]:
    absent = [name for name, part in (("the weights", report.identity), ("the logits", report.cases)) if not part]
    if absent:
        yield f"<h2>Not measured</h2>\n<p>Not compared: {' and '.join(absent)}.</p>"


def _lost(kind: str, entries: Iterable[Lost]) -> Iterator[str]:
    for entry in entries:
        state = ' class="case-bad"' if entry.required else ""
        cells = (kind, entry.name, f"{list(entry.shape)} {entry.dtype}", entry.reason)
        yield f"<tr{state}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"


# The plots of a parity report.

_RMS_GATE = 2.0
_MOST_TICKS = 7
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LEGEND = (("c1", "the graph"), ("c0", "torch in the same precision"))
_MARKS = (("ceiling", "RMS of the graph"), ("floor", "gate: 2 × RMS of torch"))


def error_plot(histogram: Histogram, cases: Sequence[Case]) -> Plot:
    """Return both distributions on one logarithmic axis, with the graph's RMS error and the gate, 2 × torch's."""
    # The range of bins with values, with one more bin on each side.
    held = [i for i, pair in enumerate(zip(histogram.graph, histogram.floor, strict=True)) if any(pair)]
    # Bin 0 holds exact zeros, and must not stretch the axis.
    inner = [i for i in held if i] or [0]
    first, end = max(min(inner) - 1, 0), min(max(inner) + 2, len(histogram.graph))
    graph, torch = ([value / (sum(counts) or 1) for value in counts] for counts in (histogram.graph, histogram.floor))
    highest = max((*graph[first:end], *torch[first:end])) or 1.0
    label = f"Distribution of errors, {histogram.group}: graph and torch in the same precision"
    across = "|error| / RMS of the logits"
    frame = Frame(label, (first, end), (0.0, highest), across, "share", _decades(histogram, first, end), 210)
    frame.band([(first, 0.0), (end, 0.0)], _steps(torch, first, end), "c0")
    frame.line(_steps(graph, first, end), "c1")
    sides = ([case.graph for case in cases if case.graph], [case.floor for case in cases if case.floor])
    errors = _rms(sides[0]), _rms(sides[1]) * _RMS_GATE
    for (kind, _), error in zip(_MARKS, errors, strict=True):
        if error > 0 and math.isfinite(error):
            position = (math.log10(error) - histogram.start) / histogram.width
            frame.mark(min(max(position, first), end), kind)
    return Plot(histogram.group, frame.svg(), _sentence(cases), _LEGEND, marks=_MARKS)


def _decades(histogram: Histogram, first: int, end: int) -> list[tuple[float, str]]:
    """Return the powers of ten on the axis, at most seven at equal distances."""
    per_decade = round(1 / histogram.width)
    decades = [i for i in range(first, end + 1) if i % per_decade == 0]
    powers = (
        (i, round(histogram.start + i * histogram.width)) for i in decades[:: -(-len(decades) // _MOST_TICKS) or 1]
    )
    return [(float(i), f"10{str(power).translate(_RAISED)}") for i, power in powers]


def _steps(shares: Sequence[float], first: int, end: int) -> list[Point]:
    """Return the outline of the bars of a histogram."""
    return [(float(edge), shares[i]) for i in range(first, end) for edge in (i, i + 1)]


def gate_bar(gate: Gate) -> str:
    """Draw the value as a bar and the limit as a mark. Returns an empty text for a gate without a value or limit."""
    if gate.value is None or not gate.limit or gate.state == "not judged":
        return ""
    share = min(gate.value / gate.limit, 1.5) if math.isfinite(gate.value) else 1.5
    colour = "var(--c2)" if gate.passed else "var(--c4)"
    return (
        '<svg viewBox="0 0 150 10" preserveAspectRatio="none" aria-hidden="true" style="height:.6rem">'
        '<rect x="0" y="2" width="150" height="6" fill="var(--rule)"/>'
        f'<rect x="0" y="2" width="{100 * share:.1f}" height="6" fill="{colour}"/>'
        '<rect x="99" y="0" width="2" height="10" fill="var(--ink)"/></svg>'
    )


def _rms(figures: Sequence[Figures]) -> float:
    """Return the relative RMS error of several cases together, each weighted by its positions."""
    positions = sum(figure.positions for figure in figures)
    squares = sum(figure.positions * figure.relative_rms**2 for figure in figures)
    return math.sqrt(squares / positions) if positions else 0.0
