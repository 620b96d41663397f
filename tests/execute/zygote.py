"""A process that has tieconv loaded and forks one child a command: ``python -m tests.execute.zygote MODULE...``.

Reads a JSON object a line: ``arguments`` of tieconv, ``log`` for its output, and ``stop`` to wait for SIGCONT before it
begins. Answers the child's number (once it has stopped, where it is to), and the status that it ended with. With
``warm`` the command runs here, for what it imports.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from contextlib import redirect_stdout, suppress
from typing import Any, NoReturn

from tieconv.cli import main as tieconv


def main() -> None:
    for module in ("tieconv.execute.carry_out", *sys.argv[1:]):
        importlib.import_module(module)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if request.get("warm"):
            with suppress(SystemExit), redirect_stdout(sys.stderr):
                tieconv(request["arguments"])
            print("warm", flush=True)
            continue
        child = os.fork()
        if not child:
            _run(request)
        if request["stop"]:
            os.waitpid(child, os.WUNTRACED)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _run(request: dict[str, Any]) -> NoReturn:
    code: object = 70
    try:
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, to in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, to)
        if request["stop"]:
            _allow_tracing()
            os.kill(os.getpid(), signal.SIGSTOP)
        tieconv(request["arguments"])
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _allow_tracing() -> None:
    """Let strace attach where a process may trace its own children alone (Yama's ptrace_scope 1)."""
    set_tracer, anybody = 0x59616D61, ctypes.c_ulong(-1)
    ctypes.CDLL(None).prctl(set_tracer, anybody, 0, 0, 0)


if __name__ == "__main__":
    main()
