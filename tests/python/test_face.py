"""`import tieconv` at a prompt and in a notebook: what it lists, completes and shows of a result."""

from __future__ import annotations

import pickle
import re
import rlcompleter
import shutil
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tieconv
from tests.lazy import torch
from tests.onnx.graphs import write_graph
from tieconv.checkpoint.results.parity import Verdict
from tieconv.checkpoint.results.push import FileChange
from tieconv.checkpoint.value_type import Summarised

MODELS = Path(__file__).parents[2] / "fixtures" / "models"


def test_dir_lists_what_is_public_before_anything_is_loaded() -> None:
    """A fresh interpreter lists every public name, and nothing else that is not a dunder."""
    code = "import sys, tieconv; print(*(n for n in dir(tieconv) if not n.startswith('__')))"
    code += "; print(*(n for n in sys.modules if n.startswith('tieconv.')))"
    names, modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert names.split() == sorted(set(tieconv.__all__) - {"__version__"})
    assert modules.split() == ["tieconv.version"]
    assert "plan_retie" in dir(tieconv) and "_HOMES" not in dir(tieconv)


def test_tab_completes_a_name_that_is_not_loaded() -> None:
    """The completer of Python's own prompt finds functions and types."""
    completer = rlcompleter.Completer({"tieconv": tieconv})
    found = [completer.complete("tieconv.plan_un", state) for state in range(2)]
    assert found == ["tieconv.plan_untie(", None]
    assert str(completer.complete("tieconv.Insp", 0)).startswith("tieconv.Inspection")


def test_every_name_is_there_without_torch_and_onnx() -> None:
    """`from tieconv import *` and `help` work in the base install."""
    blocked = "for n in ('torch', 'onnx', 'onnx_ir', 'onnxruntime', 'transformers'): sys.modules[n] = None"
    code = f"import sys\n{blocked}\nfrom tieconv import *\nprint(Inspection.__name__)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == "Inspection\n"


def results(tmp_path: Path) -> dict[str, Summarised]:
    """One result of each public type that needs no network, and how its `repr` begins."""
    model, tied = str(MODELS / "llama-duplicated"), str(MODELS / "llama-tied")
    planned = tieconv.plan_retie(model)
    graph = write_graph(tmp_path / "model.onnx", {"w": torch.ones(64, 32)})
    graphs = tieconv.plan_graph_dedup(graph)
    push = tieconv.Push("out", "org/name", None, "c0", True, "", "", (), (FileChange("add", "a", 5),))
    passed = tieconv.Parity(Verdict.PASSED, "model.onnx", model, parity_provider())
    return {
        f"Inspection('{model}', tied, 1 tie, 1 file, 1 warning)": tieconv.inspect(model),
        f"Checkpoint('{model}', safetensors, 1 file, 21 tensors)": planned.plan.checkpoint,
        f"PlannedWrite('{model}', retie, writes 43.3 kB)": planned,
        f"Plan('{model}', retie, writes 43.3 kB)": planned.plan,
        f"Outcome('{model}', retie, not executed)": planned.outcome(),
        f"Outcome('{model}', retie, written to '{tmp_path / 'o'}')": planned.execute(tmp_path / "o"),
        "CheckReport(2 models, 1 failed, 1 warning)": tieconv.check([model, tied]),
        f"Comparison('{model}', '{tied}', same function, 0 tensors differ)": tieconv.diff(model, tied),
        f"Analysis('{model}', bit-equal, 4 sections)": tieconv.analyze(model),
        f"PlannedGraphs('{graph}', dedup, writes 8.31 kB)": graphs,
        f"GraphOutcome('{graph}', dedup, not executed)": graphs.outcome(),
        "Push('out', 'org/name', 1 file to push)": push,
        "Parity('model.onnx', passed, CPUExecutionProvider, 0 cases)": passed,
    }


def parity_provider():
    from tieconv.checkpoint.results.parity import ProviderUse

    return ProviderUse("cpu", "CPUExecutionProvider")


def test_a_result_shows_itself_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`repr` names the type, the source and the answer; paths here are short enough to stand whole."""
    monkeypatch.setattr("tieconv.checkpoint.value_type._SOURCE", 300)
    expected = results(tmp_path)
    assert [repr(result) for result in expected.values()] == list(expected)


def test_a_long_path_is_cut_and_an_evil_one_escaped(tmp_path: Path) -> None:
    """The line stays short, and nothing in a name reaches a terminal."""
    folder = tmp_path / ("a" * 200) / "last\x1b[31m\n\u202e"
    folder.parent.mkdir()
    folder.symlink_to(MODELS / "llama-tied")
    shown = repr(tieconv.inspect(folder))
    assert len(shown) < 150 and shown.isprintable() and shown.startswith("Inspection('…aaa") and "last\\x1b" in shown


class Text(HTMLParser):
    """The tags of a fragment, each closed, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.add(tag)
        self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.cells[-1] += data


def test_a_notebook_shows_a_table(tmp_path: Path) -> None:
    """Every result gives a closed fragment of tags that hold text, in the notebook's own colours."""
    for line, result in results(tmp_path).items():
        if "Checkpoint" in line:
            continue
        fragment = result._repr_html_()
        page = Text()
        page.feed(fragment)
        assert not page.open and page.tags <= {"div", "p", "strong", "table", "tbody", "tr", "td"}
        assert page.cells[2].startswith(type(result).__name__)
        assert not re.search(r"color|background|script|http", re.sub(r">[^<]*<", "><", fragment))
    inspection = Text()
    inspection.feed(tieconv.inspect(MODELS / "llama-duplicated")._repr_html_())
    assert "TIE002" in inspection.cells and any(cell.startswith("tieconv retie ") for cell in inspection.cells)
    plan = Text()
    plan.feed(tieconv.plan_retie(MODELS / "llama-duplicated")._repr_html_())
    at = plan.cells.index("drop")
    assert plan.cells[at + 1] == "lm_head.weight" and "equal to model.embed_tokens.weight" in plan.cells[at + 2]
    assert ", untied in transformers 5, 1 tie" in repr(tieconv.inspect(MODELS / "llama-diverged"))
    marks = {"llama-duplicated": "■ identical", "llama-tied": "↑ absent", "llama-diverged": "□ near"}
    for name, mark in marks.items():
        assert f">{mark}<" in tieconv.inspect(MODELS / name)._repr_html_()


def test_a_table_is_short_and_escaped() -> None:
    """Twelve rows and a count of the others; a name is text, whatever it holds."""
    changes = tuple(FileChange("add", f"<script>{n}</script>\x1b", 1) for n in range(20))
    fragment = tieconv.Push("<b>", "o/n", None, "c", True, "", "", (), changes)._repr_html_()
    assert fragment.count("<tr>") == 12 and "… and 8 more" in fragment
    assert "<script>" not in fragment and "<b>" not in fragment and "\x1b" not in fragment
    assert "mathjax_ignore" in fragment, "a name between dollars is no formula"


def test_results_travel_between_processes() -> None:
    """A short `repr` loses nothing: a result is pickled and compared by its values."""
    inspection = tieconv.inspect(MODELS / "llama-tied")
    assert str(pickle.loads(pickle.dumps(inspection))) == str(inspection)


COMPLETED = """\
from IPython.core.completer import provisionalcompleter
with provisionalcompleter():
    found = [one.text for one in get_ipython().Completer.completions("tieconv.plan_un", len("tieconv.plan_un"))]
found"""
"""What a press of Tab asks the kernel for."""


@pytest.mark.slow
@pytest.mark.needs("nbclient", "ipykernel")
def test_a_real_notebook_shows_the_table_and_completes_names() -> None:
    """A kernel runs the cells; the outputs are what a browser gets."""
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [
        f"import tieconv; tieconv.inspect({str(MODELS / 'llama-duplicated')!r})",
        COMPLETED,
        f"tieconv.plan_retie({str(MODELS / 'llama-diverged')!r})",
    ]
    notebook = new_notebook(cells=[new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=120, allow_errors=True).execute()
    shown, completed, failed = (cell["outputs"][0] for cell in notebook["cells"])
    assert "TIE002" in shown["data"]["text/html"] and shown["data"]["text/plain"].startswith("Inspection('")
    assert "plan_untie" in completed["data"]["text/plain"]
    assert failed["ename"] == "RefusedError"
    assert any("hint: " in line and "survivor=" in line for line in failed["traceback"])


def test_a_plan_writes_only_where_the_call_says(tmp_path: Path) -> None:
    """Both destinations, neither, and a model that is in memory are refused before anything is read or written."""
    shutil.copytree(MODELS / "llama-duplicated", tmp_path / "model")
    before = (tmp_path / "model/model.safetensors").read_bytes()
    plan = tieconv.plan_retie(tmp_path / "model")
    for call in (partial(plan.execute, tmp_path / "out", in_place=True), plan.execute):
        with pytest.raises(ValueError, match="in_place=True"):
            call()
    with pytest.raises(ValueError, match="a model on disk, and not a object"):
        tieconv.plan_retie(object())  # type: ignore[arg-type]
    assert (tmp_path / "model/model.safetensors").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
