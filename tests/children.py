"""Processes that a test starts: they heed signals as under a shell, and none outlives its test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.patience import HANGS

_STARTED: list[tuple[subprocess.Popen[Any], bool]] = []


def heed_signals() -> None:
    """Undo what a child inherits from `nohup`, from a shell's `&` and from `trap ''`: ignored signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(
    words: Sequence[str | os.PathLike[str]], *, prepare: Callable[[], object] = heed_signals, **options: Any
) -> subprocess.Popen[Any]:
    """Start a process whose signals have their default handlers. `end_all` ends it with its test.

    ``prepare`` runs in the child in place of `heed_signals`; ``options`` are those of `subprocess.Popen`.
    """
    process = subprocess.Popen(words, preexec_fn=prepare, **options)
    _STARTED.append((process, bool(options.get("start_new_session"))))
    return process


def end_all() -> None:
    """End what `start` started and still runs, with its process group if it has its own, and close its pipes."""
    while _STARTED:
        process, leads = _STARTED.pop()
        if leads:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
                os.killpg(process.pid, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None and not pipe.closed:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def wait_until(reached: Callable[[], bool], process: subprocess.Popen[Any] | None = None) -> None:
    """Return when ``reached`` is true. Fail if ``process`` ends before, or after `HANGS` seconds."""
    until = time.monotonic() + HANGS
    while not reached():
        assert process is None or process.poll() is None, f"ended early with {process.returncode}"
        assert time.monotonic() < until, f"not reached after {HANGS:.0f} s"
        time.sleep(0.005)


def sound(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Return a process that has ended, and with 0."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The JSON object that a process printed, which has ended with 0."""
    document: dict[str, Any] = json.loads(sound(done).stdout)
    return document
