"""Run a command of tieconv for the page, and return what it prints. Runs in Pyodide."""

from __future__ import annotations

import difflib
import io
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import tieconv
from tieconv.cli import main
from tieconv.version import VERSION

__all__ = ["VERSION", "run"]
MODELS = Path("/models")


def run(words: list[str]) -> dict[str, object]:
    """Return the exit code, stdout and stderr of ``tieconv WORDS``, and the small files that a plan changes."""
    MODELS.mkdir(exist_ok=True)
    os.chdir(MODELS)
    code, out, err = _printed(words)
    return {"code": code, "out": out, "err": err, "files": [] if code or "--json" in words else _small_files(words)}


def _printed(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def _small_files(words: list[str]) -> list[dict[str, str]]:
    """Return the name, the new text and the diff of each file, if the plan writes no weights."""
    if words[0] == "set-tie":
        planned = tieconv.plan_set_tie(words[1], words[2])
    elif words[0] == "reindex":
        planned = tieconv.plan_reindex(words[1])
    else:
        return []
    if planned.plan.weights:
        return []
    root = Path(planned.plan.checkpoint.root)
    return [
        {"name": written.name, "text": written.text, "diff": _diff(root / written.name, written.name, written.text)}
        for written in planned.plan.texts
    ]


def _diff(path: Path, name: str, text: str) -> str:
    before = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return "\n".join(difflib.unified_diff(before, text.splitlines(), name, name, lineterm=""))
