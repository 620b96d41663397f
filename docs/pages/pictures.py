"""Pictures of a terminal with what the commands print today, as SVG without scripts, fonts or addresses of others."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path

from click.testing import CliRunner
from rich.style import Style
from rich.text import Text

from tieconv.cli import main

WIDTH, CELL, LINE, EDGE = 100, 8.0, 18, 14
"""Columns, and the pixels of a column, of a line and of the edge."""
MODEL = "fixtures/models/llama-duplicated"
REPAIR = ("inspect model", "retie model -o repaired", "check repaired")
SECONDS = 7
"""How long the recording shows each command."""
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
    with tempfile.TemporaryDirectory() as home:
        shutil.copytree(MODEL, Path(home) / "model")
        screens = [_screen(command, Path(home)) for command in REPAIR]
    return _drawing(screens, "Terminal: tieconv inspects a model, drops the copy of its head, and finds no fault")


def _screen(command: str, home: Path) -> list[Text]:
    """The command as it is typed, and the lines that it prints, folded at `WIDTH`."""
    words = [str(home / word) if word in ("model", "repaired") else word for word in shlex.split(command)]
    result = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": str(WIDTH)}).invoke(main, words, color=True)
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    printed = result.output.replace(f"{home}/", "")
    lines = [Text.assemble((f"$ tieconv {command}", Style(bold=True)))]
    for text in printed.rstrip().split("\n"):
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
