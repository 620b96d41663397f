"""Every failure of the catalogue, and every damaged model: what `inspect` says, and that its commands lead out."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tieconv as api
from fixtures.cases import CASES, Case, Status
from tests.cases.chains import chains
from tests.checks.fixtures import asked, builder
from tests.checks.remedy import run
from tests.conftest import ROOT
from tests.loops import case as in_case
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Inspection
from tieconv.checks.registry import RULES

BUILT = [pytest.param(case, id=name) for name, case in CASES.items() if case.build]


def inspect(case: Case, folder: Path) -> Inspection:
    assert case.build is not None
    return api.inspect(case.build(folder / "model"))


def test_every_case_has_an_entry() -> None:
    """The catalogue is C01 to C74 without a gap."""
    assert list(CASES) == [f"C{number:02d}" for number in range(1, 75)]


def test_an_entry_says_what_to_do() -> None:
    """What is reported names its rule; what is not says what helps, unless nothing is wrong."""
    for name in CASES:
        with in_case(name):
            case = CASES[name]
            assert bool(case.rules) == (case.status is Status.REPORTED)
            assert case.build is not None or case.status in (Status.ANOTHER_COMMAND, Status.REFUSED)
            assert case.remedy or case.fix or case.status is Status.SILENT


@pytest.mark.parametrize("case", BUILT)
def test_findings_and_states(case: Case, tmp_path: Path) -> None:
    """The rules that speak and no others, the states of the tied names, and whether they agree with the config."""
    inspection = inspect(case, tmp_path)
    assert tuple(sorted(f"{finding.rule} {finding.level}" for finding in inspection.findings)) == case.rules
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


Build = Callable[[Path], Path]


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


@pytest.mark.parametrize(("name", "build", "loader"), [pytest.param(*model, id=model[0]) for model in _models()])
def test_what_is_recommended_leads_to_a_model_without_faults(
    name: str, build: Build, loader: str | None, tmp_path: Path
) -> None:
    """Each command works as it stands and ends its finding, no way goes in circles, none ends with a new error.

    An error or a warning that no command can end may stay: it was there at the start.
    """
    folder = build(tmp_path / "model")
    before = {finding.rule for finding in api.inspect(folder, consumers=loader).findings}
    for trail, _, end in chains(folder, tmp_path, loader):
        grave = {finding.rule for finding in end.findings if finding.level is not Level.NOTE}
        assert grave <= before, f"{trail} ends with {grave - before}"
