"""The mutants of a module, and a random sample of those of all rooms."""

from __future__ import annotations

import ast
import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.rooms import ROOT, modules, room_of

SWAPS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
SPELLED = {"strict", "frozen", "slots", "kw_only"}
"""Keyword arguments that guard against mistakes of the code itself: no file of a user reaches them."""


@dataclass(frozen=True)
class Mutant:
    """One changed expression of ``file``: ``before`` at ``line`` in the function ``within`` becomes ``after``.

    ``text`` is the line.
    """

    file: str
    within: str
    line: int
    text: str
    before: str
    after: str
    start: int
    end: int

    def source(self, original: bytes) -> bytes:
        """The whole module with the change."""
        return original[: self.start] + self.after.encode() + original[self.end :]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.within}: {' '.join(self.before.split())}  ->  {self.after}"


def mutants(file: str, source: bytes) -> list[Mutant]:
    """Every mutant of one module, in the order of its lines."""
    offsets, total = [0], 0
    for line in source.splitlines(keepends=True):
        total += len(line)
        offsets.append(total)
    every = []
    for within, node, after in _sites(ast.parse(source)):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[node.end_lineno - 1] + node.end_col_offset
        text = source[offsets[node.lineno - 1] : offsets[node.lineno]].decode().strip()
        every.append(Mutant(file, within, node.lineno, text, source[start:end].decode(), after, start, end))
    return sorted(every, key=lambda mutant: (mutant.start, mutant.end, mutant.after))


def _sites(tree: ast.Module) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Every node that changes, the function or class that holds it, and what it becomes."""
    stack: list[tuple[ast.AST, str, bool]] = [(tree, "module", False)]
    while stack:
        node, within, boolean = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            within = node.name if within == "module" else f"{within}.{node.name}"
        if isinstance(node, ast.FunctionDef):
            boolean = isinstance(node.returns, ast.Name) and node.returns.id == "bool"
        for after in _changes(node, boolean):
            assert isinstance(node, ast.expr | ast.stmt)
            yield within, node, after
        for test in _conditions(node):
            yield within, test, f"(not {ast.unparse(test)})"
        stack += [(child, within, boolean) for child in _children(node)]


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """The parts that run: neither annotations nor f-strings, whose parts have no exact position before Python 3.12."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "keywords") and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            spelled = isinstance(child, ast.keyword) and child.arg in SPELLED
            guard = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            if isinstance(child, ast.AST) and not (spelled or guard or isinstance(child, ast.JoinedStr)):
                yield child


def _changes(node: ast.AST, boolean: bool) -> Iterator[str]:
    match node:
        case ast.Compare(left, operators, compared):
            for index, operator in enumerate(operators):
                swapped = [*operators[:index], SWAPS[type(operator)](), *operators[index + 1 :]]
                yield f"({ast.unparse(ast.Compare(left, swapped, compared))})"
        case ast.BoolOp(operator, values):
            opposite = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(opposite, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(bool(value)):
            yield str(not value)
        case ast.Constant(int(value)):
            yield str(value + 1)
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield from ("return True", "return False") if boolean else ("return None",)


def _conditions(node: ast.AST) -> Iterator[ast.expr]:
    """What decides a branch; comparisons and negations have changes of their own."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            tests = [test]
        case ast.comprehension(ifs=tests):
            pass
        case _:
            return
    yield from (test for test in tests if isinstance(test, ast.Name | ast.Attribute | ast.Call))


RECORD = Path(__file__).with_name("equivalent.json")
"""Mutants that no test can notice, each with its reason."""

KEYS = ("file", "within", "text", "before", "after")


def key(mutant: Mutant) -> tuple[str, ...]:
    """What names a mutant however the lines around it move."""
    return mutant.file, mutant.within, mutant.text, " ".join(mutant.before.split()), mutant.after


def equivalent() -> dict[tuple[str, ...], str]:
    """The reasons in `RECORD` by the keys of their mutants."""
    entries = json.loads(RECORD.read_text(encoding="utf-8"))
    return {tuple(entry[name] for name in KEYS): entry["reason"] for entry in entries}


def population(rooms: set[str]) -> dict[str, list[Mutant]]:
    """Every mutant of the rooms, by room."""
    by_room = defaultdict(list)
    for file in modules():
        if not rooms or room_of(file) in rooms:
            by_room[room_of(file)] += mutants(file, (ROOT / file).read_bytes())
    return {room: every for room, every in by_room.items() if every}


def sample(count: int, seed: int, rooms: set[str]) -> list[Mutant]:
    """``count`` mutants, or all there are, in turn from each room: the same for the same source and ``seed``."""
    chance, queues = random.Random(seed), population(rooms)
    for queue in queues.values():
        chance.shuffle(queue)
    taken: list[Mutant] = []
    while len(taken) < count and any(queues.values()):
        taken += [queue.pop() for queue in queues.values() if queue]
    return sorted(taken[:count], key=lambda mutant: (room_of(mutant.file), mutant.file, mutant.start, mutant.after))
