"""The documentation site builds without a warning, needs no other server, and none of its links is dead."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tieconv import version

pytestmark = [
    pytest.mark.slow,  # `.ci/run site` builds it too, with every warning an error
    pytest.mark.skipif(
        not (find_spec("mkdocs") and find_spec("mkdocstrings")), reason="the site is built with the group docs"
    ),
]

ROOT = Path(__file__).parents[2]
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""What a browser fetches by itself, and the attribute that says from where."""
_NOT_FETCHED = {"canonical", "next", "prev"}


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what a browser loads for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.ids |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in _LOADED and _LOADED[tag] in attributes and attributes.get("rel") not in _NOT_FETCHED:
            self.loaded.append(attributes[_LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning fails the build, as in `.ci/run`."""
    out = tmp_path_factory.mktemp("site")
    call = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": _path()})
    assert done.returncode == 0, done.stderr
    return out


def _path() -> str:
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html")}


def test_every_page_of_the_docs_is_on_the_site(pages: dict[Path, Page], site: Path) -> None:
    """And so are the pages that GitHub wants at the root; no script of the generator is."""
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    names |= {"contributing", "security", "code-of-conduct", "changelog"}
    names |= {f"guides/{path.stem}" for path in (ROOT / "docs" / "guides").glob("*.md")} - {"guides/index"} | {
        "guides",
        "try",
    }
    built = {path.parent.relative_to(site).as_posix() for path in pages if path.name == "index.html"}
    assert names == built - {"."}
    assert not list(site.rglob("*.py")) and not (site / "measured").exists()


def test_a_page_asks_no_other_server(pages: dict[Path, Page]) -> None:
    """Fonts, scripts, styles and pictures come from the site itself."""
    loaded = {address for page in pages.values() for address in page.loaded}
    assert any(address.endswith(".css") for address in loaded) and any(address.endswith(".js") for address in loaded)
    outside = {address for address in loaded if urlsplit(address).netloc and not address.startswith(_home())}
    assert outside == set()


def test_styles_ask_no_other_server(site: Path) -> None:
    """A style sheet imports nothing from elsewhere."""
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path


def test_links_lead_to_pages_and_headings(pages: dict[Path, Page], site: Path) -> None:
    """Each link within the site names a file, and its anchor an element of it."""
    dead = [f"{path.relative_to(site)}: {link}" for path, page in pages.items() for link in _dead(path, page, pages)]
    assert dead == []
    assert sum(len(page.links) for page in pages.values()) > 1000


def _dead(path: Path, page: Page, pages: dict[Path, Page]) -> Iterator[str]:
    if path.name == "404.html":
        return  # its links start at the root of the server
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in pages[target].ids):
            yield link


def test_links_to_the_repository_name_its_files(pages: dict[Path, Page]) -> None:
    """A link into the code names a file that exists."""
    start = f"{version.REPOSITORY}/blob/main/"
    named = {link.removeprefix(start) for page in pages.values() for link in page.links if link.startswith(start)}
    assert all((ROOT / unquote(name.partition("#")[0])).exists() for name in named), named


def test_the_search_finds_what_people_type(site: Path) -> None:
    """The index holds flags, error messages and rules."""
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    text = " ".join(f"{entry['title']} {entry['text']}" for entry in index["docs"])
    for phrase in (
        "tie_word_embeddings",
        "lm_head.weight",
        "TIE002",
        "--in-place",
        "newly initialized",
        "Some tensors share memory",
    ):
        assert phrase in text, phrase


def test_a_pipe_in_a_table_is_not_escaped(site: Path) -> None:
    """What a person copies out of a table cell is the message itself."""
    for name in ("guides", "cases"):
        text = (site / name / "index.html").read_text(encoding="utf-8")
        assert "lm_head.weight | MISSING" in text and r"\|" not in text, name


def test_the_python_reference_shows_the_docstrings(site: Path) -> None:
    """Each public name has its heading and the first words of its docstring."""
    import tieconv

    text = re.sub(r"\s+", " ", (site / "python" / "index.html").read_text(encoding="utf-8"))
    for name in tieconv.__all__:
        if not name.startswith("__"):
            assert re.search(rf"> ?tieconv\.{name} ?<", text), name
    assert "UnreadableError" in text and re.search(r"> ?execute ?<", text)


def _home() -> str:
    owner, name = version.REPOSITORY.removeprefix("https://github.com/").split("/")
    return f"https://{owner.lower()}.github.io/{name}/"
