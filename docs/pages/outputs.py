"""Blocks of real output: each fenced block after ``<!-- run: tieconv … -->`` is what that command prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from tieconv.cli import main

_BLOCK = re.compile(r"<!-- run: (tieconv [^\n]*?) -->\n```[a-z]*\n.*?```", re.DOTALL)


def page(path: Path) -> str:
    """Return the page at ``path`` with every block run again. Needs the root of the repository as current directory."""
    return _BLOCK.sub(lambda match: _run(match.group(1)), path.read_text(encoding="utf-8"))


def _run(command: str) -> str:
    result = CliRunner().invoke(main, shlex.split(command)[1:], prog_name="tieconv")
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return f"<!-- run: {command} -->\n```console\n$ {command}\n{result.output.rstrip()}\n```"
