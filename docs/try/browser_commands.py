"""Run a command of tieconv for the page, and return what it prints. Runs in Pyodide."""

from __future__ import annotations

import difflib
import io
import os
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import tieconv
from tieconv.checkpoint.model_files import Files, Listing
from tieconv.cli import main
from tieconv.opened import opened
from tieconv.version import VERSION

__all__ = ["VERSION", "run"]
MODELS = Path("/models")


def run(words: list[str], folder: str = "") -> dict[str, object]:
    """Return the exit code, stdout and stderr of ``tieconv WORDS``, and the small files that a plan changes.

    Runs it where the models are, or in the ``folder`` of one of them.
    """
    MODELS.mkdir(exist_ok=True)
    os.chdir(MODELS)
    with chdir(MODELS / folder):  # a working directory cannot be unmounted
        code, out, err = _printed(words)
        files = [] if code or "--json" in words else _small_files(words)
    return {"code": code, "out": out, "err": err, "files": files}


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
    """Return the name, the text and the diff of the small files of a plan, or of its config if it writes weights."""
    if words[0] == "set-tie":
        planned = tieconv.plan_set_tie(words[1], words[-1])
    elif words[0] == "reindex":
        planned = tieconv.plan_reindex(words[-1])
    elif words[0] == "retie":
        planned = tieconv.plan_retie(words[-1])
    else:
        return []
    weights = bool(planned.plan.weights)
    texts = [text for text in planned.plan.texts if not weights or text.name == "config.json"]
    with opened(planned.plan.checkpoint.source) as (listing, files, _):
        return [
            {"name": text.name, "text": text.text, "diff": diff, "alone": "" if weights else "only "}
            for text in texts
            if (diff := _diff(_text(listing, files, text.name), text.name, text.text))
        ]


def _text(listing: Listing, files: Files, name: str) -> str:
    return files.pread(name, listing.entries[name], 0).decode() if name in listing.entries else ""


def _diff(before: str, name: str, text: str) -> str:
    return "\n".join(difflib.unified_diff(before.splitlines(), text.splitlines(), name, name, lineterm=""))
