"""Both pages on paper, in a real browser: what belongs together stays on one page, and nothing is hidden or dark."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from tests.reporters.analyses import full
from tests.reporters.test_analyze_html_chromium import chromium
from tests.reporters.test_analyze_html_chromium import pytestmark as pytestmark
from tests.reporters.test_parity_plot import case, histogram
from tieconv.checkpoint.results.parity import Gate, Parity, ProviderUse, Verdict
from tieconv.reporters.html import analyze_page, parity_page

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
_PROBE = """<pre id="found"></pre><script>
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
    path.write_text(page.replace("</body>", f"{_PROBE}</body>"), "utf-8")
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
