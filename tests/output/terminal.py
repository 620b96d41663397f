"""Run tieconv on a pseudo-terminal or with pipes, and say what a terminal or a CI runner would obey in its output."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.hostile.conftest import faults_of_text

TIMEOUT = 240
_BAR = re.compile(r"\x1b\[(?:\?25[lh]|2K|1A)|\r")
"""What rich's progress bars write: the cursor hidden, shown and moved up, a line cleared, and the start of the line."""
_WITH_BAR = "from tieconv.cli import main, screen; screen.PATIENCE = -1; main(prog_name='tieconv')"
"""tieconv that draws its bar at once, on a fast machine too."""
_OWN = re.compile(r"::(error|warning|notice) (file=[^:,\s]+,)?title=[^:]*::[^\n]*")
"""An annotation that tieconv means."""


def on_terminal(home: Path, *arguments: str) -> bytes:
    """What a terminal receives."""
    master, slave = pty.openpty()
    program = [sys.executable, "-P", "-c", _WITH_BAR, *arguments]
    with subprocess.Popen(program, cwd=home, env=_environment(), stdin=slave, stdout=slave, stderr=slave):
        os.close(slave)
        received = bytearray()
        with suppress(OSError):  # the end of a terminal
            while data := os.read(master, 1 << 16):
                received += data
    os.close(master)
    return bytes(received)


def piped(home: Path, *arguments: str) -> bytes:
    """What a log receives: stdout and stderr in one."""
    program = [sys.executable, "-P", "-m", "tieconv", *arguments]
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(program, cwd=home, env=_environment(), timeout=TIMEOUT, check=False, **streams).stdout


def faults(received: bytes, *, annotates: bool = False) -> list[str]:
    """What in it is obeyed and not meant."""
    try:
        text = _BAR.sub("\n", received.decode("utf-8"))
    except UnicodeDecodeError as error:
        return [f"is not UTF-8: {error}"]
    if annotates:
        text = "\n".join(line for line in text.split("\n") if not _OWN.fullmatch(line))
    return faults_of_text(text)


def _environment() -> dict[str, str]:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("TRANSFORMERS_VERBOSITY", "TQDM_DISABLE")
    }
    return {**environment, "NO_COLOR": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "100", "PYTHONUTF8": "1"}
