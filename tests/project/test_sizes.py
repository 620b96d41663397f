"""A module is read at one sitting, and a folder at one glance."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "tieconv"
MOST_LINES = 250
MOST_MODULES = 16
"""Modules of one folder, `__init__.py` aside."""
LONG: dict[str, str] = {}
"""Modules above `MOST_LINES`, each with its reason."""
CROWDED = {
    "checks": "one file a rule, named for its code: whoever meets a code opens that file",
    "cli/commands": "one file a command, named for it",
}
"""Folders above `MOST_MODULES`, each with its reason."""


def lines(module: Path) -> int:
    """The lines of a module."""
    return len(module.read_text(encoding="utf-8").splitlines())


def modules(folder: Path) -> int:
    """The modules that stand in a folder itself."""
    return len([module for module in folder.glob("*.py") if module.name != "__init__.py"])


def folders() -> list[Path]:
    """Every folder of the package that has modules."""
    return sorted({module.parent for module in PACKAGE.rglob("*.py")})


def test_a_module_has_at_most_250_lines() -> None:
    """Longer ones are split by subject; data that scripts generate is no module."""
    long = {path.relative_to(PACKAGE).as_posix(): lines(path) for path in PACKAGE.rglob("*.py")}
    assert {name: count for name, count in long.items() if count > MOST_LINES and name not in LONG} == {}


def test_a_folder_has_at_most_16_modules() -> None:
    """More of them get folders by subject."""
    crowded = {path.relative_to(PACKAGE).as_posix(): modules(path) for path in folders()}
    assert {name: count for name, count in crowded.items() if count > MOST_MODULES and name not in CROWDED} == {}


def test_every_exception_is_one() -> None:
    """What is short or roomy by now is taken off the lists."""
    assert [name for name in LONG if lines(PACKAGE / name) <= MOST_LINES] == []
    assert [name for name in CROWDED if modules(PACKAGE / name) <= MOST_MODULES] == []


def test_the_sizes_are_counted(tmp_path: Path) -> None:
    """By lines, and by modules without the folder's own."""
    for name, text in (("__init__.py", ""), ("a.py", "x = 1\n" * 3), ("b.py", "x = 1\ny = 2")):
        (tmp_path / name).write_text(text)
    assert [lines(tmp_path / "a.py"), lines(tmp_path / "b.py"), modules(tmp_path)] == [3, 2, 2]
