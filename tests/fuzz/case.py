"""One fuzz case: the files of a model, what MODEL names, and how a case is kept as a seed."""

from __future__ import annotations

import base64
import json
import os
import zlib
from dataclasses import dataclass, field
from pathlib import Path

SEEDS = Path(__file__).parent / "seeds"
LINK, PIPE, OPEN = b"\0symlink", b"\0fifo", b"\0mode6777"
"""How the content of a file begins that is written as a symlink, a FIFO, or with every bit of its mode set."""


@dataclass(frozen=True)
class Case:
    """A model as files.

    ``model`` is the path that a command gets, relative to the case's directory, ``.`` for the directory. ``kind`` names
    the reference reader and ``read`` the files that it reads; a case without ``kind`` has none. ``answers`` are what
    the stub of the Hub says instead of its own answers. In a target of `KEPT_FILES`, ``commands`` are whole command
    lines that run in the directory above, and only what is below a name of ``written`` may change.
    """

    target: str
    files: dict[str, bytes]
    model: str = "."
    kind: str = ""
    read: tuple[str, ...] = ()
    answers: dict[str, bytes] = field(default_factory=dict)
    commands: tuple[tuple[str, ...], ...] = ()
    written: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the files below ``folder``; a name that the file system refuses is left out."""
        for name, data in self.files.items():
            path = folder / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                kind, _, rest = data.partition(b":")
                if kind == LINK:
                    path.symlink_to(rest.decode())
                elif kind == PIPE:
                    os.mkfifo(path)
                else:
                    path.write_bytes(rest if kind == OPEN else data)
                    path.chmod(0o6777 if kind == OPEN else 0o644)
            except (OSError, ValueError):
                continue


def pack(case: Case, why: str) -> str:
    """Return the text of a seed file."""
    document = {
        "target": case.target,
        "why": why,
        "model": case.model,
        "kind": case.kind,
        "read": list(case.read),
        "commands": [list(words) for words in case.commands],
        "written": list(case.written),
        "files": {name: _pressed(data) for name, data in case.files.items()},
        "answers": {name: _pressed(data) for name, data in case.answers.items()},
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def unpack(text: str) -> tuple[Case, str]:
    """Return the case of a seed file and the reason for which it was kept."""
    found = json.loads(text)
    files = {name: _unpressed(data) for name, data in found["files"].items()}
    answers = {name: _unpressed(data) for name, data in found["answers"].items()}
    commands = tuple(tuple(words) for words in found["commands"])
    written = tuple(found.get("written", ()))
    case = Case(found["target"], files, found["model"], found["kind"], tuple(found["read"]), answers, commands, written)
    return case, found["why"]


def _pressed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()


def _unpressed(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))
