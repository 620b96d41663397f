"""The commands that `inspect` recommends, followed to their end: from every damaged model of the repository."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tieconv as api
from fixtures.cases import CASES
from tests.cases.chains import chains
from tests.checks.fixtures import asked, builder
from tests.conftest import ROOT
from tieconv.checkpoint.finding import Level
from tieconv.checks import RULES

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
