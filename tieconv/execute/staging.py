"""The staging directory: owned by one live process, removed by it or by the next run."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from contextlib import suppress
from pathlib import Path

from tieconv.errors import DestinationError
from tieconv.execute import tree
from tieconv.execute.target import staging_path
from tieconv.text import shown

OWNER = "owner"
"""The marker file. Its lock is the ownership, its JSON says whose."""
NEW = "new"
OLD = "old"
_OWNER_LIMIT = 4096
_ATTEMPTS = 100


class Staging:
    """A directory beside OUT that this process owns until `release`."""

    def __init__(self, final: Path) -> None:
        """Take the staging directory of ``final``, clearing what a dead run left in it.

        Raises `DestinationError` where a live process holds it or something else has its name.
        """
        self.final = final
        self.path = staging_path(final)
        self._lock = _acquire(self.path, final)
        try:
            _clear(self.path, final)
            _sign(self._lock)
        except BaseException:
            with suppress(OSError):
                self.release()
            raise

    @property
    def new(self) -> Path:
        """The directory that is built."""
        return self.path / NEW

    @property
    def old(self) -> Path:
        """Where the old OUT waits while the new one is renamed, if the two cannot be exchanged."""
        return self.path / OLD

    def release(self) -> None:
        """Remove the directory and give up the lock."""
        try:
            _clear(self.path, self.final)
            os.unlink(self.path / OWNER)
            os.rmdir(self.path)
        finally:
            os.close(self._lock)


def sweep(final: Path) -> None:
    """Remove what a dead run left beside ``final``; leave everything else alone."""
    if os.path.lexists(staging_path(final)):
        try:
            Staging(final).release()
        except (DestinationError, OSError):
            return


def _acquire(path: Path, final: Path) -> int:
    for _ in range(_ATTEMPTS):
        descriptor = _open_owner(path)
        if descriptor is None:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = _busy(descriptor, final)
            os.close(descriptor)
            raise busy from None
        if _still_there(descriptor, path / OWNER):
            return descriptor
        os.close(descriptor)
    raise DestinationError(f"{shown(final)} is busy: {shown(path)} comes and goes", "try again", "out.busy")


def _open_owner(path: Path) -> int | None:
    """The marker, made where it is missing; ``None`` where the directory vanished meanwhile."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not _is_ours(path):
            raise DestinationError(
                f"{shown(path)} is in the way and was not made by tieconv", "move it away", "out.staging"
            ) from None
    try:
        return os.open(path / OWNER, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None


def _is_ours(path: Path) -> bool:
    """Empty, or with our marker. A marker that a kill cut short must be alone."""
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return False
        names = set(os.listdir(path))
    except FileNotFoundError:
        return True
    if not names:
        return True
    return OWNER in names and (_owner(path) is not None or names == {OWNER})


def _owner(path: Path) -> dict[str, object] | None:
    try:
        descriptor = os.open(path / OWNER, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _parse(os.read(descriptor, _OWNER_LIMIT))
    finally:
        os.close(descriptor)


def _parse(data: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) and value.get("program") == "tieconv" else None


def _busy(descriptor: int, final: Path) -> DestinationError:
    owner = _parse(os.pread(descriptor, _OWNER_LIMIT, 0)) or {}
    who = f" (process {shown(owner['pid'])} on {shown(owner.get('host'))})" if "pid" in owner else ""
    return DestinationError(
        f"{shown(final)} is busy: another tieconv{who} is writing it", "wait until it has ended", "out.busy"
    )


def _still_there(descriptor: int, path: Path) -> bool:
    """Whether ``path`` is still the file that was locked: its last owner may just have removed it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    owner = {
        "program": "tieconv",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "start": int(time.time()),
    }
    data = json.dumps(owner).encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


def _clear(path: Path, final: Path) -> None:
    """Empty the directory up to the marker. An old OUT that has no successor goes back to its place."""
    if os.path.lexists(path / OLD) and not os.path.lexists(final):
        os.rename(path / OLD, final)
    for name in os.listdir(path):
        if name != OWNER:
            tree.remove(path / name)
