"""`tieconv fleet report`: one page about many models, with a search that needs no network."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from tieconv.checkpoint.finding import REVIEW_FIRST
from tieconv.checkpoint.results.checked import CheckedModel
from tieconv.checkpoint.results.fleet import UNREAD, Change, FleetReport, RuleCount, Since
from tieconv.checks.registry import TITLES
from tieconv.package_data import data_text
from tieconv.reporters.html import STYLE, page
from tieconv.reporters.html.svg import escape
from tieconv.reporters.text.fleet_text import headline
from tieconv.text import count, size
from tieconv.version import VERSION

MOST_ROWS = 2000
"""The most models, and the most changes of each kind, on the page. The tables and JSON have all."""

_SCRIPT = """\
const box=document.getElementById('search'),shown=document.getElementById('shown');
const rows=[...document.querySelectorAll('#models tbody tr')].map(row=>[row,row.textContent.toLowerCase()]);
box.addEventListener('input',()=>{const words=box.value.toLowerCase().split(/\\s+/).filter(Boolean);let n=0;
for(const [row,text] of rows){const fits=words.every(word=>text.includes(word));row.hidden=!fits;n+=fits}
shown.textContent=words.length?n+' of '+rows.length:''});
"""
_OWN = data_text(__name__, "fleet.css")


def render(report: FleetReport) -> str:
    """Return the page. Every text is escaped. The policy of the page allows no script but the search."""
    parts = (*_head(report), *_rules(report), *_since(report.since), *_worst(report))
    title, end = f"{escape(report.directory)} – tieconv fleet", f"<footer>tieconv {escape(VERSION)}</footer>"
    return page(title, STYLE + _OWN, (*parts, end), _SCRIPT)


def _head(report: FleetReport) -> Iterator[str]:
    when = datetime.fromtimestamp(report.finished, UTC).strftime("%Y-%m-%d %H:%M UTC") if report.finished else ""
    yield f"<h1>fleet <code>{escape(report.directory)}</code>{f', {when}' if when else ''}</h1>"
    yield f'<div class="verdict"><p>{escape(headline(report))}</p></div>'
    figures = [
        ("models", f"{len(report.checked.models):,}"),
        ("failed", f"{report.failed:,}"),
        ("of them not read", f"{report.unread:,}"),
        *([("not compared; use --depth full", f"{report.uncompared:,}")] if report.uncompared else []),
        ("in all files", size(report.bytes)),
    ]
    if report.since:
        figures += [(state, f"{len(report.since.of(state)):,}") for state in ("new", "fixed", "still")]
    yield '<div class="counts">' + "".join(f"<div><b>{value}</b>{name}</div>" for name, value in figures) + "</div>"


def _rules(report: FleetReport) -> Iterator[str]:
    if not report.rules:
        return
    most = max(max(rule.models, rule.before or 0) for rule in report.rules)
    before = '<th class="n">before</th>' if report.since else ""
    legend = " The grey bar is the earlier run." if report.since else ""
    yield f"<h2>Rules</h2>\n<p>How many models have a finding that counts.{legend}</p>"
    head = f'<th>rule</th><th>level</th><th class="n">models</th>{before}<th></th>'
    yield f'<table class="rows"><thead><tr>{head}</tr></thead>'
    yield f"<tbody>{''.join(_rule(rule, most) for rule in report.rules)}</tbody></table>"


def _rule(rule: RuleCount, most: int) -> str:
    title, level = escape(TITLES.get(rule.rule, rule.rule)), escape(rule.level)
    bars = f'<div><i class="share" style="width:{100 * rule.models / most:.1f}%"></i></div>'
    number = ""
    if rule.before is not None:
        number = f'<td class="n">{rule.before:,}</td>'
        bars += f'<div><i class="share before" style="width:{100 * rule.before / most:.1f}%"></i></div>'
    return (
        f'<tr><td class="k">{title}</td><td class="k {level}">{level}</td>'
        f'<td class="n">{rule.models:,}</td>{number}<td class="bars">{bars}</td></tr>'
    )


def _since(since: Since | None) -> Iterator[str]:
    if since is None:
        return
    yield f"<h2>Since {escape(since.directory)}</h2>"
    yield f"<p>{count(since.added, 'model')} added, {count(since.removed, 'model')} removed.</p>"
    for state in ("new", "fixed"):
        changes = since.of(state)
        if changes:
            rows = "".join(map(_change, changes[:MOST_ROWS]))
            yield f'<h3 class="{state}">{len(changes):,} {state}</h3>'
            yield f'<table class="rows"><tbody>{rows}</tbody></table>'
            yield from _more(len(changes))


def _change(change: Change) -> str:
    return (
        f'<tr><td>{escape(change.source)}</td><td class="k {escape(change.level)}">{escape(change.rule)}</td>'
        f"<td>{escape(change.message)}</td></tr>"
    )


def _worst(report: FleetReport) -> Iterator[str]:
    worst = report.worst
    if not worst:
        return
    yield "<h2>Models that fail, the worst first</h2>"
    yield '<p><input type="search" id="search" placeholder="model, rule or message" aria-label="Search the models"> '
    yield '<span id="shown" role="status"></span></p>'
    yield '<table class="rows" id="models"><thead><tr><th>model</th><th>rules</th><th>findings</th></tr></thead><tbody>'
    yield from (_model(report, model) for model in worst[:MOST_ROWS])
    yield "</tbody></table>"
    yield from _more(len(worst))


def _more(number: int) -> Iterator[str]:
    if number > MOST_ROWS:
        yield f"<p>And {number - MOST_ROWS:,} more: `tieconv fleet report --json` lists all.</p>"


def _command(advice: str) -> str:
    first, tied, command = advice.rpartition("; if tied: ")
    command, review, _ = command.partition(f" {REVIEW_FIRST}")
    return f"{escape(first + tied)}<code>{escape(command, len(command))}</code>{escape(review)}"


def _model(report: FleetReport, model: CheckedModel) -> str:
    if model.failure is not None:
        rules, texts = f'<span class="error">{UNREAD}</span>', (model.failure.message, model.failure.hint)
        messages = "<br>".join(escape(text, 1000) for text in texts if text)
    else:
        counting = report.counting(model)
        rules = " ".join(f'<span class="{entry.level}">{escape(entry.rule)}</span>' for entry in counting)
        advised: set[str] = set()
        lines = []
        for finding in counting:
            lines.append(escape(finding.message, 1000))
            if finding.next_step and finding.next_step not in advised:
                lines.append(_command(finding.next_step))
            advised.add(finding.next_step)
        messages = "<br>".join(lines)
    return f'<tr><td>{escape(model.source)}</td><td class="k">{rules}</td><td>{messages}</td></tr>'
