"""Values are records; a dataclass that changes is an object that does a job, with the methods that change it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

from tests import product
from tests.conftest import ROOT

COMPILED = {
    # Half a million of them may exist, one a tensor: a compiled __init__ takes 0.6 µs, a record's 2 µs.
    "formats/torch/state_dict.py": {"SavedTensor", "Placed"},
    "execute/file_layout.py": {"Piece"},
    "formats/json_text.py": {"_Entry"},
    "comparison/pair.py": {"Source"},
}
FILLED = {
    # A protobuf message comes field by field, each as often as it likes.
    "formats/onnx/messages.py": {"Tensor", "Node", "Graph", "Model"}
}


def dataclasses(tree: ast.AST) -> Iterator[tuple[ast.ClassDef, bool]]:
    """Each `dataclass` of a module, and whether it is frozen."""
    return _of_classes(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _of_classes(classes: Iterable[ast.ClassDef]) -> Iterator[tuple[ast.ClassDef, bool]]:
    for node in classes:
        for decorator in map(ast.unparse, node.decorator_list):
            if decorator.split("(")[0] in ("dataclass", "dataclasses.dataclass"):
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
    classes = [(node.name, frozen, is_bag(node)) for node, frozen in dataclasses(ast.parse(source))]
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
