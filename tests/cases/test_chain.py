"""The commands that `inspect` recommends, followed to their end: from every damaged model of the repository."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from fixtures.cases import CASES
from tests.checks.fixtures import asked, builder
from tests.checks.remedy import run
from tests.conftest import ROOT
from tieconv import api
from tieconv.checkpoint.inspection import Finding, Inspection, Level, Remedy
from tieconv.checks import RULES

Build = Callable[[Path], Path]
LONGEST = 3
"""Commands that any model needs; a longer chain goes in circles."""

ABOUT_ANOTHER = frozenset({"PEF001"})
"""Rules whose command is about another model than the one inspected: the adapter stays as it is."""


def committed(name: str) -> Build:
    return lambda folder: shutil.copytree(ROOT / "fixtures" / "models" / name, folder)


def _models() -> Iterator[tuple[str, Build, str | None]]:
    for name, case in CASES.items():
        if case.build:
            yield name, case.build, None
    for rule in RULES:
        for kind in ("bad", "good"):
            if build := builder(rule.code, kind):
                yield f"{rule.code}-{kind}", build, asked(rule.code)
    for path in sorted((ROOT / "fixtures" / "models").iterdir()):
        yield path.name, committed(path.name), None


def recommended(inspection: Inspection) -> list[tuple[Finding, Remedy]]:
    return [(finding, finding.remedy) for finding in inspection.findings if finding.remedy]


def chains(folder: Path, loader: str | None, work: Path) -> Iterator[tuple[list[str], Inspection]]:
    """Every way through the recommended commands, whichever is taken first, and what is found at its end."""
    numbers = count()

    def follow(model: Path, trail: list[str]) -> Iterator[tuple[list[str], Inspection]]:
        found = api.inspect(model, consumers=loader)
        steps = recommended(found)
        if not steps:
            yield trail, found
        for finding, remedy in steps:
            assert len(trail) < LONGEST, f"in circles: {trail}"
            out = work / f"out{next(numbers)}"
            run(remedy.command, out)
            here = [*trail, f"{finding.rule}: {' '.join(shlex.split(remedy.command)[1:3])}"]
            after = api.inspect(out, consumers=loader)
            left = [later.rule for later in after.findings]
            assert finding.rule not in left, f"{here} leaves {left}"
            if finding.rule not in ABOUT_ANOTHER:
                yield from follow(out, here)

    yield from follow(folder, [])


@pytest.mark.parametrize(("name", "build", "loader"), [pytest.param(*one, id=one[0]) for one in _models()])
def test_what_is_recommended_leads_to_a_model_without_faults(
    name: str, build: Build, loader: str | None, tmp_path: Path
) -> None:
    """Each command works as it stands and ends its finding, no way goes in circles, none ends with a new error.

    An error or a warning that no command can end may stay: it was there at the start.
    """
    folder = build(tmp_path / "model")
    before = {finding.rule for finding in api.inspect(folder, consumers=loader).findings}
    for trail, end in chains(folder, loader, tmp_path):
        grave = {finding.rule for finding in end.findings if finding.level is not Level.NOTE}
        assert grave <= before, f"{trail} ends with {grave - before}"
