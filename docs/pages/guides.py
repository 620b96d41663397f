"""`guides/`: each page is run in an empty directory, and its console blocks show what its commands printed.

A guide may hold three kinds of blocks that are run, in the order of the page:

- A sentence "`model` is a copy of [`fixtures/models/NAME`](…)" puts that model there.
- A fenced block with a title, such as ```` ```python title="load.py" ````, is written to a file of that name.
- A ```` ```console ```` block: each line that starts with `$ ` is run by bash, and the lines after it are its output.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parent
GUIDES = HERE / "guides"
_STEP = re.compile(
    r"`(?P<copy>[\w-]+)` is a copy of\s+\[`(?P<source>fixtures/[\w/-]+)`\]"
    r"|^```\w+ title=\"(?P<file>[\w.-]+)\"\n(?P<content>.*?)^```$"
    r"|^```console\n(?P<transcript>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_ANSI = re.compile(r"\x1b\[[\d;]*m")
_END = "=== end of a command ==="
_SHELL = f'next() {{ local code=$?; printf "\\n%s\\n" "{_END}"; return $code; }}\n'


def pages() -> list[Path]:
    """Return the guides, the index left out."""
    return sorted(path for path in GUIDES.glob("*.md") if path.name != "index.md")


def page(path: Path) -> str:
    """Return the guide with the output of its commands as they print it now."""
    text = path.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name).resolve()
        environment = _environment(work)
        folder = work / "guide"
        folder.mkdir()
        return _STEP.sub(lambda step: _do(step, folder, environment), text)


def commands(text: str) -> list[str]:
    """Return the commands of the page's console blocks."""
    blocks = (step["transcript"] for step in _STEP.finditer(text) if step["transcript"])
    return [command for block in blocks for command in _commands(block)]


def _do(step: re.Match[str], folder: Path, environment: dict[str, str]) -> str:
    if step["copy"]:
        shutil.copytree(ROOT / step["source"], folder / step["copy"])
    elif step["file"]:
        (folder / step["file"]).write_text(step["content"], encoding="utf-8")
    else:
        return "```console\n" + "".join(_run(_commands(step["transcript"]), folder, environment)) + "```"
    return step[0]


def _commands(transcript: str) -> list[str]:
    return [line.removeprefix("$ ") for line in transcript.splitlines() if line.startswith("$ ")]


def _run(commands: list[str], folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """Yield each command and what it prints on both streams; one shell runs them all."""
    script = _SHELL + "".join(f"{command}\nnext\n" for command in commands)
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-c", script],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
    )
    outputs = done.stdout.split(f"\n{_END}\n")
    assert len(outputs) == len(commands) + 1, done.stdout
    for command, output in zip(commands, outputs, strict=False):
        plain = _ANSI.sub("", output.replace(f"{folder}/", ""))
        lines = [line.rstrip() for line in plain.strip("\n").splitlines()]
        yield "".join(f"{line}\n" for line in (f"$ {command}", *lines))


def _environment(work: Path) -> dict[str, str]:
    """Return variables under which `tieconv` and `python` are those that run this, and no output is a terminal's."""
    programs = work / "bin"
    programs.mkdir()
    for name, arguments in (("python", ""), ("tieconv", "-m tieconv")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    inherited = {name: os.environ[name] for name in ("HOME", "OMP_NUM_THREADS") if name in os.environ}
    return inherited | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "PYTHONHASHSEED": "0",  # messages that print a set
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
