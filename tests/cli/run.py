"""The command line in this process: fast, with stdout, stderr and exit code apart."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner, Result

from tieconv.cli import main


def run(line: str, *more: str | Path, text: str | None = None) -> Result:
    """``tieconv`` with the words of ``line`` and further arguments. Standard input is ``text``."""
    return CliRunner().invoke(main, [*shlex.split(line), *map(str, more)], input=text, prog_name="tieconv")


def ok(line: str, *more: str | Path, text: str | None = None) -> Result:
    """As `run`, and it must exit 0."""
    result = run(line, *more, text=text)
    assert result.exit_code == 0, result.output
    return result


def refused(line: str, *more: str | Path, after_plan: bool = False, text: str | None = None) -> str:
    """As `run`, and it must exit 2 with one error line and one hint line; returns the error.

    With ``after_plan`` the refusal comes while the model is written: the plan stands before it.
    """
    result = run(line, *more, text=text)
    assert result.exit_code == 2, result.output
    lines = result.stderr.splitlines()
    if after_plan:
        plan, lines = lines[:-2], lines[-2:]
        assert plan and plan[-1].startswith("  ")
    assert [text.split(":")[0] for text in lines] == ["error", "hint"], result.stderr
    assert result.stdout == ""
    return lines[0].removeprefix("error: ")
