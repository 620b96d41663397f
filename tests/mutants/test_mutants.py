"""The mutation run changes what it says, runs the tests that reach it, and reports what they miss."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants import scratch
from tests.mutants.mutations import Mutant, equivalent, key, mutants, population, sample
from tests.mutants.rooms import ROOT, TESTS, modules, room_of
from tests.quick_python import MEASURED, Server

SOURCE = '''
"""A module."""
LIMIT: int = 3

def judge(value: int, strict: bool = False) -> bool:
    """Judge."""
    if not strict and value < LIMIT:
        return bool(value)
    return value in (1, 2) if strict else f"{value == 1}" == "é"

def each(values: list[int]) -> list[int]:
    return [value for value in values if judge(value)]
'''
CHANGES = [
    "3 -> 4",
    "False -> True",
    "not strict and value < LIMIT -> (not strict or value < LIMIT)",
    "not strict -> (strict)",
    "value < LIMIT -> (value <= LIMIT)",
    "return bool(value) -> return False",
    "return bool(value) -> return True",
    "value in (1, 2) -> (value not in (1, 2))",
    "1 -> 2",
    "2 -> 3",
    "strict -> (not strict)",
    "f\"{value == 1}\" == \"é\" -> (f'{value == 1}' != 'é')",
    "return [value for value in values if judge(value)] -> return None",
    "judge(value) -> (not judge(value))",
]


def test_changes_of_a_module() -> None:
    """Each operator once, at its own bytes; neither annotations nor parts of an f-string."""
    changes = [f"{mutant.before} -> {mutant.after}" for mutant in mutants("one.py", SOURCE.encode())]
    whole = [change for change in changes if not change.startswith("return value in")]
    assert sorted(whole) == sorted(CHANGES)
    assert len(changes) == len(CHANGES) + 2


def test_a_mutant_changes_its_own_bytes_alone() -> None:
    """What lies before and after the expression stays."""
    for mutant in mutants("one.py", SOURCE.encode()):
        changed = mutant.source(SOURCE.encode()).decode()
        compile(changed, "one.py", "exec")
        assert changed != SOURCE
        assert changed.count(mutant.after) > SOURCE.count(mutant.after)


def test_every_module_has_a_room_with_tests() -> None:
    """No module is left out, and no room names tests that are gone."""
    assert {room_of(file) for file in modules()} == set(TESTS)
    assert [path for tests in TESTS.values() for path in tests if not (ROOT / path).exists()] == []


@pytest.mark.slow
def test_a_sample_is_spread_and_repeats_itself() -> None:
    """As many of each room as of the others; the same for the same seed, others for another one."""
    chosen = sample(len(TESTS) * 2, 5, set())
    assert sorted(room_of(mutant.file) for mutant in chosen) == sorted([*TESTS] * 2)
    assert sample(8, 5, {"gate", "api"}) == sample(8, 5, {"api", "gate"}) != sample(8, 6, {"api", "gate"})


@pytest.mark.slow
def test_every_equivalent_mutant_exists_and_has_its_reason() -> None:
    """An entry whose code is gone is no excuse for other code."""
    every = {key(mutant) for listed in population(set()).values() for mutant in listed}
    assert equivalent().keys() <= every
    assert all(len(reason) > 20 for reason in equivalent().values())


WHOLE = """
import subprocess
import sys


def test_whole():
    code = "from tieconv.one import each; assert each([1, 3]) == [1]; assert each([0, 2]) == [2]"
    subprocess.run([sys.executable, "-c", code], check=True)
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[scratch.Scratch]:
    root = tmp_path / "root"
    for folder in ("tieconv", "tests"):
        (root / folder).mkdir(parents=True)
    shutil.copytree(ROOT / "tests" / "mutants", root / "tests" / "mutants", ignore=shutil.ignore_patterns("test_*"))
    (root / "tests" / "__init__.py").write_text("")
    (root / "tieconv" / "__init__.py").write_text("")
    (root / "tieconv" / "one.py").write_text(SOURCE)
    test = "from tieconv.one import judge\n\ndef test_one():\n    assert judge(2)\n    assert not judge(0)\n"
    (root / "tests" / "test_one.py").write_text(test + "\ndef test_two():\n    assert judge(1, True)\n")
    monkeypatch.setattr(scratch, "ROOT", root)
    monkeypatch.setattr(scratch, "LIBRARIES", ())
    made = scratch.Scratch(tmp_path)
    yield made
    made.close()


def changes() -> dict[str, Mutant]:
    return {mutant.after: mutant for mutant in mutants("tieconv/one.py", SOURCE.encode())}


@pytest.mark.slow
def test_a_survivor_is_told_from_what_is_noticed(small: scratch.Scratch) -> None:
    """A change that an assertion sees is noticed; one beyond the values that are tried survives."""
    small.enter("checks", ("tests/test_one.py",))
    every = changes()
    assert small.notices(every["(value not in (1, 2))"])
    assert small.notices(every["(strict)"])
    assert not small.notices(every["(value <= LIMIT)"])
    assert (small.root / "tieconv" / "one.py").read_text() == SOURCE


@pytest.mark.slow
def test_other_processes_notice_too(small: scratch.Scratch) -> None:
    """No line of `each` is measured, and the test that starts a process with it is run last."""
    (small.root / "tests" / "test_whole.py").write_text(WHOLE)
    small.enter("checks", ("tests/test_one.py", "tests/test_whole.py"))
    assert small.notices(changes()["(not judge(value))"])


@pytest.mark.slow
def test_quick_programs_tell_their_lines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quick_python: Server) -> None:
    """A program that shares its imports with others is measured, and one line of it is in the record."""
    monkeypatch.setenv(MEASURED, "record")
    done = quick_python.run(["-m", "tieconv", "rules"], env=dict(os.environ), cwd=tmp_path)
    assert done.returncode == 0 and "TIE001" in done.stdout
    assert any(lines for file, lines in quick_python.lines.items() if file.startswith("tieconv/cli/"))
    quick_python.lines.clear()


@pytest.mark.slow
def test_what_fails_anyway_notices_nothing(small: scratch.Scratch) -> None:
    """A test that stops passing for another reason is not counted."""
    small.enter("checks", ("tests/test_one.py",))
    (small.root / "tests" / "test_one.py").write_text("def test_one():\n    assert False\n\ntest_two = test_one\n")
    assert not small.notices(changes()["(strict)"])


@pytest.mark.slow
def test_an_endless_run_is_noticed(small: scratch.Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with its time."""
    monkeypatch.setattr(scratch, "LEAST", 3.0)
    endless = SOURCE.replace(
        "return [value for value", "while len(values) == 9:\n        pass\n    return [value for value"
    )
    (small.root / "tieconv" / "one.py").write_text(endless)
    test = "from tieconv.one import each\n\ndef test_one():\n    assert each([1]) == [1]\n"
    (small.root / "tests" / "test_one.py").write_text(test)
    small.enter("checks", ("tests/test_one.py",))
    changes = {mutant.after: mutant for mutant in mutants("tieconv/one.py", endless.encode())}
    assert small.notices(changes["(len(values) != 9)"])


def test_failing_tests_are_no_measure(small: scratch.Scratch) -> None:
    """Where the unchanged package fails, the run says so and stops."""
    (small.root / "tests" / "test_one.py").write_text("def test_one():\n    assert False\n")
    with pytest.raises(SystemExit, match="the tests of checks fail without any change"):
        small.enter("checks", ("tests/test_one.py",))


@pytest.mark.slow
def test_a_run_that_does_not_start_notices_nothing(small: scratch.Scratch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin that was loaded before pytest is no failure, and an option that pytest lacks ends the whole run."""
    pytest.importorskip("anyio")
    monkeypatch.setattr(scratch, "LIBRARIES", ("anyio",))
    (small.root / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    small.enter("checks", ("tests/test_one.py",))
    assert not small.notices(changes()["(value <= LIMIT)"])
    monkeypatch.setattr(scratch, "WORDS", ("--no-such-option",))
    small.passing.clear()
    with pytest.raises(SystemExit, match="pytest does not run tests/test_one"):
        small.notices(changes()["(value <= LIMIT)"])
