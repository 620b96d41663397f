"""Check that a tag may be released, and print its section of the changelog as the release's notes.

python .ci/release.py v1.2.3    the notes on stdout; a sentence for each thing that is missing on stderr, and exit 1
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_HEADING = re.compile(r"^## (?P<version>\S+) \((?P<state>[^)]*)\)\n", re.M)


def problems(tag: str, settings: dict[str, object], changelog: str) -> list[str]:
    """Return what stands against the release of ``tag``, a sentence each."""
    found = []
    version = settings["VERSION"]
    if tag != f"v{version}":
        found.append(f'The tag is {tag}, but tieconv/version.py has VERSION = "{version}".')
    if "/OWNER/" in str(settings["REPOSITORY"]):
        found.append("REPOSITORY in tieconv/version.py has no account yet: replace OWNER, then run docs/generate.py.")
    if not settings["PUBLISHED"]:
        found.append("PUBLISHED in tieconv/version.py is False: set it to True, then run docs/generate.py.")
    section = notes(str(version), changelog)
    if section is None:
        found.append(f'CHANGELOG.md has no heading "## {version} (YYYY-MM-DD)".')
    elif not re.search(r"^- ", section, re.M):
        found.append(f"CHANGELOG.md lists no change for {version}.")
    return found


def notes(version: str, changelog: str) -> str | None:
    """Return the section of ``version``; ``None`` where it is missing or has no date."""
    headings = [*_HEADING.finditer(changelog)]
    for heading, following in zip(headings, [*headings[1:], None], strict=True):
        if heading["version"] == version and re.fullmatch(r"\d{4}-\d{2}-\d{2}", heading["state"]):
            return changelog[heading.end() : following.start() if following else None].strip()
    return None


def main(arguments: list[str]) -> int:
    """Print the notes of the tag, or what is missing."""
    settings = runpy.run_path(str(ROOT / "tieconv" / "version.py"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (tag,) = arguments
    found = problems(tag, settings, changelog)
    if found:
        print(*found, sep="\n", file=sys.stderr)
        return 1
    print(notes(tag.removeprefix("v"), changelog))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
