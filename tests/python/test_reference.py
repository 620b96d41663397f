"""docs/python.md: every public name with an example, and every example run."""

from __future__ import annotations

import doctest
import runpy
import shutil
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
        assert f"heading: tieconv.{name}\n" in page and f"```pycon\n{example}```" in page


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
