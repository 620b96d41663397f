"""Measure or open a graph in a child process that limits of time and memory, or Ctrl-C, end at once.

A session of ONNX Runtime holds the interpreter while a graph runs. No signal handler runs then, and no deadline counts.
The graph decides how long that takes and how much memory it needs. A loop may never end, and a constant may have any
shape. The child is a fork, made before torch and ONNX Runtime are imported, so it costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tieconv.checkpoint.finding import Finding, Level
from tieconv.checkpoint.model_files import REFUSED_BY_READER, Checkpoint
from tieconv.checkpoint.value_type import record
from tieconv.checks.index_rules import reader_refuses
from tieconv.errors import NotRunError, RefusedError
from tieconv.onnx.graph_model import has_onnxruntime, referring
from tieconv.sources.temporary import PARENT_WATCH
from tieconv.text import Hint, option, shown, size as bytes_text

Result = TypeVar("Result")
_TICK = 0.1
"""Seconds between two looks at the child."""
_WAITS = 10
"""A call may wait this many times as long as it may compute: other programs may use the processors."""
_PARENT_DEATH = 1
"""`PR_SET_PDEATHSIG` of prctl(2)."""
_PROGRESS = "%"
"""The first character of a line that says how far the work is."""
Progress = Callable[[str, int, int], None]
"""Called with the name of a stage, how much is done, and how much there is."""
_status: int | None = None
"""In the child, where it writes when a call of the session starts and ends."""
_listener: Progress | None = None
"""Without a child, called with how far the work is."""


@record
class Limits:
    """What one call of a session may take: seconds of computing on every processor, and bytes of the whole child."""

    seconds: float
    memory: int


def limits_for(stored: int, seconds: float | None = None, memory: int | None = None) -> Limits:
    """Return the limits for graphs and checkpoints of ``stored`` bytes; what the user gave comes first.

    A float64 reference takes four times the bytes of a bf16 checkpoint, and a session several copies of its weights. A
    call of a session reads each weight a few times: a gigabyte takes seconds.
    """
    return Limits(
        30 + 120 * stored / (1 << 30) if seconds is None else seconds,
        (4 << 30) + 24 * stored if memory is None else memory,
    )


@contextmanager
def session_call(name: str) -> Iterator[None]:
    """Mark a call of a session, which the parent limits. ``name`` is what the call does. Costs two writes to a pipe."""
    if _status is None:
        yield
        return
    os.write(_status, f"{name}\n".encode())
    try:
        yield
    finally:
        os.write(_status, b"\n")


def advance(stage: str, done: float, total: float) -> None:
    """Tell the parent how far the work of the child is. Costs a write to a pipe."""
    if _listener is not None:
        _listener(stage, int(done), int(total))
    if _status is not None:
        os.write(_status, f"{_PROGRESS}{stage}:{done:.0f}:{total:.0f}\n".encode())


@contextmanager
def reporting(progress: Progress) -> Iterator[None]:
    """Call ``progress`` with what `advance` says in this process."""
    global _listener
    _listener = progress
    try:
        yield
    finally:
        _listener = None


def limited(
    work: Callable[[], Result], limits: Callable[[], Limits], graph: str, progress: Progress | None = None
) -> Result:
    """Return what ``work`` returns, or raise what it raises, from a child process with these limits.

    Raises `NotRunError` if the graph exceeds a limit, or if the child ends unexpectedly. Runs ``work`` in this process
    if a fork is not safe. That is so beside other threads, after an import of torch or ONNX Runtime, and in a debugger.
    """
    # the thread that waits for the parent of a worker holds no lock
    threads = {thread.name for thread in threading.enumerate() if thread is not threading.current_thread()}
    unsafe = threads - {PARENT_WATCH} or "torch" in sys.modules or "onnxruntime" in sys.modules
    if sys.platform != "linux" or unsafe or sys.gettrace() or sys.getprofile():
        return work()
    folder = tempfile.mkdtemp(prefix="tieconv-child-")
    status, result = os.pipe(), os.pipe()
    parent = os.getpid()
    # Python calls functions after a fork, and ignores what a signal handler raises there: Ctrl-C would be lost.
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        os.close(status[0])
        os.close(result[0])
        _serve(work, status[1], result[1], folder, parent)
    os.close(status[1])
    os.close(result[1])
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        answer = _watch(child, status[0], result[0], limits(), graph, progress)
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
        os.close(status[0])
        os.close(result[0])
        shutil.rmtree(folder, ignore_errors=True)  # what a killed child left
    succeeded, value = pickle.loads(answer)  # noqa: S301 - written by our own fork
    if not succeeded:
        raise value
    made: Result = value
    return made


def _serve(work: Callable[[], Any], status: int, result: int, folder: str, parent: int) -> NoReturn:
    """Run ``work`` and write its result: the life of the child."""
    global _status
    code = 1
    try:
        with suppress(OSError, AttributeError):  # the child must not outlive a parent that is killed
            ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the child
        tempfile.tempdir, _status = folder, status
        try:
            answer = pickle.dumps((True, work()))
        except Exception as error:  # noqa: BLE001 - the parent raises it
            answer = pickle.dumps((False, error))
        with os.fdopen(result, "wb") as file:
            file.write(answer)
        sys.stderr.flush()
        code = 0
    finally:
        os._exit(code)


def _watch(child: int, status: int, result: int, limits: Limits, graph: str, progress: Progress | None) -> bytes:
    """Return the child's answer. Raises `NotRunError` at a limit. A Ctrl-C raises here at once."""
    os.set_blocking(status, False)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    answer: list[bytes] = []
    call, started, computed = "", 0.0, 0.0
    while True:
        if select.select([result], [], [], _TICK)[0]:
            data = os.read(result, 1 << 16)
            if not data:
                return _whole(b"".join(answer), child, call, graph)
            answer.append(data)
            continue
        with suppress(BlockingIOError):
            for mark in os.read(status, 1 << 16).decode().split("\n")[:-1]:
                if not mark.startswith(_PROGRESS):  # a call has started or ended since the last look
                    call, started, computed = mark, time.monotonic(), _cpu(child)
                elif progress is not None:
                    stage, done, total = mark[1:].split(":")
                    progress(stage, int(done), int(total))
        fields = _proc(child, "statm").split()
        # Anonymous memory alone: the pages of files that the child maps do not count.
        memory = (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 2 else 0
        if memory > limits.memory:
            raise NotRunError(
                f"{shown(graph)}: {call or 'the measurement'} takes more than {bytes_text(limits.memory)} of memory",
                Hint("allow more with ", option("max_memory"), ", if you trust the graph"),
                "session.limit-memory",
            )
        waited = time.monotonic() - started
        spent = max((_cpu(child) - computed) / processors, waited / _WAITS)
        if call and waited > limits.seconds and spent > limits.seconds:
            problem = f"{shown(graph)}: {call} does not end within {limits.seconds:,.0f} s"
            hint = Hint("allow more with ", option("timeout"), ", if you trust the graph")
            raise NotRunError(problem, hint, "session.limit-time")


def _whole(answer: bytes, child: int, call: str, graph: str) -> bytes:
    """Return the answer of a child that has ended. Raises `NotRunError` without one."""
    if answer.endswith(b"."):  # the last opcode of a pickle
        return answer
    _, code = os.waitpid(child, 0)
    ending = (
        f"by signal {os.WTERMSIG(code)}" if os.WIFSIGNALED(code) else f"with code {os.waitstatus_to_exitcode(code)}"
    )
    problem = f"{shown(graph)}: the process of the session ended {ending} during {call or 'the measurement'}"
    raise NotRunError(problem, "run it again; if memory is short, use a larger machine", "session.ended")


def _cpu(process: int) -> float:
    fields = _proc(process, "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if len(fields) > 12 else 0.0


def _proc(process: int, name: str) -> str:
    try:
        with open(f"/proc/{process}/{name}", encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


MOST_OPENED = 1 << 30
"""Bytes of the files of the largest graphs that `check` opens: about a second, and as much memory."""


def why_not_opened(root: str, name: str) -> tuple[str, bool]:
    """Return why no session of ONNX Runtime opens a graph, and whether the graph is at fault.

    The reason is empty if a session opens it.
    A missing kernel says nothing about the graph, since another provider may have it. Nor does an operator of a domain
    that the runtime does not know, or a lack of memory.
    """
    with session_call(f"opening {shown(name)}"):
        why = refusal(Path(root, name))
    unknown = ("NOT_IMPLEMENTED", "is not a registered function/op", "llocate memory", "bad allocation")
    return why, bool(why) and not any(words in why for words in unknown)


def session_findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Yield a finding for each graph that no session opens, and for each that tieconv does not open.

    Each opening has the limits of a run. There are none without onnxruntime, and for a graph whose structure is an
    error already.
    """
    if not has_onnxruntime() or any(caution.code == REFUSED_BY_READER for caution in checkpoint.cautions):
        return
    stored = sum(checkpoint.states[name].size for name in checkpoint.states)
    for graph in dict.fromkeys(each.file for each in checkpoint.graphs):
        level, why = Level.NOTE, ""
        if not os.path.isdir(checkpoint.root):
            why = "it is not on this machine"
        elif stored > MOST_OPENED:
            why = f"its files have {bytes_text(stored)}, more than {bytes_text(MOST_OPENED)}"
        else:
            work = partial(why_not_opened, checkpoint.root, graph)
            try:
                why, broken = limited(work, partial(limits_for, stored), os.path.join(checkpoint.root, graph))
                level = Level.ERROR if broken else Level.NOTE
            except NotRunError as error:
                why, level = error.message, Level.WARNING
        if why:
            refused = f"A session of ONNX Runtime refuses {shown(graph)}"
            problem = refused if level is Level.ERROR else f"{shown(graph)} was not opened by a session"
            yield reader_refuses.finding(f"{problem}: {shown(why, 300)}", level=level)


def check_opens(root: str, name: str) -> None:
    """Raise `RefusedError` for a graph that no session of the installed ONNX Runtime opens."""
    why, broken = why_not_opened(root, name) if has_onnxruntime() else ("", False)
    if broken:
        problem = f"nothing is written: onnxruntime cannot open {shown(name)}: {shown(why, 300)}"
        raise RefusedError(problem, "export the graph again", "session.load")


def refusal(graph: Path) -> str:
    """Return why no session opens a graph without optimizations; empty if one does."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
    message = referring(graph.parent, graph.name)
    try:
        ort.InferenceSession(message, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime raises various exceptions
        return str(error).splitlines()[0]
    return ""


def available_memory() -> int:
    """Return the bytes of memory that programs can still use."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
