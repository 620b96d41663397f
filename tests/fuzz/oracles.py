"""What must hold of every answer, whatever the model is."""

from __future__ import annotations

import json
import re
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

from click.testing import CliRunner

from tieconv.cli import main

SECONDS = 10.0
"""CPU seconds of one command; a case has a few kilobytes."""
MEGABYTES = 300
"""MiB by which one command may raise the peak of the process."""
LINES = 200
HANGS = 300
"""Wall seconds after which a command that waits, for example on a FIFO, is ended."""
_ANSWERS_NO = frozenset({"check", "diff", "fleet", "parity"})
_ANNOTATION = re.compile(r"::(error|warning|notice|debug|group|endgroup)( [a-zA-Z]+=[^\r\n]*?)?::")


def _peak() -> int:
    """KiB: the peak of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Slow(BaseException):
    """A command took more than its CPU time; nothing may catch this."""


@dataclass(frozen=True)
class Answer:
    """What one command gave, and what it cost."""

    words: tuple[str, ...]
    code: int
    stdout: str
    stderr: str
    seconds: float
    megabytes: float


def call(words: Sequence[str]) -> Answer:
    """Run ``tieconv`` with these words in this process."""
    before = _peak()  # other tests of this process have raised it
    started = time.process_time()
    try:
        with _limited(SECONDS):
            result = CliRunner().invoke(main, list(words))
    except Slow:
        return Answer(tuple(words), -1, "", f"more than {SECONDS:.0f} s of CPU time", SECONDS, 0.0)
    seconds = time.process_time() - started
    more = (_peak() - before) / 1024
    escaped = result.exception
    text = "" if escaped is None or isinstance(escaped, SystemExit) else f"\nTraceback: {escaped!r}"
    return Answer(tuple(words), result.exit_code, result.stdout, result.stderr + text, seconds, more)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Slow

    previous, waiting = signal.signal(signal.SIGPROF, stop), signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, previous)
        signal.signal(signal.SIGALRM, waiting)


def faults(answer: Answer) -> Iterator[str]:
    """Yield what is wrong with an answer, each as one sentence."""
    command = answer.words[0]
    both = f"{answer.stdout}\n{answer.stderr}"
    if answer.code == -1:
        yield answer.stderr
        return
    if answer.code not in ((0, 1, 2) if command in _ANSWERS_NO else (0, 2)):
        yield f"exit code {answer.code}"
    for words in ("this is a bug in tieconv", "Traceback", "out of memory"):
        if words in answer.stderr:
            yield f"{words}: {answer.stderr[-300:]}"
    unfinished = "--since" in answer.words and "wrote " in answer.stderr  # a report, which is an answer
    if (
        answer.code == 2
        and command != "check"
        and not unfinished
        and ("error: " not in answer.stderr or "hint: " not in answer.stderr)
    ):
        yield f"no sentence: {answer.stderr[:200]}"
    if answer.megabytes > MEGABYTES:
        yield f"took {answer.megabytes:.0f} MiB"
    if not {"json", "--json", "sarif", "junit", "markdown"} & set(answer.words) and both.count("\n") > LINES:
        yield f"printed {both.count(chr(10))} lines"
    yield from _of_text(both, annotates="github" in answer.words)
    if {"json", "--json", "sarif"} & set(answer.words) and answer.stdout.strip():
        yield from _of_json(answer.stdout)


def _of_text(text: str, *, annotates: bool) -> Iterator[str]:
    odd = sorted({one for one in text if one != "\n" and not one.isprintable()})
    if odd:
        at = text.index(odd[0])
        yield f"prints {''.join(odd)!a} after {text[max(0, at - 60) : at]!a}"
    for line in text.split("\n"):
        words = line.lstrip()
        if (words.startswith("::") and not (annotates and _ANNOTATION.match(line))) or words.startswith("##["):
            yield f"orders a CI runner: {line[:120]!a}"


def _of_json(text: str) -> Iterator[str]:
    try:
        json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        yield f"prints no JSON: {error}"


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not in JSON")
