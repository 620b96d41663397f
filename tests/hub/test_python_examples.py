"""The examples of docs/python.md that push to the Hub, run against the stub."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hub.conftest import ROOT, TOKEN, Run
from tests.hub.stub import Hub
from tests.python.test_reference import EXAMPLES, PAGE

PROGRAM = """\
import doctest, sys, tieconv
session = doctest.DocTestParser().get_doctest(sys.argv[1], {"tieconv": tieconv}, "example", None, 0)
sys.exit(doctest.DocTestRunner().run(session).failed)
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PAGE["ON_THE_HUB"])
def test_an_example_gives_what_it_shows(name: str, hub: Hub, tieconv: Run, python: Run, tmp_path: Path) -> None:
    """`out` is the untied model of `org/name`."""
    hub.add("org/name", ROOT / "fixtures" / "models" / "llama-tied")
    assert tieconv("untie", "hf://org/name", "-o", tmp_path / "out").returncode == 0
    result = python(PROGRAM, EXAMPLES[name], HF_TOKEN=TOKEN)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(hub.commits) == (name == "push")
