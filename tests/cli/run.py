"""The command line in this process: fast, with stdout, stderr and exit code apart."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner, Result

from tieconv.cli import main


def run(line: str, *more: str | Path) -> Result:
    """``tieconv`` with the words of ``line`` and further arguments."""
    return CliRunner().invoke(main, [*shlex.split(line), *map(str, more)], prog_name="tieconv")


def ok(line: str, *more: str | Path) -> Result:
    """As `run`, and it must exit 0."""
    result = run(line, *more)
    assert result.exit_code == 0, result.output
    return result


def refused(line: str, *more: str | Path) -> str:
    """As `run`, and it must exit 2 with one error line and one hint line; returns the error."""
    result = run(line, *more)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    assert [text.split(":")[0] for text in lines] == ["error", "hint"], result.stderr
    assert result.stdout == ""
    return lines[0].removeprefix("error: ")
