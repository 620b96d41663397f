"""Carry out the command of a finding, as a user would."""

from __future__ import annotations

import shlex
from pathlib import Path

from click.testing import CliRunner

from tieconv.cli import main


def run(command: str, out: Path) -> None:
    """Run a remedy with ``out`` for its OUT."""
    program, *words = shlex.split(command)
    assert (program, words[-2:]) == ("tieconv", ["-o", "OUT"])
    result = CliRunner().invoke(main, [*words[:-1], str(out)])
    assert result.exit_code == 0, f"{command}\n{result.output}"
