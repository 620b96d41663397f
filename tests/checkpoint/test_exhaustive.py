"""A `match` over classes or enum members ends in `assert_never`, and what never returns says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests import product

MADE_IN_SUBCLASSES = {
    "CachedModel.no_past",
    "CachedModel.run",
    "Printed.to_dict",
    "Summarised._facts",
}  # a method that subclasses write is not one that never returns


def _is_kind(pattern: ast.pattern) -> bool:
    """Whether a pattern is a class or an enum member, or several of them."""
    match pattern:
        case ast.MatchOr(patterns):
            return all(map(_is_kind, patterns))
        case ast.MatchAs(inner) if inner is not None:
            return _is_kind(inner)
        case ast.MatchClass():
            return True
        case ast.MatchValue(ast.Attribute()):
            return True
    return False


def _asserts_never(statements: list[ast.stmt]) -> bool:
    return bool(statements) and ast.unparse(statements[0]).startswith("assert_never(")


def open_matches(tree: ast.AST) -> Iterator[int]:
    """The lines of each `match` over kinds that does not end in `assert_never`, there or in the next statement."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, [])
            for index, statement in enumerate(statements if isinstance(statements, list) else []):
                if isinstance(statement, ast.Match) and _is_open(statement, statements[index + 1 :]):
                    yield statement.lineno


def _is_open(statement: ast.Match, after: list[ast.stmt]) -> bool:
    kinds = any(_is_kind(case.pattern) for case in statement.cases)
    return kinds and not _asserts_never(statement.cases[-1].body) and not _asserts_never(after)


def open_chains(tree: ast.AST) -> Iterator[int]:
    """The lines of each `if … elif … else` on the identity of one expression whose `else` names no kind."""
    tests = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    inner = {id(node.orelse[0]) for node in tests if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)}
    for node in tests:
        subjects, branch = [], node
        while True:
            subjects.append(_subject(branch.test))
            if len(branch.orelse) != 1 or not isinstance(branch.orelse[0], ast.If):
                break
            branch = branch.orelse[0]
        chain = id(node) not in inner and len(subjects) > 1 and len(set(subjects)) == 1
        if chain and subjects[0] and not _asserts_never(branch.orelse):
            yield node.lineno


def _subject(test: ast.expr) -> str:
    """``x`` in ``x is Kind.MEMBER``, else nothing."""
    match test:
        case ast.Compare(left=left, ops=[ast.Is()], comparators=[ast.Attribute()]):
            return ast.unparse(left)
    return ""


def silent_refusals(tree: ast.AST) -> Iterator[str]:
    """Functions that always raise, or call one of the module that does, without saying `NoReturn`."""
    functions = dict(_functions(tree))
    never = {node.name for node in functions.values() if node.returns and ast.unparse(node.returns) == "NoReturn"}
    for name, node in functions.items():
        returns = any(isinstance(inside, (ast.Return, ast.Yield, ast.YieldFrom)) for inside in ast.walk(node))
        if not returns and node.name not in never and _ends(node.body, never):
            yield name


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        name = f"{within}{node.name}" if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else within
        if isinstance(node, ast.FunctionDef):
            yield name, node
        yield from _functions(node, f"{name}." if name != within else within)


def _ends(body: list[ast.stmt], never: set[str]) -> bool:
    match body[-1]:
        case ast.Raise():
            return True
        case ast.If(body=then, orelse=otherwise):
            return bool(otherwise) and _ends(then, never) and _ends(otherwise, never)
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name in never | {"refuse"}
    return False


def test_kinds_are_exhausted() -> None:
    """In every module."""
    assert len(product.trees()) > 100
    for module, tree in product.trees().items():
        assert (list(open_matches(tree)), list(open_chains(tree))) == ([], []), module
        assert set(silent_refusals(tree)) <= MADE_IN_SUBCLASSES, module


class TestTheSearch:
    def test_a_match_over_members_or_classes_without_an_end_is_seen(self) -> None:
        assert list(open_matches(ast.parse("match a:\n case K.ONE | K.TWO:\n  pass"))) == [1]
        assert list(open_matches(ast.parse("def f():\n match a.b:\n  case One(x=y):\n   return 1\n return 2"))) == [2]
        assert list(open_matches(ast.parse("match a:\n case K.ONE:\n  pass\n case _:\n  assert_never(a)"))) == []
        assert list(open_matches(ast.parse("match a:\n case One():\n  pass\nassert_never(a)"))) == []
        assert list(open_matches(ast.parse("match a:\n case 'one':\n  pass\n case ['two', x]:\n  pass"))) == []

    def test_a_chain_over_members_without_an_end_is_seen(self) -> None:
        chain = "if a is K.ONE:\n pass\nelif a is K.TWO:\n pass\n"
        assert list(open_chains(ast.parse(chain))) == [1]
        assert list(open_chains(ast.parse(f"{chain}else:\n assert_never(a)"))) == []
        assert list(open_chains(ast.parse("if a is K.ONE:\n pass\nelif b:\n pass"))) == []

    def test_a_function_that_only_raises_is_seen(self) -> None:
        source = "class A:\n def f(self) -> None:\n  if x:\n   raise B\n  else:\n   refuse(x)\n"
        assert list(silent_refusals(ast.parse(source))) == ["A.f"]
        assert list(silent_refusals(ast.parse("def f() -> NoReturn:\n raise B"))) == []
        assert list(silent_refusals(ast.parse("def f() -> int:\n if x:\n  return 1\n raise B"))) == []
