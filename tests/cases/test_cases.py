"""Every failure of the catalogue: what `inspect` says of a file that shows it, and that its remedy works."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

import tieconv as api
from fixtures.cases import CASES, Case, Status
from tests.checks.remedy import run
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Inspection

BUILT = [pytest.param(case, id=name) for name, case in CASES.items() if case.build]


def inspect(case: Case, folder: Path) -> Inspection:
    assert case.build is not None
    return api.inspect(case.build(folder / "model"))


def test_every_case_has_an_entry() -> None:
    """The catalogue is C01 to C66 without a gap."""
    assert list(CASES) == [f"C{number:02d}" for number in range(1, 67)]


@pytest.mark.parametrize("name", CASES)
def test_an_entry_says_what_to_do(name: str) -> None:
    """What is reported names its rule; what is not says what helps, unless nothing is wrong."""
    case = CASES[name]
    assert bool(case.rules) == (case.status is Status.REPORTED)
    assert case.build is not None or case.status in (Status.ANOTHER_COMMAND, Status.REFUSED)
    assert case.remedy or case.fix or case.status is Status.SILENT


@pytest.mark.parametrize("case", BUILT)
def test_findings(case: Case, tmp_path: Path) -> None:
    """The rules that speak, and no others."""
    findings = inspect(case, tmp_path).findings
    assert tuple(sorted(f"{finding.rule} {finding.level}" for finding in findings)) == case.rules


@pytest.mark.parametrize("case", BUILT)
def test_states(case: Case, tmp_path: Path) -> None:
    """The states of the tied names, and whether they agree with what is declared."""
    inspection = inspect(case, tmp_path)
    states = {member.name: str(member.state) for tie in inspection.ties for member in tie.members}
    assert {name: states.get(name) for name in case.states} == dict(case.states)
    if case.consistent is not None:
        assert inspection.word_tie is not None
        assert inspection.word_tie.consistent is case.consistent


@pytest.mark.parametrize("case", [param for param in BUILT if param.values[0].remedy])
def test_remedy_works(case: Case, tmp_path: Path) -> None:
    """The command of the worst finding is the one written down, and ends the finding."""
    finding = inspect(case, tmp_path).findings[0]
    assert finding.remedy is not None
    words = shlex.split(finding.remedy.command)
    assert words[1 : 1 + len(case.remedy.split())] == case.remedy.split()
    out = tmp_path / "out"
    run(finding.remedy.command, out)
    after = api.inspect(out)
    assert finding.rule not in [later.rule for later in after.findings]
    assert Level.ERROR not in [later.level for later in after.findings]
