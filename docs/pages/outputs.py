"""Run the commands of the pages. Each fenced block after ``<!-- run: tieconv … -->`` is what that command prints."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from tieconv.cli import main

_BLOCK = re.compile(r"<!-- run: (tieconv [^\n]*?) -->\n```[a-z]*\n.*?```", re.DOTALL)


def page(path: Path) -> str:
    """Return the page at ``path`` with every block run again. Needs the root of the repository as current directory."""
    return _BLOCK.sub(lambda match: _run(match.group(1)), path.read_text(encoding="utf-8"))


def printed(words: Sequence[str], **options: Any) -> str:
    """Return what ``tieconv WORDS`` prints on both streams. ``options`` are those of Click's runner."""
    result = CliRunner().invoke(main, list(words), prog_name="tieconv", **options)
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result.output.rstrip()


def _run(command: str) -> str:
    return f"<!-- run: {command} -->\n```console\n$ {command}\n{printed(shlex.split(command)[1:])}\n```"
