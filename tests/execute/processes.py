"""Starting the driver, and what must hold after it was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests import children

from . import models

_TESTS = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Where the driver finds its modules; without byte code each run makes the same calls."""
    return {**os.environ, "PYTHONPATH": f"{_TESTS}:{_TESTS.parent}", "PYTHONDONTWRITEBYTECODE": "1"}


def command(kind: str, source: Path, out: Path, *options: str) -> list[str]:
    """The command line of the driver."""
    return [sys.executable, "-m", "execute.driver", kind, str(source), str(out), *options]


def start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """Start, with pipes."""
    return children.start(
        arguments, env=environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def state(path: Path) -> dict[str, str] | None:
    """What is at ``path``; ``None`` where nothing is."""
    return models.digest(path) if os.path.lexists(path) else None
