"""Which tests run which lines, and in which order a mutant is put to them."""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.mutants.mutations import Mutant


class Reached:
    """What `tests.mutants.recorder` wrote of the tests of a room, whose paths begin with the likeliest."""

    def __init__(self, paths: tuple[str, ...], records: Mapping[str, Path]) -> None:
        self.paths = paths
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[int, set[str]]] = {}
        self.width = Counter[str]()
        self.starting: set[str] = set()
        for path in records.values():
            self._read(json.loads(path.read_text(encoding="utf-8")))

    def _read(self, record: Mapping[str, Any]) -> None:
        names = list(record["tests"])
        listed = {name for name in names if name.startswith(self.paths)}
        self.seconds |= {name: record["tests"][name] for name in listed}
        self.starting.update(listed.intersection(record["starting"]))
        for file, lines in record["lines"].items():
            here = self.lines.setdefault(file, {})
            for line, numbers in lines.items():
                tests = {names[number] for number in numbers} & listed
                here.setdefault(int(line), set()).update(tests)
                self.width.update(tests)

    def ordered(self, mutant: Mutant, source: bytes) -> list[str]:
        """The tests that run the mutant's lines; where importing runs them or an answer is kept, those of the module.

        The rest of the room follows where that module is all data, else the tests that start other processes: the
        room's own, or all of them where no test runs the lines.
        """
        lines, inside = self.lines.get(mutant.file, {}), _inside(source)
        last_line = mutant.line + mutant.before.count("\n")
        own = set[str]().union(*(lines.get(line, ()) for line in range(mutant.line, last_line + 1)))
        later = self._sorted(name for name in self.starting - own if not own or not self._rank(name))
        if mutant.line in inside:
            return self._sorted(own) + later
        module = set[str]().union(*(names for line, names in lines.items() if line in inside))
        rest = set() if module else set(self.seconds) - own
        return list(dict.fromkeys((*self._sorted(own), *self._sorted(module - own), *self._sorted(rest), *later)))

    def _sorted(self, names: Iterable[str]) -> list[str]:
        """One case of each test before the second of any, the room's own tests before others, the narrow first."""
        cases = Counter[str]()
        keys = {}
        for name in sorted(names, key=lambda name: (self.width[name], name)):
            function = name.partition("[")[0]
            keys[name] = (cases[function] + 2 * self._rank(name), self.width[name])
            cases[function] += 1
        return sorted(keys, key=lambda name: keys[name])

    def _rank(self, name: str) -> int:
        folders = list(dict.fromkeys(path.rpartition("/")[0] if path.endswith(".py") else path for path in self.paths))
        return next(rank for rank, folder in enumerate(folders) if name.startswith(folder))


def _inside(source: bytes) -> set[int]:
    """The lines that run whenever a function is called: not those of a function that keeps its answers."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    cached = [node for node in functions if any("cache" in ast.unparse(decorator) for decorator in node.decorator_list)]
    return _bodies(functions) - _bodies(cached)


def _bodies(functions: Iterable[ast.FunctionDef]) -> set[int]:
    return {line for node in functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)}
