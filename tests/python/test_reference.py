"""docs/python.md and `py.typed`: every example runs, and a type checker knows every function."""

from __future__ import annotations

import doctest
import inspect
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tieconv

ROOT = Path(__file__).parents[2]
PAGE = runpy.run_path(str(ROOT / "docs" / "pages" / "python_examples.py"))
EXAMPLES: dict[str, str] = PAGE["EXAMPLES"]
FIXTURES = ROOT / "fixtures"
MODELS = {
    "model": "models/llama-duplicated", "tied": "models/llama-tied", "untied": "models/llama-untied",
    "diverged": "models/llama-diverged", "sharded": "models/llama-tied-sharded", "graph": "exported/mobius-llama",
    "graph-model": "exported/checkpoints/mobius-llama",
}  # fmt: skip


def test_every_public_name_has_an_example() -> None:
    """And no example is of a name that went away; the page shows each below its signature."""
    assert set(EXAMPLES) == set(tieconv.__all__) - {"__version__"}
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for name, example in EXAMPLES.items():
        assert f"```pycon\n{example}```" in page
        if name[0].isupper():
            assert f"heading: tieconv.{name}\n" in page
        else:
            call = page.split(f"### tieconv.{name}\n\n```python\n")[1].split("```")[0]
            assert all(parameter in call for parameter in inspect.signature(getattr(tieconv, name)).parameters)


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run an example as a session in a directory with the models that it names."""
    for model, source in MODELS.items():
        shutil.copytree(FIXTURES / source, folder / model)
    monkeypatch.chdir(folder)
    session = doctest.DocTestParser().get_doctest(EXAMPLES[name], {"tieconv": tieconv}, name, None, 0)
    assert session.examples
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS, verbose=False)
    assert runner.run(session, out=said.append).failed == 0, "".join(said)


@pytest.mark.parametrize("name", sorted({*EXAMPLES} - {*PAGE["ON_THE_HUB"], *PAGE["MEASURED"]}))
def test_an_example_gives_what_it_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session prints what the page says."""
    run(name, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGE["MEASURED"])
def test_an_example_that_measures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the others; the model runs in torch and in ONNX Runtime, which takes a minute."""
    run(name, tmp_path, monkeypatch)


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
