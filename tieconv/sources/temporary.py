"""Temporary directories, and how each ends: with its block, its command or its process, also by a signal.

A process that is killed leaves its directories behind. The next process that makes one removes them: it finds them
unlocked.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from tieconv.errors import UnreadableError
from tieconv.sources import local
from tieconv.text import shown, size

_PREFIX = "tieconv-temporary-"
_OURS = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
PARENT_WATCH = "tieconv-parent-watch"
"""Name of the thread of a worker that waits for the end of its parent, and then removes the directories."""
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGINT") if hasattr(signal, name))
_held: dict[str, tuple[int, int, int]] = {}
"""The descriptor with the lock, the process and the thread of each directory. A forked child inherits the table."""


def make_temporary() -> str:
    """Make a private directory that lasts until `remove_temporary`, or until the process ends. Raises ``OSError``."""
    local.require_posix()
    base = tempfile.gettempdir()
    # Remove the directories of this user whose processes have ended.
    for name in filter(_OURS.fullmatch, os.listdir(base)):
        path = os.path.join(base, name)
        with suppress(OSError), local.closing(os.open(path, local.DIRECTORY | local.NO_FOLLOW)) as descriptor:
            status = os.fstat(descriptor)
            if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == stat.S_IRWXU:
                local.fcntl.flock(descriptor, local.fcntl.LOCK_EX | local.fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
    if not _held:
        atexit.unregister(remove_temporary)
        atexit.register(remove_temporary, every_thread=True)
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                if signal.getsignal(number) == signal.SIG_DFL:
                    signal.signal(number, _end)
    while True:
        path = tempfile.mkdtemp(prefix=_PREFIX, dir=base)
        descriptor = os.open(path, local.DIRECTORY)
        local.fcntl.flock(descriptor, local.fcntl.LOCK_EX)
        if os.path.isdir(path):  # another process may have swept it before the lock
            _held[path] = descriptor, os.getpid(), threading.get_ident()
            return path
        os.close(descriptor)


@contextmanager
def temporary_directory() -> Iterator[str]:
    """Yield a private directory that is removed at the end of the block."""
    path = make_temporary()
    try:
        yield path
    finally:
        _remove(path)


@contextmanager
def room_for(subject: str, needed: int, code: str) -> Iterator[None]:
    """Raise `UnreadableError` if ``needed`` bytes of ``subject`` do not fit, or if the block cannot write them."""
    base = tempfile.gettempdir()
    problem = f"{subject} cannot be copied to the temporary directory"
    hint = "use a directory with free space: TMPDIR=DIR"
    if needed > shutil.disk_usage(base).free:
        raise UnreadableError(f"{problem}: {size(needed)} do not fit into {shown(base)}", hint, code)
    try:
        yield
    except OSError as error:
        reason = (error.strerror or "error").lower()
        raise UnreadableError(f"{problem}: {shown(base)}: {reason}", hint, code) from error


def remove_temporary(*, every_thread: bool = False) -> None:
    """Remove the directories that this thread of this process made, or those of every thread."""
    for path, (_, process, thread) in list(_held.items()):
        if process == os.getpid() and (every_thread or thread == threading.get_ident()):
            _remove(path)


def _remove(path: str) -> None:
    held = _held.pop(path, None)
    for _ in range(3):  # a thread that still downloads may create a file meanwhile
        shutil.rmtree(path, ignore_errors=True)
        if not os.path.lexists(path):
            break
    if held is not None:
        os.close(held[0])


def _end(number: int, _frame: FrameType | None) -> None:
    remove_temporary(every_thread=True)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
