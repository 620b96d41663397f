"""Values are records that behave as frozen dataclasses, and a `match` over them ends in `assert_never`."""

from __future__ import annotations

import ast
import copy
import dataclasses
import pickle
from collections.abc import Iterable, Iterator
from functools import cache
from typing import ClassVar

import pytest

from tests import product
from tests.conftest import ROOT
from tieconv.checkpoint.value_type import Printed, record

COMPILED = {
    # Half a million of them may exist, one a tensor: a compiled __init__ takes 0.6 µs, a record's 2 µs.
    "formats/torch/state_dict.py": {"SavedTensor", "Placed"},
    "formats/json_text.py": {"_Entry"},
    "comparison/pair.py": {"Source"},
}
FILLED = {
    # A protobuf message comes field by field, each as often as it likes.
    "formats/onnx/messages.py": {"Tensor", "Node", "Graph", "Model"}
}


def dataclasses_of(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, bool]]:
    """Each `dataclass` of a module, and whether it is frozen."""
    return _of_classes(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _of_classes(classes: Iterable[ast.ClassDef]) -> Iterator[tuple[ast.ClassDef, bool]]:
    for node in classes:
        for decorator in map(ast.unparse, node.decorator_list):
            if decorator.split("(")[0] in ("dataclass", "dataclasses_of.dataclass"):
                yield node, "frozen=True" in decorator


def is_bag(node: ast.ClassDef) -> bool:
    """Whether a class has nothing but fields, properties and what follows its making."""
    methods = (entry for entry in node.body if isinstance(entry, ast.FunctionDef))
    return all(method.decorator_list or method.name == "__post_init__" for method in methods)


def test_values_are_records() -> None:
    for path, node, frozen in _all():
        if frozen:
            assert node.name in COMPILED.get(path, ()), f"{path}: {node.name} is a value: make it a @record"


def test_no_dataclass_is_a_bag_of_fields_that_others_change() -> None:
    for path, node, frozen in _all():
        if not frozen and is_bag(node):
            assert node.name in FILLED.get(path, ()), f"{path}: {node.name} has no method: make it a @record"


def test_an_object_of_arguments_has_less_than_ten() -> None:
    """A command line is one object with all its options; what is passed further down is split by subject."""
    for module, classes in _classes().items():
        for node in classes:
            if node.name.endswith("Arguments") and not module.startswith("cli/"):
                fields = [entry for entry in node.body if isinstance(entry, ast.AnnAssign)]
                assert len(fields) < 10, f"{module}: split {node.name} by subject"


def test_the_exceptions_exist() -> None:
    seen = {(path, node.name, frozen) for path, node, frozen in _all()}
    assert {(path, name, True) for path, names in COMPILED.items() for name in names} <= seen
    assert {(path, name, False) for path, names in FILLED.items() for name in names} <= seen


def test_the_search_sees_both() -> None:
    source = "@dataclass(frozen=True)\nclass A:\n x: int\n@dataclass\nclass B:\n x: int\n def f(self): self.x = 1\n"
    classes = [(node.name, frozen, is_bag(node)) for node, frozen in dataclasses_of(ast.parse(source))]
    assert classes == [("A", True, True), ("B", False, False)]


def _all() -> Iterator[tuple[str, ast.ClassDef, bool]]:
    for path, classes in _classes().items():
        for node, frozen in _of_classes(classes):
            yield path, node, frozen


@cache
def _classes() -> dict[str, list[ast.ClassDef]]:
    """The classes of each module; the trees are walked once for all tests."""
    package = ROOT / "tieconv"
    return {
        path.relative_to(package).as_posix(): [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for path, tree in product.trees().items()
    }


@record
class Made:
    """A record."""

    name: str
    size: int = 3
    notes: tuple[str, ...] = dataclasses.field(default_factory=tuple)


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """The dataclass that it must be like."""

    name: str
    size: int = 3
    notes: tuple[str, ...] = dataclasses.field(default_factory=tuple)


CALLS = [(("a",), {}), (("a", 4), {"notes": ("x",)}), ((), {"size": 1, "name": "b"})]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_values_as_in_a_dataclass(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Positions, keywords, defaults and factories give the values that a dataclass has."""
    made, model = Made(*args, **kwargs), Model(*args, **kwargs)  # type: ignore[arg-type]
    assert dataclasses.asdict(made) == dataclasses.asdict(model)
    assert repr(made) == repr(model).replace("Model", "Made")
    assert Made.__match_args__ == Model.__match_args__
    assert made == Made(*args, **kwargs) and hash(made) == hash(Made(*args, **kwargs))  # type: ignore[arg-type]
    assert made != model


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", 1, (), 5), {}), (("a",), {"name": "b"}), (("a",), {"colour": 1})]
)
def test_wrong_calls_fail_as_in_a_dataclass(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Missing, surplus, repeated and unknown values are type errors."""
    for kind in (Made, Model):
        with pytest.raises(TypeError):
            kind(*args, **kwargs)  # type: ignore[arg-type]


def test_frozen_slotted_replaceable() -> None:
    """No assignment, no deletion, no new attribute; `replace`, `copy` and `pickle` work; patterns match."""
    made = Made("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.name
    assert not hasattr(made, "__dict__")
    assert dataclasses.replace(made, size=9) == Made("a", 9)
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    match made:
        case Made(name, size):
            assert (name, size) == ("a", 3)
        case _:
            pytest.fail("a record does not match its own pattern")


@record
class Checked:
    """A record that refuses some values."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def test_values_are_checked_as_in_a_dataclass() -> None:
    """`__post_init__` runs after the values are set."""
    assert Checked(1, high=2) == Checked(1, 2)
    with pytest.raises(ValueError, match="low is above high"):
        Checked(2, 1)


@record
class Sized(Checked):
    """A record with a class variable, which is no value of it."""

    unit: ClassVar[str] = "bytes"
    name: str = ""


def test_class_variables_are_not_values() -> None:
    """They take no place among the arguments, the values compared, and those printed."""
    assert Sized(1, 2, "a") == Sized(1, 2, "a") and Sized(1, 2).unit == "bytes"
    assert repr(Sized(1, 2)) == "Sized(low=1, high=2, name='')"
    assert [field.name for field in dataclasses.fields(Sized)] == ["low", "high", "name"]


@record
class Answer(Printed):
    """What a command prints."""

    name: str

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name}


def test_json_is_ascii() -> None:
    """A terminal of any encoding shows it, and two spaces a level make it readable."""
    assert str(Answer("\u00e9")) == Answer("\u00e9").to_json() == '{\n  "name": "\\u00e9"\n}'


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
