"""Each rule on each of its branches: level, message, tensors, command and its safety, word for word."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.checks.branches.near import near_miss
from tests.checks.branches.record import RECORD, cases, told
from tieconv import api
from tieconv.checkpoint.family import Tying
from tieconv.checks import RULES

CASES = cases()
EXPECTED = json.loads(RECORD.read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_findings_of_a_branch(case: str, tmp_path: Path) -> None:
    """What is said, how gravely, of which tensors, and which command is offered as safe or not."""
    build, loader = CASES[case]
    assert told(build, loader, tmp_path) == EXPECTED[case]


def test_every_case_is_recorded_and_every_rule_speaks() -> None:
    """No entry is left of a case that is gone, and no rule is without one."""
    assert EXPECTED.keys() == CASES.keys()
    assert {finding["rule"] for found in EXPECTED.values() for finding in found} == {rule.code for rule in RULES}


# No loader's answer on quantised codes was measured, which is what CON005 says.
NEAR = [(rule.code, kind) for rule in RULES for kind in ("quantised", "headless")]
NEAR.remove(("CON005", "quantised"))


@pytest.mark.parametrize(("code", "kind"), NEAR)
def test_a_near_miss_is_left_alone(code: str, kind: str, tmp_path: Path) -> None:
    """Codes in place of the pair, or a class without a head, give a rule nothing to report."""
    path, loader = near_miss(code, kind, tmp_path)
    inspection = api.inspect(path, consumers=loader)
    if kind == "headless" and not inspection.checkpoint.graphs and inspection.family.trusted:
        assert inspection.family.tying is Tying.HEADLESS
    assert code not in [finding.rule for finding in inspection.findings]
