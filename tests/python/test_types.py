"""`py.typed`: a type checker at its strictest knows every function, and finds the mistakes of a user's script."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tieconv

RIGHT = """\
from pathlib import Path
from typing import assert_type

import tieconv


def release(model: Path, out: Path) -> tieconv.Outcome | None:
    inspection = tieconv.inspect(model, consumers="vllm,transformers>=4.57")
    assert_type(inspection, tieconv.Inspection)
    for finding in inspection.findings:
        print(finding.rule, finding.remedy.command if finding.remedy else "")
    report = tieconv.check([model], fail_on="warning", jobs=2)
    assert_type(report.exit_code, int)
    try:
        planned = tieconv.plan_untie(model, bias="zero")
        assert_type(planned, tieconv.PlannedWrite)
        outcome = planned.execute(out, overwrite=True, verify="full")
    except tieconv.RefusedError as error:
        print(error.message, error.hint)
        return None
    assert_type(tieconv.diff(model, out), tieconv.Comparison)
    assert_type(tieconv.analyze(out).relation, str)
    assert_type(tieconv.parity(out / "model.onnx", model), tieconv.Parity)
    assert_type(tieconv.export(model, out).parity, tieconv.Parity | None)
    assert_type(tieconv.plan_graph_dedup(out).outcome(), tieconv.GraphOutcome)
    assert_type(tieconv.plan_push(out, "hf://org/name"), tieconv.Push)
    return outcome
"""

WRONG = """\
import tieconv

tieconv.inspect(3)
tieconv.plan_retie("m", survivors="embed")
tieconv.plan_untie("m").execute("out", verify="half")
tieconv.plan_nothing("m")
print(tieconv.inspect("m").tie)
"""
KINDS = {3: "arg-type", 4: "call-arg", 5: "arg-type", 6: "attr-defined", 7: "attr-defined"}


@pytest.mark.slow
def test_scripts_of_a_user_are_checked(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """`mypy --strict` finds nothing in a script that is right, and one fault in each line that is wrong."""
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    cache = pytestconfig.cache.mkdir("mypy")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(cache), "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": "", "MYPYPATH": str(Path(tieconv.__file__).parents[1])},
    )
    found = re.findall(r"^(\w+)\.py:(\d+): error: .*\[([a-z-]+)\]$", result.stdout, re.MULTILINE)
    assert found == [("wrong", str(line), kind) for line, kind in KINDS.items()], result.stdout + result.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(tieconv.__file__).parent / "py.typed").is_file()
