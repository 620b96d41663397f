"""A parity report as one page without other files: tables, and the error distributions as inline SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from tieconv.checkpoint.results.parity import Case, Gate, Identity, Lost, Parity, Verdict
from tieconv.reporters.html.parity_plot import gate_bar, plot
from tieconv.reporters.html.printing import PRINT
from tieconv.reporters.text.parity_text import facts, number
from tieconv.text import count, shown

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --paper: #ffffff; --soft: #5b6675; --line: #d8dee6; --wash: #f4f6f9;
  --good: #1a7f4b; --bad: #c22f3d; --warn: #9a6700; --graph: #0b62c4; --floor: #8a94a3; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e9f0; --paper: #12161c; --soft: #9aa6b5; --line: #2c3440;
  --wash: #1a2028; --good: #4cc38a; --bad: #ff7b86; --warn: #e2b340; --graph: #6cb0ff; --floor: #7a8696; } }
* { box-sizing: border-box; }
body { margin: 0; font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
main { max-width: 64rem; margin: 0 auto; padding: 1.25rem 1rem 4rem; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: 1rem; margin: 0 0 .2rem; } p { margin: .3rem 0 .8rem; max-width: 46rem; overflow-wrap: anywhere; }
.soft { color: var(--soft); } .passed { color: var(--good); } .failed { color: var(--bad); }
.not_run { color: var(--warn); }
.verdict { border: 1px solid; border-left-width: .5rem; border-radius: .4rem; padding: .7rem 1rem; margin: 1rem 0; }
.verdict strong { font-size: 1.25rem; } .verdict span { color: var(--ink); overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .25rem 1rem; margin: 1rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; } td.r, th.r { text-align: right; } tr.case-bad td { color: var(--bad); }
.gate { display: grid; grid-template-columns: minmax(9rem, 12rem) minmax(8rem, 14rem) 1fr; gap: .2rem 1rem;
  padding: .5rem 0; border-bottom: 1px solid var(--line); align-items: center; }
.gate p { margin: 0; font-size: .92rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 1.2rem; }
figure { margin: 0; padding: .8rem; background: var(--wash); border-radius: .5rem; min-width: 0; }
figcaption { font-size: .9rem; } svg { display: block; width: 100%; height: auto; }
.key { display: inline-block; width: .9em; height: .9em; border-radius: .2em; vertical-align: -.1em; }
@media screen and (max-width: 40rem) { .gate { grid-template-columns: 1fr 1fr; } .gate p { grid-column: 1 / -1; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  figure svg text { font-size: 13px; } }
"""


def render(report: Parity) -> str:
    """Return the page."""
    body = "\n".join((*_head(report), *_plots(report), *_gates(report), *_cases(report), *_weights(report)))
    title = f"{_text(report.verdict)}: parity of {_text(report.graph)}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}{PRINT}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return escape(shown(value, 400))


def _head(report: Parity) -> Iterator[str]:
    yield f'<h1>{_text(report.graph)}</h1>\n<p class="soft">measured against {_text(report.model)}</p>'
    sentences = {
        Verdict.PASSED: "The graph holds the checkpoint's weights, and its errors are as small as those of torch.",
        Verdict.FAILED: f"{count(sum(not gate.passed for gate in report.gates), 'gate')} failed."
        + (f" Likely: {report.reason}." if report.reason else ""),
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
    yield from _unused(identity)


def _lost(kind: str, entries: Iterable[Lost]) -> Iterator[str]:
    for entry in entries:
        state = ' class="case-bad"' if entry.required else ""
        cells = (kind, entry.name, f"{list(entry.shape)} {entry.dtype}", entry.reason)
        yield f"<tr{state}>{''.join(f'<td>{_text(cell)}</td>' for cell in cells)}</tr>"


def _unused(identity: Identity) -> Iterator[str]:
    if identity.unused:
        yield f"<p>The model's class does not read: {_text(', '.join(identity.unused))}</p>"
