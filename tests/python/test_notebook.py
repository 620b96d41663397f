"""Results in a notebook that a real kernel runs."""

from __future__ import annotations

from pathlib import Path

import pytest

MODELS = Path(__file__).parents[2] / "fixtures" / "models"

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
