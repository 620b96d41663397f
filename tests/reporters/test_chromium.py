"""Both pages in a real browser, on a phone and on paper: nothing overflows, is hidden, or asks the network."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from tests.patience import HANGS
from tests.reporters.reports import full
from tests.reporters.test_layout import case, histogram
from tieconv.checkpoint.results.parity import Gate, Parity, ProviderUse, Verdict
from tieconv.reporters.html import analyze_page, parity_page
from tieconv.reporters.html.analyze_page import render_analysis as render

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install it to see the report drawn")

_PROBE = """<!doctype html><body style="margin:0"><iframe id="f" style="width:{width}px;height:900px;border:0"
srcdoc="{page}"></iframe><pre id="found"></pre><script>
f.onload=()=>{{const d=f.contentDocument,e=d.documentElement,s=f.contentWindow.getComputedStyle(d.body);
for(const x of d.querySelectorAll('details'))x.open=true;
const seen=x=>x.getBoundingClientRect().height>0;
const wide=[...d.querySelectorAll('*')].filter(x=>x.getBoundingClientRect().right>{width}+1).map(x=>x.tagName);
found.textContent=JSON.stringify({{scroll:e.scrollWidth,wide,ground:s.backgroundColor,
small:Math.min(...[...d.querySelectorAll('svg text')].map(x=>x.getBoundingClientRect().height).filter(x=>x)),
drawn:[...d.querySelectorAll('svg')].filter(seen).length,switched:[...d.querySelectorAll('.switch label')].map(x=>{{
x.click();return [...d.querySelectorAll('.shade')].map(seen).map(Number).join('')}}),tall:e.scrollHeight}})}}
</script>"""


def chromium(tmp: Path, *arguments: str) -> str:
    assert CHROMIUM is not None
    line = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--virtual-time-budget=3000",
        ),
        f"--user-data-dir={tmp / 'profile'}",
    ]
    done = subprocess.run([*line, *arguments], capture_output=True, text=True, timeout=HANGS, check=True)
    return done.stdout


def probe(tmp: Path, width: int, *arguments: str) -> dict[str, object]:
    page = tmp / "probe.html"
    page.write_text(_PROBE.format(width=width, page=html.escape(render(full()))), "utf-8")
    dom = chromium(tmp, "--window-size=1300,900", *arguments, "--dump-dom", page.as_uri())
    found = re.search(r'<pre id="found">(.+?)</pre>', dom)
    assert found is not None
    answer: dict[str, object] = json.loads(html.unescape(found[1]))
    return answer


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_overflows(tmp_path: Path, width: int) -> None:
    """At a phone's and a desk's width nothing is wider than the screen, and text in plots can be read."""
    found = probe(tmp_path, width)
    assert found["scroll"] == width and found["wide"] == []
    assert found["drawn"] == 10
    assert found["switched"] == ["100", "010", "001"]
    small = found["small"]
    assert isinstance(small, (int, float)) and small >= 10


@pytest.mark.slow
def test_light_and_dark(tmp_path: Path) -> None:
    """The page follows the reader's colour scheme."""
    light = probe(tmp_path, 360, "--blink-settings=preferredColorScheme=1")["ground"]
    dark = probe(tmp_path, 360, "--blink-settings=preferredColorScheme=0")["ground"]
    assert (light, dark) == ("rgb(246, 246, 243)", "rgb(18, 20, 22)")


@pytest.mark.slow
def test_drawn_without_network(tmp_path: Path) -> None:
    """A screenshot is not blank, and the browser's own log has no request by the page (but one by a page that asks)."""
    page, shot, log = tmp_path / "report.html", tmp_path / "shot.png", tmp_path / "net.json"
    page.write_text(render(full()), "utf-8")
    chromium(tmp_path, "--window-size=1200,2400", f"--log-net-log={log}", f"--screenshot={shot}", page.as_uri())
    assert drawn_share(shot.read_bytes()) > 0.02
    assert requests_of_pages(log) == 0
    page.write_text('<img src="http://127.0.0.1:9/x.png">', "utf-8")
    chromium(tmp_path, f"--log-net-log={log}", f"--screenshot={shot}", page.as_uri())
    assert requests_of_pages(log) > 0
    assert drawn_share(shot.read_bytes()) < 0.02


def requests_of_pages(log: Path) -> int:
    """Requests over the network that a page began; those of the browser itself have no origin."""
    return len(re.findall(r'"initiator":"(?!not an origin)[^"]*"', log.read_text("utf-8", "replace")))


def drawn_share(png: bytes) -> float:
    """The share of bytes that differ from their neighbours': the filters of PNG leave 0 where nothing is drawn."""
    data, place = b"", 8
    while place < len(png):
        size, kind = int.from_bytes(png[place : place + 4]), png[place + 4 : place + 8]
        if kind == b"IDAT":
            data += png[place + 8 : place + 8 + size]
        place += size + 12
    raw = zlib.decompress(data)
    return 1 - raw.count(0) / len(raw)


PARITY = Parity(
    Verdict.PASSED,
    "model.onnx",
    "model",
    ProviderUse("cpu", "CPUExecutionProvider"),
    gates=(Gate("rms ratio", 1.0, 2.0, True, "RMS error of the graph over that of torch"),),
    cases=(case(1e-6, 1e-6),),
    histograms=(histogram(-8.0, 5, 20),),
)
PAGES = {"analyze": analyze_page.render_analysis(full()), "parity": parity_page.render(PARITY)}
_PAPER_PROBE = """<pre id="found"></pre><script>
const style=(x,name)=>getComputedStyle(x)[name],all=s=>[...document.querySelectorAll(s)];
const before=all('figure,table,.plots,.gate').flatMap(x=>{const found=[];
for(let y=x.closest('.plots,.scroll,details,.gate');y&&(y=y.previousElementSibling)&&/^(H2|P)$/.test(y.tagName);)
found.push(y.tagName+' '+style(y,'breakAfter'));return found});
found.textContent=JSON.stringify({
whole:[...new Set(all('figure,.verdict,.gate,tr,p').map(x=>style(x,'breakInside')))],
headings:[...new Set(all('h2,h3,summary').map(x=>style(x,'breakAfter')))],before:[...new Set(before)],
closed:all('details:not([open]) table').map(x=>x.getBoundingClientRect().height>0),
ground:style(document.body,'backgroundColor'),ink:style(document.body,'color'),
switches:all('.switch label').map(x=>x.getBoundingClientRect().height>0)})</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("name", PAGES)
def test_the_printed_page(name: str, scheme: int, tmp_path: Path) -> None:
    """The rules for paper, applied to a screen to be measured: on a dark system too the paper is white."""
    page = PAGES[name].replace("@media print", "@media all").replace("@media screen", "@media print")
    page = re.sub(r"<meta http-equiv[^>]*>", "", page)  # the page itself runs no script
    path = tmp_path / "page.html"
    path.write_text(page.replace("</body>", f"{_PAPER_PROBE}</body>"), "utf-8")
    dom = chromium(
        tmp_path,
        f"--blink-settings=preferredColorScheme={scheme}",
        "--window-size=720,1000",
        "--dump-dom",
        path.as_uri(),
    )
    answer = re.search(r'<pre id="found">(.+?)</pre>', dom)
    assert answer is not None
    found = json.loads(html.unescape(answer[1]))
    assert found["whole"] == ["avoid"] and found["headings"] == ["avoid"]
    assert found["before"] and set(found["before"]) <= {"H2 avoid", "P avoid"}
    assert all(found["closed"]) and bool(found["closed"]) is (name == "analyze")
    assert found["switches"].count(True) == (name == "analyze")
    assert found["ground"] == "rgb(255, 255, 255)" and found["ink"] in ("rgb(23, 25, 28)", "rgb(28, 36, 48)")


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_prints(name: str, tmp_path: Path) -> None:
    """The browser makes a PDF of it, of as many pages as hold something."""
    path, printed = tmp_path / "page.html", tmp_path / "page.pdf"
    path.write_text(PAGES[name], "utf-8")
    chromium(tmp_path, f"--print-to-pdf={printed}", "--no-pdf-header-footer", path.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", printed.read_bytes()))
    assert 1 <= pages <= {"analyze": 9, "parity": 2}[name]
