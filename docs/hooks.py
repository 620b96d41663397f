"""What mkdocs does besides: the project's own pages and the schemas join the site, and links to code go to GitHub."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from tieconv.version import REPOSITORY

ROOT = Path(__file__).resolve().parents[1]
PROJECT_PAGES = {
    name: f"{Path(name).stem.lower().replace('_', '-')}.md"
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md")
}
"""Pages that GitHub wants at the root, and their names on the site."""
_SCHEMAS = "tieconv/reporters/schemas/"
_CELL = re.compile(r"<td\b.*?</td>", re.DOTALL)
_UNKNOWN = re.compile(r'<a href="https://github\.com/OWNER/[^"]*">(.*?)</a>', re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: Any) -> Any:
    """Show no address of the repository or of the site while the account is unknown."""
    if "/OWNER/" in REPOSITORY:
        del config["extra"]["social"]
        config["site_url"] = ""
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root and the schemas."""
    for name, page in PROJECT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted((ROOT / _SCHEMAS).glob("*.json")):
        files.append(File.generated(config, f"schemas/{path.name}", content=path.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Send each relative link to its page on the site, or to the file on GitHub."""
    folder = posixpath.dirname(page.file.src_uri)
    home = "" if page.file.src_uri in PROJECT_PAGES.values() else posixpath.join("docs", folder)

    def target(link: re.Match[str]) -> str:
        path = _target(home, link["path"])
        return (path if "://" in path else posixpath.relpath(path, folder or ".")) + (link["anchor"] or "")

    return _LINK.sub(target, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show `|` in the code of a table cell, where Markdown wants it escaped and the extension leaves the escape.

    While the account is unknown, a file of the repository is named and not linked.
    """
    html = _UNKNOWN.sub(r"\1", html)
    return _CELL.sub(lambda cell: cell[0].replace(r"\|", "|"), html)


def _target(home: str, link: str) -> str:
    """Return the page of the site, or the address on GitHub, for a link relative to ``home`` in the repository."""
    path = posixpath.normpath(posixpath.join(home, link))
    if path in PROJECT_PAGES:
        return PROJECT_PAGES[path]
    if path.startswith(_SCHEMAS):
        return f"schemas/{posixpath.basename(path)}"
    if path.startswith("docs/assets/") or (path.startswith("docs/") and path.endswith((".md", ".html"))):
        return path.removeprefix("docs/")
    return f"{REPOSITORY}/blob/main/{path}"
