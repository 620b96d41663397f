"""Names of modules, functions, parameters, fields and locals say what they hold."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import product

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "tieconv", "fixtures", "docs", "tests/bench", "tests/bounds", "tests/cases", "tests/checkpoint", "tests/checks",
    "tests/cli", "tests/demo", "tests/docs", "tests/formats", "tests/gate", "tests/hostile", "tests/inspection",
    "tests/mutants", "tests/output", "tests/project", "tests/public", "tests/sources",
)  # fmt: skip
WORDS = frozenset(
    re.findall(r"\w+", "found place told near older newer last odd one other what how given said kept gone way it")
)
"""Words that say how a thing was come by or that it is another one, and never what it is."""
ALLOWED = {
    ("tieconv/checkpoint/family.py", "OTHER"): "a role of the JSON",
    (
        "tieconv/checkpoint/weight_file.py",
        "other",
    ): "the second operand of `__eq__`, as Python's documentation names it",
    ("tieconv/checkpoint/relation/__init__.py", "NEAR"): "a state of the JSON",
    ("tieconv/checkpoint/relation/proved.py", "Near"): "the value type of that state",
    ("tieconv/checkpoint/results/comparison.py", "NEAR"): "a state of the JSON",
    ("tieconv/checkpoint/results/parity.py", "found"): "a key of parity's JSON",
    ("tieconv/checkpoint/results/parity.py", "how"): "a key of parity's JSON",
    ("tieconv/checkpoint/value_type.py", "other"): "the second operand of `__eq__`, as Python's documentation names it",
    (
        "tieconv/inspection/numeric/rows.py",
        "other",
    ): "the second operand of `__and__`, as Python's documentation has it",
}
SAME_ROLE = frozenset(
    re.findall(
        r"\w+",
        """
        __init__ __main__ analysis bias biases carry_out check client comparison convert dedup disguise errors evidence
        evolution external files fixes fleet graphs head index interface model packages parity plan push quantised
        reader registry reindex remedies resize retie section set_tie shards source storage sums target ties
        transformers untie uses verify write
        """,
    )
)
"""Basenames that several folders have for one role: a verb's plan, its command and its result; a format's reader."""


def bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a module binds, and its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno
            case ast.alias(asname=str() as name):
                yield name, 0
            case (
                ast.ExceptHandler(name=str() as name)
                | ast.MatchAs(name=str() as name)
                | ast.MatchStar(name=str() as name)
            ):
                yield name, node.lineno


def empty_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """The bound names that are one of `WORDS`, whatever underscores stand around them."""
    return ((name, line) for name, line in bound(tree) if name.strip("_").lower() in WORDS)


def parsed(path: Path) -> ast.AST:
    return product.trees().get(path) or ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "source",
    [
        "def told(): ...",
        "class _Found: ...",
        "def f(place): ...",
        "kept = 1",
        "self.found = 1",
        "[one for one in row]",
        "import a as other",
        "class A:\n    how: str",
        "lambda given: 0",
    ],
)
def test_a_name_that_says_nothing_is_seen(source: str) -> None:
    """Wherever a name is bound."""
    assert list(empty_names(ast.parse(source)))


def test_names_say_what_they_hold() -> None:
    """No identifier is a word that fits anything."""
    wrong = []
    for path in (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) or [ROOT / folder]):
        module = path.relative_to(ROOT).as_posix()
        names = [*empty_names(parsed(path))]
        names += [(path.stem, 0)] if path.stem in WORDS else []
        wrong += [f"{module}:{line}: {name}" for name, line in names if (module, name) not in ALLOWED]
    assert not wrong, "\n".join(wrong)


def test_every_exception_occurs() -> None:
    """`ALLOWED` lists nothing that is gone."""
    assert {(m, n) for m, n in ALLOWED if n not in {name for name, _ in empty_names(parsed(ROOT / m))}} == set()


def test_a_basename_has_one_meaning() -> None:
    """Two folders have modules of one basename only where their role is the same."""
    folders = defaultdict(list)
    for path in (ROOT / "tieconv").rglob("*.py"):
        folders[path.stem].append(path.parent.relative_to(ROOT).as_posix())
    assert {stem: where for stem, where in folders.items() if len(where) > 1 and stem not in SAME_ROLE} == {}
