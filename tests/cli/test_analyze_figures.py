"""`analyze --figures`: each plot as a file of its own, for a paper."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.run import ok, refused
from tieconv.reporters.html.svg import Frame, Plot, svg_files
from tieconv.version import VERSION

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> str:
    """All visible text of a file, which needs no style sheet and has a size."""
    source = path.read_text(encoding="utf-8")
    root = ElementTree.fromstring(source)
    assert root.tag == f"{SVG}svg" and int(root.attrib["width"]) > 400 and int(root.attrib["height"]) > 100
    assert "class=" not in source and "var(" not in source
    for element in root.iter():
        if element.tag in (f"{SVG}path", f"{SVG}rect"):
            style = element.attrib.get("style", "") + element.attrib.get("fill", "")
            assert re.search(r"#[0-9a-f]{3}", style), f"{path}: an element without a colour"
    return " ".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))


@pytest.mark.parametrize("name", ["llama-untied", "llama-tied", "llama-diverged"])
def test_every_plot_is_a_file(name: str, tmp_path: Path) -> None:
    """As many files as the page has figures; each has its heading, and a caption with the model and the version."""
    ok("analyze", MODELS / name, "--figures", tmp_path / "f", "--html", tmp_path / "p.html")
    headings = re.findall(r"<figure><h3>([^<]*)</h3>", (tmp_path / "p.html").read_text(encoding="utf-8"))
    files = sorted((tmp_path / "f").iterdir())
    assert len(files) == len(headings) > 1
    for path, heading in zip(files, headings, strict=True):
        shown = texts(path)
        assert shown.startswith(heading) and name in shown.replace(" ", "") and f"tieconv {VERSION}." in shown


def test_a_comparison_names_its_tables(tmp_path: Path) -> None:
    """The bars say which table is T, E and U, and what the marks mean."""
    ok("analyze", MODELS / "llama-tied", "--against", MODELS / "llama-untied", "--figures", tmp_path / "f")
    (bars,) = [path for path in (tmp_path / "f").iterdir() if "agreement" in path.name]
    shown = texts(bars)
    assert "T: tied table of" in shown and "chance" in shown and "ceiling: two untied seeds" in shown


def test_revisions(tmp_path: Path) -> None:
    """Each curve, with its floor, the revisions and the model."""
    for step in ("step1", "step2"):
        shutil.copytree(MODELS / "llama-untied", tmp_path / "run" / step)
    ok("analyze", tmp_path / "run", "--revisions", "step1,step2", "--figures", tmp_path / "f")
    files = sorted((tmp_path / "f").iterdir())
    assert len(files) == 10
    shown = texts(files[3])
    assert "chance, in the same colour" in shown and "2 revisions of" in shown and "from step1 to step2" in shown


def test_a_hostile_name_stays_text() -> None:
    """Markup and control characters of a name or a model reach no file."""
    frame = Frame("x", (0, 1), (0, 1))
    frame.line([(0, 0), (1, 1)], "c0")
    plot = Plot("<script>\x1b[31m", frame.svg(), "Says <b>.", (("c0", "</text><a>"),))
    ((name, text),) = svg_files([(plot, "Measured on \x1b]0;x\x07<svg>.")]).items()
    assert name == "01-script-31m.svg"
    root = ElementTree.fromstring(text)
    assert {element.tag for element in root.iter()} <= {
        SVG + tag for tag in ("svg", "title", "desc", "rect", "text", "path", "g")
    }
    assert "\x1b" not in text and "<b>" not in text


def test_captions_speak_of_no_page() -> None:
    """A sentence about a section of the page is left out."""
    plot = Plot("x", Frame("x", (0, 1), (0, 1)).svg(), "Padding is flat. The section Rows lists it. Look at it.")
    (text,) = svg_files([(plot, "Measured on m.")]).values()
    assert "<desc>Padding is flat. Look at it. Measured on m. tieconv" in text


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused("analyze", MODELS / "llama-untied", "--figures", tmp_path / "file" / "f")
    assert "cannot be written" in error
