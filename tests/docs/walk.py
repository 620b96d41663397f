"""Run a command and print, as JSON, the modules of tieconv that it enters, in order, and the calls that climb.

`python -m tests.docs.walk retie MODEL -o OUT`. A module is entered when one of its functions is called; what importing
it runs does not count.
"""

from __future__ import annotations

import io
import json
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

import tieconv
from tieconv.cli import main

PACKAGE = Path(tieconv.__file__).parent
PROJECT = PACKAGE.parent / "pyproject.toml"
VALUES = ("checkpoint", "errors", "install", "package_data", "text", "version")
"""Values and words, which every room uses: they are on no way."""
RECORDS = "checkpoint/value_type.py"
SCREEN = ("cli/check.py", "cli/fleet.py", "cli/graphs.py", "cli/write.py")
"""The modules of `cli` that take a part in the work; the others read options and print."""
SINGLY = ("api", "execute", "gate", "onnx/parity", "plans", "plans/verbs")
"""Folders whose modules stand on a way one by one; any other folder stands for all that is below it."""


def step(module: str) -> str | None:
    """The line of a walk that a module belongs to; ``None`` for values and for the screen."""
    room, _, _ = module.partition("/")
    folder = module.rpartition("/")[0]
    if room.removesuffix(".py") in VALUES or (room == "cli" and module not in SCREEN):
        return None
    if module in SCREEN or not folder or folder in SINGLY:
        return module
    return f"{folder}/" if room in ("execute", "onnx", "plans") else f"{room}/"


class Walk:
    """Profile calls: ``modules`` in the order in which they are entered, ``climbs`` from a lower layer to a higher."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self.climbs: dict[tuple[str, str], None] = {}
        self._calls: set[tuple[str, str]] = set()
        layers = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
        self._floors = {room: -number for number, layer in enumerate(layers) for room in layer.split(" | ")}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        module = self._module(frame) if event == "call" else None
        if module is None:
            return
        above, caller = frame.f_back, None
        while above is not None and caller is None:
            above, caller = above.f_back, self._module(above)
            if caller == RECORDS:  # an instance is made: the call is of whoever makes it
                caller = None
        call = (caller or "", module)
        if call in self._calls or _is_imported(frame):
            return
        self._calls.add(call)
        self.modules.setdefault(module)
        if caller is not None and self._floor(module) > self._floor(caller):
            self.climbs.setdefault(call)

    def _module(self, frame: FrameType) -> str | None:
        path = frame.f_code.co_filename
        return path.removeprefix(f"{PACKAGE}/") if path.startswith(f"{PACKAGE}/") else None

    def _floor(self, module: str) -> int:
        return self._floors.get(module.partition("/")[0].removesuffix(".py"), 0)


def _is_imported(frame: FrameType | None) -> bool:
    """Whether a call is part of importing a module."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def walked(arguments: list[str]) -> dict[str, object]:
    """The exit code of a command, the steps of its way, and its climbs."""
    walk, code = Walk(), 0
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        sys.setprofile(walk)
        try:
            main(arguments, prog_name="tieconv")
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            sys.setprofile(None)
    steps = dict.fromkeys(step(module) for module in walk.modules)
    return {
        "code": code,
        "steps": [name for name in steps if name],
        "climbs": [f"{a} -> {b}" for a, b in walk.climbs],
        "files": len([name for name in sys.modules if name.partition(".")[0] == "tieconv"]),
    }


if __name__ == "__main__":
    print(json.dumps(walked(sys.argv[1:])))
