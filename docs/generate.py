"""Write the pages that follow from the code, and run the commands that pages quote.

python docs/generate.py                  write them
python docs/generate.py --check          print what is out of date and exit 1; the tests compare the guides
python docs/generate.py [--check] PAGE…  only these, such as docs/guides/convert-bin.md
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(ROOT), str(HERE)]

from pages import (  # noqa: E402
    addresses,
    architectures,
    cases,
    cli,
    consumers,
    evolution,
    export,
    gpu,
    guides,
    matrix,
    oracles,
    outputs,
    parity,
    pictures,
    python,
    rules,
    schemas,
    silence,
    states,
    toys,
    writers,
)

WRITTEN: dict[Path, Callable[[], str]] = {
    HERE / "rules.md": rules.page,
    HERE / "states.md": states.page,
    HERE / "cases.md": cases.page,
    ROOT / "tieconv" / "gate" / "data" / "cases.json": cases.data,
    HERE / "cli.md": cli.page,
    HERE / "architectures.md": architectures.page,
    HERE / "matrix.md": matrix.page,
    HERE / "consumers.md": consumers.page,
    HERE / "oracles.md": oracles.page,
    HERE / "writers.md": writers.page,
    HERE / "parity.md": parity.page,
    HERE / "export.md": export.page,
    HERE / "gpu.md": gpu.page,
    HERE / "python.md": python.page,
    HERE / "schemas.md": schemas.page,
    HERE / "index.md": partial(outputs.page, HERE / "index.md"),
    ROOT / "README.md": partial(outputs.page, ROOT / "README.md"),
    HERE / "quickstart.md": partial(outputs.page, HERE / "quickstart.md"),
    HERE / "analyze.md": partial(outputs.page, HERE / "analyze.md"),
    HERE / "evolution.md": partial(evolution.page, HERE / "evolution.md"),
    HERE / "alignment.md": partial(toys.page, HERE / "alignment.md"),
    HERE / "assets" / "repair.svg": pictures.repair,
    HERE / "assets" / "inspect.svg": pictures.inspect,
    HERE / "assets" / "analyze.svg": pictures.analyze,
    HERE / "assets" / "fleet.svg": pictures.fleet,
    HERE / "check.md": lambda: silence.fill(outputs.page(HERE / "check.md")),
    **{path: partial(guides.page, path) for path in guides.pages()},
}
"""What the code, or the commands that a page quotes, write."""

_PROJECT_FILES = ("pyproject.toml", "mkdocs.yml", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml")
_FOLDERS = (HERE, guides.GUIDES, ROOT)
ADDRESSED = [path for folder in _FOLDERS for path in sorted(folder.glob("*.md"))]
ADDRESSED += [ROOT / name for name in _PROJECT_FILES]
"""What names the repository or says how to install tieconv; a changelog says what it was."""


def _addressed(path: Path) -> str:
    render = WRITTEN.get(path, partial(path.read_text, encoding="utf-8"))
    return addresses.fill(render())


PAGES: dict[Path, Callable[[], str]] = {
    path: partial(_addressed, path) for path in (*WRITTEN, *ADDRESSED) if path.name != "CHANGELOG.md"
}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    checks, wanted = "--check" in arguments, {Path(name).resolve() for name in arguments if name != "--check"}
    os.chdir(ROOT)  # quoted commands name files of the repository
    if unknown := wanted - PAGES.keys():
        sys.exit(f"docs/generate.py does not write {', '.join(sorted(map(str, unknown)))}")
    stale = 0
    for path, render in PAGES.items():
        left_to_tests = checks and path.parent == guides.GUIDES  # minutes of commands, which run as tests side by side
        if path not in wanted and (wanted or left_to_tests):
            continue
        text = render()
        if checks:
            stale += _differs(path, text)
        else:
            path.write_text(text, encoding="utf-8")
    return 1 if stale else 0


def _differs(path: Path, text: str) -> bool:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(
        old.splitlines(), text.splitlines(), path.name, f"{path.name} (generated)", "", "", 1, ""
    )
    differences = list(lines)
    print(*differences, sep="\n", end="\n" if differences else "")
    return bool(differences)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
