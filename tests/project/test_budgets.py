"""Budgets for the whole product, which may only be lowered: a subject is a file, and new code pays for itself."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests import product
from tests.docs.test_walks import walked

PACKAGE = Path(__file__).parents[2] / "tieconv"

LINES = 74_847
FILES = 289
IMPORTS = 4_195
"""Lines of import statements."""
SINGLE_IMPORTERS = 54
"""Modules that exactly one other module imports."""
RETIE_ENTERS = 91
"""Files that `tieconv retie` of a toy model loads."""
INSPECT_ENTERS = 75
"""The same for `tieconv inspect`."""


def modules() -> dict[str, ast.Module]:
    """The parsed modules of the product by dotted name."""
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): tree
        for path, tree in product.trees().items()
    }


def imported(tree: ast.Module, names: set[str]) -> set[str]:
    """The modules of the product that a module imports, at any place in it."""
    targets: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            targets |= {
                full if (full := f"{node.module}.{alias.name}") in names else node.module for alias in node.names
            }
    return targets & names


def test_lines_and_files() -> None:
    """All lines of all modules of the product, blank ones and comments too."""
    texts = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    assert len(texts) <= FILES
    assert sum(len(text.splitlines()) for text in texts) <= LINES


def test_the_lines_of_imports() -> None:
    """Fragments import each other; whole subjects import little."""
    parsed = modules()
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in parsed.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    assert imports <= IMPORTS


def test_modules_with_one_importer() -> None:
    """A module that one other module imports is a part of that one's subject, unless its name is worth reading."""
    parsed = modules()
    names = set(parsed)
    counts = Counter(target for name, tree in parsed.items() for target in imported(tree, names) - {name})
    assert sum(count == 1 for count in counts.values()) <= SINGLE_IMPORTERS


def test_files_on_the_way(models: Path, tmp_path: Path) -> None:
    """How many files a stranger opens to follow one command."""
    assert walked("inspect", models / "llama-duplicated")["files"] <= INSPECT_ENTERS  # type: ignore[operator]
    retie = walked("retie", models / "llama-duplicated", "-o", tmp_path / "out")
    assert retie["files"] <= RETIE_ENTERS  # type: ignore[operator]
