"""A module is read at one sitting."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tieconv"
MOST_LINES = 250
LONG: dict[str, str] = {}
"""Modules above `MOST_LINES`, each with its reason."""


def lines(module: Path) -> int:
    """The lines of a module."""
    return len(module.read_text(encoding="utf-8").splitlines())


def test_a_module_has_at_most_250_lines() -> None:
    """Longer ones are split by subject; data that scripts generate is no module."""
    long = {path.relative_to(PACKAGE).as_posix(): lines(path) for path in PACKAGE.rglob("*.py")}
    assert {name: count for name, count in long.items() if count > MOST_LINES and name not in LONG} == {}


def test_every_exception_is_one() -> None:
    """What is short by now is taken off the list."""
    assert [name for name in LONG if lines(PACKAGE / name) <= MOST_LINES] == []


def test_the_sizes_are_counted(tmp_path: Path) -> None:
    """By lines, whether or not the last one ends."""
    for name, text in (("a.py", "x = 1\n" * 3), ("b.py", "x = 1\ny = 2")):
        (tmp_path / name).write_text(text)
    assert [lines(tmp_path / "a.py"), lines(tmp_path / "b.py")] == [3, 2]
