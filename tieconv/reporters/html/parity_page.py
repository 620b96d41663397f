"""A parity report as one page without other files: tables, and the error distributions as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from tieconv.checkpoint.results.parity import Case, Figures, Gate, Histogram, Lost, Parity, Verdict
from tieconv.package_data import data_text
from tieconv.reporters.html import page
from tieconv.reporters.text.parity_text import facts, number
from tieconv.text import count, shown

_STYLE = data_text(__name__, "parity.css")


def render(report: Parity) -> str:
    """Return the page."""
    parts = (_head, _plots, _gates, _cases, _weights, _absent)
    title = f"{_text(report.verdict)}: parity of {_text(report.graph)}"
    return page(title, _STYLE, (line for part in parts for line in part(report)))


def _text(value: object) -> str:
    return escape(shown(value, 400))


def _head(report: Parity) -> Iterator[str]:
    yield f'<h1>{_text(report.graph)}</h1>\n<p class="soft">measured against {_text(report.model)}</p>'
    sentences = {
        Verdict.PASSED: "The graph holds the checkpoint's weights, and its errors are as small as those of torch.",
        Verdict.FAILED: f"{count(sum(not gate.passed for gate in report.gates), 'gate')} failed."
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
        'divided by the RMS of the logits: <span class="key" style="background:var(--graph)"></span> the graph, '
        '<span class="key" style="background:var(--floor)"></span> torch in the same precision. '
        "A correct graph matches torch. A fault moves it to the right.</p>"
    )
    figures = []
    for histogram in report.histograms:
        cases = [case for case in report.cases if case.group == histogram.group and case.graph and case.floor]
        caption = f"<figcaption><h3>{_text(histogram.group)}</h3>{_sentence(cases)}</figcaption>"
        figures.append(f"<figure>{caption}{plot(histogram, cases)}</figure>")
    yield f'<div class="plots">{"".join(figures)}</div>'


def _sentence(cases: list[Case]) -> str:
    worst = max((case.ratio or 0.0 for case in cases), default=0.0)
    positions = sum(case.graph.positions for case in cases if case.graph)
    return f"{count(len(cases), 'case')}, {count(positions, 'position')}; RMS ratio at most {number(worst)}."


def _gates(report: Parity) -> Iterator[str]:
    if report.gates:
        yield "<h2>Gates</h2>\n<p>Every gate must pass. The mark on a bar is its limit.</p>"
        yield "".join(map(_gate, report.gates))


def _gate(gate: Gate) -> str:
    state = "passed" if gate.passed else "failed"
    name = _text(gate.name.replace("_", " "))
    sign = "≤" if gate.passed else "&gt;"
    return (
        f'<div class="gate"><div><span class="{state}">{state}</span> {name}</div>'
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
        return f'<tr class="case-bad">{cells}<td colspan="7">{_text(case.error)}</td></tr>'
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


# The plots of a parity report, drawn by hand as SVG in the page's own colours.

_WIDTH, _HEIGHT = 420, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 8, 8, 30, 40
_RMS_GATE = 2.0


def plot(histogram: Histogram, cases: Sequence[Case]) -> str:
    """Draw both distributions on one logarithmic axis, with the graph's RMS error and the gate, 2 × torch's."""
    # The range of bins with values, with one more bin on each side.
    held = [i for i, pair in enumerate(zip(histogram.graph, histogram.floor, strict=True)) if any(pair)]
    # Bin 0 holds exact zeros, and must not stretch the axis.
    inner = [i for i in held if i] or [0]
    first, end = max(min(inner) - 1, 0), min(max(inner) + 2, len(histogram.graph))
    scale = _Scale(histogram, first, end)
    rms = _rms([case.floor for case in cases if case.floor])
    parts = [
        *_axis(histogram, scale, first, end),
        f'<path d="{scale.line(histogram.floor)}Z" fill="var(--floor)" fill-opacity=".45"/>',
        f'<path d="{scale.line(histogram.graph)}" fill="none" stroke="var(--graph)" stroke-width="2"/>',
        *_mark(scale, rms * _RMS_GATE, "gate: 2 × torch's RMS", "var(--bad)", 12),
        *_mark(scale, _rms([case.graph for case in cases if case.graph]), "graph's RMS", "var(--graph)", 26),
    ]
    label = f"Distribution of errors, {histogram.group}: graph and torch in the same precision"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def gate_bar(gate: Gate) -> str:
    """Draw the value as a bar and the limit as a mark. Returns an empty text for a gate without a value or limit."""
    if gate.value is None or not gate.limit:
        return ""
    share = min(gate.value / gate.limit, 1.5) if math.isfinite(gate.value) else 1.5
    colour = "var(--good)" if gate.passed else "var(--bad)"
    return (
        '<svg viewBox="0 0 150 10" preserveAspectRatio="none" aria-hidden="true" style="height:.6rem">'
        '<rect x="0" y="2" width="150" height="6" fill="var(--line)"/>'
        f'<rect x="0" y="2" width="{100 * share:.1f}" height="6" fill="{colour}"/>'
        '<rect x="99" y="0" width="2" height="10" fill="var(--ink)"/></svg>'
    )


class _Scale:
    """The map from bins and shares to the picture's coordinates."""

    def __init__(self, histogram: Histogram, first: int, end: int) -> None:
        self.histogram, self.first, self.end = histogram, first, end
        totals = [sum(counts) or 1 for counts in (histogram.graph, histogram.floor)]
        pairs = zip((histogram.graph, histogram.floor), totals, strict=True)
        self.most = max(max(counts[first:end], default=0) / total for counts, total in pairs) or 1.0

    def x(self, position: float) -> float:
        """Return the coordinate of a bin's left edge."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (position - self.first) / max(self.end - self.first, 1)

    def at(self, value: float) -> float:
        """Return the coordinate of a relative error, inside the picture."""
        position = (math.log10(value) - self.histogram.start) / self.histogram.width
        return self.x(min(max(position, self.first), self.end))

    def line(self, counts: Sequence[int]) -> str:
        total = sum(counts) or 1
        bottom = _HEIGHT - _BOTTOM
        steps = [f"M{self.x(self.first):.1f} {bottom}"]
        for i in range(self.first, self.end):
            y = bottom - (bottom - _TOP) * counts[i] / total / self.most
            steps.append(f"L{self.x(i):.1f} {y:.1f}L{self.x(i + 1):.1f} {y:.1f}")
        return "".join((*steps, f"L{self.x(self.end):.1f} {bottom}"))


def _axis(histogram: Histogram, scale: _Scale, first: int, end: int) -> Iterator[str]:
    bottom = _HEIGHT - _BOTTOM
    yield f'<path d="M{_LEFT} {bottom}H{_WIDTH - _RIGHT}" stroke="var(--soft)"/>'
    per_decade = round(1 / histogram.width)
    decades = [i for i in range(first, end + 1) if i % per_decade == 0]
    every = max(1, -(-len(decades) // 7))
    for i in decades[::every]:
        x, power = scale.x(i), round(histogram.start + i * histogram.width)
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="var(--soft)"/>'
        yield (
            f'<text x="{min(max(x, 18), _WIDTH - 20):.1f}" y="{bottom + 18}" text-anchor="middle" font-size="12" '
            f'fill="var(--soft)">10<tspan dy="-4" font-size="9">{power}</tspan></text>'
        )
    yield (
        f'<text x="{_WIDTH / 2}" y="{_HEIGHT - 4}" text-anchor="middle" font-size="12" fill="var(--soft)">'
        "|error| / RMS of the logits</text>"
    )


def _mark(scale: _Scale, value: float, label: str, colour: str, y: int) -> Iterator[str]:
    if not (value > 0 and math.isfinite(value)):
        return
    x = scale.at(value)
    right = x > _WIDTH / 2
    anchor = "end" if right else "start"
    yield f'<path d="M{x:.1f} {y - 4}V{_HEIGHT - _BOTTOM}" stroke="{colour}" stroke-dasharray="4 3"/>'
    yield (
        f'<text x="{x + (-4 if right else 4):.1f}" y="{y}" text-anchor="{anchor}" font-size="11" '
        f'fill="{colour}">{label}</text>'
    )


def _rms(figures: Sequence[Figures]) -> float:
    """Return the relative RMS error of several cases together, each weighted by its positions."""
    positions = sum(figure.positions for figure in figures)
    squares = sum(figure.positions * figure.relative_rms**2 for figure in figures)
    return math.sqrt(squares / positions) if positions else 0.0
