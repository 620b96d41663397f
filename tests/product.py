"""The modules of the product as syntax trees, parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "tieconv"


@cache
def trees() -> dict[Path, ast.Module]:
    """Every module by its path. Tests only read the trees."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
