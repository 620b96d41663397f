"""The generated pages are what the code says, and the README keeps its promises."""

from __future__ import annotations

import importlib.util
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "generate.py"


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(ROOT)  # the script changes the directory; this puts it back
    spec = importlib.util.spec_from_file_location("docs_generate", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_row_of_a_table_stands_twice() -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
        assert not [row for row, after in pairwise(rows) if row == after], page


def test_pages_are_up_to_date(generator: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """`python docs/generate.py --check` passes on what is committed; test_guides.py runs the guides one by one."""
    others = [str(path) for path in generator.PAGES if path not in generator.guides.pages()]
    assert generator.main(["--check", *others]) == 0, capsys.readouterr().out


def test_check_fails_with_a_diff(
    generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page that was edited by hand, or is missing, is shown and fails."""
    names = ("rules.md", "states.md", "schemas.md")
    pages = {tmp_path / path.name: render for path, render in generator.PAGES.items() if path.name in names}
    monkeypatch.setattr(generator, "PAGES", pages)
    generator.main([])
    assert generator.main(["--check"]) == 0
    page = tmp_path / "rules.md"
    page.write_text(page.read_text(encoding="utf-8").replace("TIE001", "TIE999", 1), encoding="utf-8")
    (tmp_path / "states.md").unlink()
    assert generator.main(["--check"]) == 1
    assert "TIE999" in capsys.readouterr().out
    assert generator.main(["--check", str(tmp_path / "schemas.md")]) == 0
    with pytest.raises(SystemExit, match="does not write"):
        generator.main(["--check", str(tmp_path / "unknown.md")])


def test_the_readme_is_short_and_shows_real_output() -> None:
    """At most 90 lines, and each quoted command is one that the generator runs."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 90
    assert "inspect YOUR_MODEL\n" in text.partition("\n## ")[0]
    quoted = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert quoted == re.findall(r"<!-- run: (.*) -->", text)
    assert len(quoted) >= 2
    assert all(f"](docs/assets/{name}.svg)" in text for name in ("repair", "ties"))


def test_the_start_page_installs_first() -> None:
    """Figures of this project's tests are on the page about oracles."""
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert headings.index("Install") < headings.index("The first command") < headings.index("Without installing")
    assert not re.search(r"\d tests", text)


def test_pictures_stand_alone() -> None:
    """Each has a title, both colour schemes, and nothing that a browser runs or fetches."""
    pictures = sorted((ROOT / "docs" / "assets").glob("*.svg"))
    assert {"repair", "ties", "inspect", "analyze", "fleet"} == {path.stem for path in pictures}
    for picture in pictures:
        text = picture.read_text(encoding="utf-8")
        text = re.sub(r'xmlns="http://www.w3.org/(2000/svg|1999/xhtml)"', "", text)
        assert "<title>" in text and "prefers-color-scheme:dark" in text, picture
        assert not re.search(r"https?:|<script|\bon\w+=|url\(|@import", text), picture


def test_links_lead_somewhere() -> None:
    """Every relative link of the pages names a file that exists."""
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "guides").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_promises_name_tests_that_exist() -> None:
    """Each test that the safety page names stands in the tests."""
    text = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", text)
    assert len(named) >= 12
    for name in named:
        assert f"def {name}(" in sources, name
    for path in re.findall(r"`(tests/[\w./]*|fixtures/[\w./]*)`", text):
        assert (ROOT / path).exists(), path


def test_promises_are_numbered_without_gaps() -> None:
    """P1, P2, ... in the order of the page, each in a row with its test and its figure."""
    text = (ROOT / "docs" / "safety.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \*\*P(\d+)\*\* .+? \| (.+?) \| (.+?) \|$", text, re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, len(rows) + 1)) and len(rows) >= 28
    assert all("test" in held and figure for _, held, figure in rows)
