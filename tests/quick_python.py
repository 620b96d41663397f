"""Python programs in children of one process that has the libraries loaded: most of a short command is its imports.

`Server` starts that process, ``python -P -m tests.quick_python``. A request is a JSON object a line, the answer an exit
code. A child has the arguments, the variables, the directory and the streams of a process of its own.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from click.testing import CliRunner

from tests.children import heed_signals
from tests.patience import HANGS

ROOT = Path(__file__).parents[1]
WARM = ("inspect", "check", "untie", "retie", "dedup", "analyze")
"""Commands on a fixture whose imports a child then has."""
LIBRARIES = (
    "huggingface_hub.hf_api", "huggingface_hub.utils.tqdm", "huggingface_hub._snapshot_download", "encodings.idna",
    "_strptime", "obstore.store", "tieconv.sources.hub.source", "tieconv.sources.hub.files", "tieconv.execute.write",
    "tieconv.sources.objects.client",
)  # fmt: skip
"""What else a child then has."""
CONSTANTS = "huggingface_hub.constants"
"""The one module of the Hub's client that reads variables for what tieconv calls; a child reads them again."""
TIMEOUTS = {"HF_HUB_DOWNLOAD_TIMEOUT": "30", "HF_HUB_ETAG_TIMEOUT": "30"}
"""Variables that huggingface_hub's functions have read for good: in defaults of parameters."""


RUNNING: set[int] = set()
"""The processes of the servers that have not ended."""
MEASURED = "TIECONV_REACHED"
"""The variable of `tests.mutants.recorder`. With it, each child tells which lines of the package it ran."""


class Server:
    """The process that forks the children. One command runs at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.lines: dict[str, list[int]] = {}

    def run(
        self, words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``python -P WORDS`` as `subprocess.run` does, with its output captured.

        ``words`` start with ``-m MODULE`` or ``-c PROGRAM``.
        """
        with tempfile.TemporaryDirectory() as folder:
            streams = [str(Path(folder) / name) for name in ("stdin", "stdout", "stderr")]
            Path(streams[0]).write_text(stdin or "", encoding="utf-8")
            request = {"words": [*words], "env": {**env}, "cwd": str(cwd), "streams": streams}
            lines = Path(folder) / "lines"
            code = self._ask(request | ({"lines": str(lines)} if MEASURED in os.environ else {}))
            for file, numbers in (json.loads(lines.read_text()) if lines.exists() else {}).items():
                self.lines.setdefault(file, []).extend(numbers)
            outputs = [Path(name).read_text(encoding="utf-8") for name in streams[1:]]
        return subprocess.CompletedProcess(list(words), code, *outputs)

    def _ask(self, request: dict[str, Any]) -> int:
        if self._process is None:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tests.quick_python"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**kept, **TIMEOUTS, "PYTHONPATH": str(ROOT)},
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=heed_signals,
            )
            RUNNING.add(self._process.pid)
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"the process that starts programs ended: {self._process.wait()}"
        return int(answer)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.communicate()
            RUNNING.discard(self._process.pid)
            self._process = None


def serve() -> None:
    """Answer requests until the input ends."""
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    if MEASURED in os.environ:
        importlib.import_module("coverage")
    for verb in WARM:
        CliRunner().invoke(
            importlib.import_module("tieconv.cli").main, [verb, str(ROOT / "fixtures" / "models" / "t5")]
        )
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _run(json.loads(line))
        alarm = threading.Timer(HANGS, os.kill, (child, signal.SIGKILL))
        alarm.start()
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        alarm.cancel()
        print(code, flush=True)


def _run(request: dict[str, Any]) -> NoReturn:
    code = 1
    try:
        _become(request)
        with _measured(request.get("lines")):
            code = _execute(request["words"])
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)


@contextmanager
def _measured(path: str | None) -> Iterator[None]:
    """Write which lines of the package run, by file, if there is a path for them."""
    if path is None:
        yield
        return
    from coverage import Coverage

    measured = Coverage(data_file=None, config_file=False, source=[str(ROOT / "tieconv")])
    measured.set_option("run:disable_warnings", ["already-imported", "no-data-collected", "module-not-measured"])
    measured.start()
    try:
        yield
    finally:
        measured.stop()
        data = measured.get_data()
        lines = {Path(file).relative_to(ROOT).as_posix(): data.lines(file) for file in data.measured_files()}
        Path(path).write_text(json.dumps(lines), encoding="utf-8")


def _become(request: dict[str, Any]) -> None:
    """Take the streams, the variables and the directory."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    for number, name in enumerate(request["streams"]):
        opened = os.open(name, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    # The streams of `sys` live on: they write to the numbers 1 and 2, and nothing was written through them before.
    if CONSTANTS in sys.modules:
        importlib.reload(sys.modules[CONSTANTS])


def _execute(words: list[str]) -> int:
    """Run the module or the program; the exit code that Python would end with."""
    kind, program, *rest = words
    sys.argv = [kind, *rest]
    try:
        if kind == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve()
