"""Pictures of what the commands print and write today, as SVG without scripts, fonts or addresses of others."""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

from rich.style import Style
from rich.text import Text

import tieconv
from pages import outputs
from tieconv.api.fleet import fleet_check
from tieconv.gate.fleet_report import fleet_report
from tieconv.gate.fleet_runs import read_run
from tieconv.gate.policy import make_policy
from tieconv.gate.settings import Settings
from tieconv.reporters.html import analyze_page, fleet_page

WIDTH, CELL, LINE, EDGE = 100, 8.0, 18, 14
"""Columns, and the pixels of a column, of a line and of the edge."""
MODELS = Path("fixtures/models").resolve()
REPAIR = ("inspect model", "retie model -o repaired", "check repaired")
SECONDS = 7
"""How long the recording shows each command."""
FLEET = ("llama-diverged", "llama-duplicated", "llama-headless-config", "llama-tied", "t5")
_COLOURS = {1: "red", 2: "green", 3: "yellow"}
"""The colours of a terminal that tieconv uses, by their numbers."""
_STYLE = """\
text{font:13px ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#24292f;white-space:pre}
.back{fill:#f6f8fa;stroke:#d0d7de}.bold{font-weight:600}.yellow{fill:#8a5300}.red{fill:#b3151e}.green{fill:#116329}
.dim{fill:#57606a}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117;stroke:#30363d}.yellow{fill:#e3b341}
.red{fill:#ff7b72}.green{fill:#56d364}.dim{fill:#9198a1}}
"""


def repair() -> str:
    """A recording: a model is inspected, repaired and checked. Each screen stays for `SECONDS`."""
    with _models(model="llama-duplicated"):
        screens = [_screen(command) for command in REPAIR]
    return _drawing(screens, "Terminal: tieconv inspects a model, drops the copy of its head, and reports no finding")


def inspect() -> str:
    """A terminal: a model whose head differs, with what each loader makes of it."""
    with _models(model="llama-diverged"):
        screen = _screen("inspect model --for vllm,llama.cpp")
    return _drawing(
        [screen], "Terminal: tieconv inspects a model whose head differs, and says what vLLM and llama.cpp make of it"
    )


def analyze() -> str:
    """The start of the page of `tieconv analyze --html`."""
    with _models(model="llama-diverged"):
        page = analyze_page.render_analysis(tieconv.analyze("model"))
    page = re.sub(r"<details.*", "</section></main>", page, count=1, flags=re.DOTALL)
    return _page(page, 1060, "Page of tieconv analyze: may the embedding and the head be one tensor? 3 rows differ")


def fleet() -> str:
    """The page of `tieconv fleet report` about five models."""
    with _models(**{f"models/{name}": name for name in FLEET}):
        fleet_check([f"models/{name}" for name in FLEET], "runs", part=(1, 1), jobs=1)
        report = replace(fleet_report(read_run("runs"), make_policy(Settings()), None), finished=0.0)
    return _page(fleet_page.render(report), 800, "Page of tieconv fleet report: three models fail, with their repairs")


@contextlib.contextmanager
def _models(**copies: str) -> Iterator[None]:
    """Work in an empty directory with copies of the toy models."""
    with tempfile.TemporaryDirectory() as home, contextlib.chdir(home):
        for path, name in copies.items():
            shutil.copytree(MODELS / name, path)
        yield


def _screen(command: str) -> list[Text]:
    """The command as it is typed, and the lines that it prints, folded at `WIDTH`."""
    printed = outputs.printed(shlex.split(command), env={"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}, color=True)
    lines = [Text.assemble((f"$ tieconv {command}", Style(bold=True)))]
    for text in printed.split("\n"):
        line = Text.from_ansi(text)
        while line.cell_len > WIDTH:
            at = line.plain.rfind(" ", 0, WIDTH) + 1 or WIDTH
            lines.append(line[:at])
            line = Text("    ") + line[at:]
        lines.append(line)
    return lines


def _drawing(screens: Sequence[list[Text]], title: str) -> str:
    height = max(map(len, screens)) * LINE + 2 * EDGE
    width = WIDTH * CELL + 2 * EDGE
    style, parts = _STYLE, []
    count = len(screens)
    if count > 1:
        # A reader who wants no motion sees the first screen.
        style += f"g{{opacity:0}}g:first-of-type{{opacity:1}}\n@media(prefers-reduced-motion:no-preference){{\
g{{animation:show {count * SECONDS}s infinite step-end}}\
@keyframes show{{0%{{opacity:1}}{100 / count:.2f}%{{opacity:0}}}}\
g:first-of-type{{opacity:0}}}}\n"
    for number, lines in enumerate(screens):
        parts += [
            f'<g style="animation-delay:{number * SECONDS}s">',
            *(_line(line, row) for row, line in enumerate(lines) if line.plain),
            "</g>",
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n"
        f'<rect class="back" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _line(line: Text, row: int) -> str:
    """One row, a `tspan` for each style. ``textLength`` keeps the columns with any font."""
    spans = []
    for start, end in _runs(line):
        styles = [span.style for span in line.spans if span.start <= start < span.end]
        words = {word for style in styles if isinstance(style, Style) for word in _classes(style)}
        text = escape(line.plain[start:end])
        spans.append(f'<tspan class="{" ".join(sorted(words))}">{text}</tspan>' if words else text)
    y = EDGE + row * LINE + 13
    return (
        f'<text x="{EDGE}" y="{y}" textLength="{len(line.plain) * CELL:g}" xml:space="preserve">'
        + "".join(spans)
        + "</text>"
    )


def _classes(style: Style) -> list[str]:
    colour = _COLOURS.get(style.color.number or 0, "") if style.color else ""
    return [word for word in (colour, "bold" if style.bold else "", "dim" if style.dim else "") if word]


def _runs(line: Text) -> list[tuple[int, int]]:
    edges = sorted({0, len(line.plain), *(edge for span in line.spans for edge in (span.start, span.end))})
    return [*pairwise(edges)]


def _page(page: str, height: int, title: str) -> str:
    """The page itself inside an SVG, which a browser draws: no picture of it can be out of date."""
    style = "".join(re.findall(r"<style>(.*?)</style>", page, re.DOTALL))
    style = style.replace("(max-width:40rem)", "(max-width:0)")  # a small picture is not a small page
    writer = _Xhtml()
    writer.feed(page[page.index("<main>") : page.index("</main>")] + "</main>")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1120 {height}" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>\n{escape(style, quote=False)}</style>\n"
        f'<foreignObject width="1120" height="{height}"><body xmlns="http://www.w3.org/1999/xhtml" '
        f'style="min-height:{height}px">{"".join(writer.parts)}</body></foreignObject>\n</svg>\n'
    )


class _Xhtml(HTMLParser):
    """Writes HTML as XML: every element is closed, and every attribute has a value."""

    _VOID = ("br", "input")

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"viewbox": "viewBox", "preserveaspectratio": "preserveAspectRatio", "pathlength": "pathLength"}
        values = "".join(f' {names.get(name, name)}="{escape(value or "")}"' for name, value in attrs)
        space = ' xmlns="http://www.w3.org/2000/svg"' if tag == "svg" else ""
        self.parts.append(f"<{tag}{space}{values}{'/' if tag in self._VOID else ''}>")

    def handle_endtag(self, tag: str) -> None:
        self.parts.append("" if tag in self._VOID else f"</{tag}>")

    def handle_data(self, data: str) -> None:
        self.parts.append(escape(data, quote=False))
