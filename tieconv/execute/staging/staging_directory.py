"""The staging directory: made afresh, held open by one live process, removed by it or by the next run.

tieconv reaches everything in it through its open descriptor. A program that renames it in a shared directory therefore
cannot put another directory in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tieconv.errors import DestinationError
from tieconv.execute.staging import leftover
from tieconv.execute.staging.leftover import EARLIER, MARKER, NEW, OLD
from tieconv.execute.staging.marker import Owner
from tieconv.execute.target import staging_path
from tieconv.text import shown

_ATTEMPTS = 100
_CREATE_MARKER = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = 0o022


class Staging:
    """A directory beside OUT that this process owns until `release`.

    ``path`` is its name, for messages; ``held`` leads to the open directory, whatever has that name now.
    """

    def __init__(self, final: Path, *, resume: bool = False) -> None:
        """Make the staging directory of ``final`` after removing what a killed run left there.

        With ``resume``, take that directory over instead: `new` then holds the files of the killed run. Raises
        `DestinationError` if a live process holds it or something else has its name.
        """
        self.final = final
        self.path = staging_path(final)
        self._home = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            taken = _take_over(self._home, self.path, final) if resume else None
            self._directory, self._marker = taken or _make(self._home, self.path, final)
        except BaseException:
            os.close(self._home)
            raise
        self.held = _through(self._directory, self.path)

    @property
    def new(self) -> Path:
        """The directory that is built."""
        return self.held / NEW

    @property
    def old(self) -> Path:
        """The path of the old OUT during the rename, if the two cannot be exchanged."""
        return self.held / OLD

    def check(self) -> None:
        """Raise `DestinationError` if another directory has the name of the staging directory or of its parent."""
        parent = os.stat(self.path.parent)
        if not os.path.samestat(parent, os.fstat(self._home)):
            raise _replaced(self.path.parent)
        if not leftover.is_at(self._directory, self.path.name, self._home):
            raise _replaced(self.path)

    def make_new(self, names: Iterable[str], is_finished: Callable[[str, Path], bool]) -> frozenset[str]:
        """Make `new` with those of ``names`` that a killed run finished. Remove its other files, and return the names.

        ``is_finished(name, path)`` looks at a file of the killed run.
        """
        if not os.path.lexists(self.new):
            os.mkdir(self.new)
            return frozenset()
        earlier = self.held / EARLIER
        os.rename(self.new, earlier)
        os.mkdir(self.new)
        finished = frozenset(
            name for name in names if not _leads_out(earlier, name) and is_finished(name, earlier / name)
        )
        for name in finished:
            (self.new / name).parent.mkdir(parents=True, exist_ok=True)
            os.rename(earlier / name, self.new / name)
        leftover.empty(self._directory, NEW)
        return finished

    def set_aside(self, old: os.stat_result) -> None:
        """Record durably that the directory ``old`` may wait at `old`: only that one gets its name back."""
        _sign(self._marker, replace(Owner.current(), old=old.st_ino))

    def set_data(self, data: os.stat_result) -> None:
        """Record durably that the file ``data`` gets its name before the graph that reads it."""
        _sign(self._marker, replace(Owner.current(), data=data.st_ino))

    def leave(self) -> None:
        """Give up the lock, but not the files: a later run may take them over."""
        self._close()

    def release(self) -> None:
        """Remove the directory and give up the lock."""
        try:
            if OLD in os.listdir(self._directory) and not os.path.lexists(self.final):
                os.rename(OLD, self.final.name, src_dir_fd=self._directory, dst_dir_fd=self._home)
            leftover.empty(self._directory)
            leftover.remove(self._home, self._directory, self.path)
        finally:
            self._close()

    def _close(self) -> None:
        self.held = self.path  # the system may give the number of a closed descriptor to another file
        for descriptor in (self._marker, self._directory, self._home):
            os.close(descriptor)


def _leads_out(earlier: Path, name: str) -> bool:
    """Return whether a directory on the way to the file ``name`` is a symlink, so that the file is elsewhere."""
    path = earlier / name
    return any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(earlier))


def resumable(final: Path) -> bool:
    """Return whether a killed run left files beside ``final`` that `Staging` may take over."""
    return os.path.lexists(staging_path(final) / NEW)


def sweep(final: Path) -> bool:
    """Remove only what a killed run left beside ``final``; return whether there was any."""
    path = staging_path(final)
    if not os.path.lexists(path):
        return False
    with suppress(DestinationError, OSError):
        home = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            leftover.clear(home, path, final)
        finally:
            os.close(home)
    return not os.path.lexists(path)


def _take_over(home: int, path: Path, final: Path) -> tuple[int, int] | None:
    """Return the open directory of a killed run and its marker, now of this process; ``None`` if there is none."""
    taken = leftover.take_over(home, path, final)
    if taken is not None:
        _sign(taken[1], Owner.current())
    return taken


def _make(home: int, path: Path, final: Path) -> tuple[int, int]:
    """Return the open directory and its locked marker, both new."""
    for _ in range(_ATTEMPTS):
        try:
            os.mkdir(path.name, 0o700, dir_fd=home)
        except FileExistsError:
            leftover.clear(home, path, final)
            continue
        try:
            return _open(home, path, final)
        except (FileExistsError, FileNotFoundError):
            continue  # another run took the name, or removed the directory before the marker was in it
    raise DestinationError(
        f"{shown(final)} is busy: other processes keep removing {shown(path)}",
        "wait until the other commands have ended, then run the command again",
        "out.busy",
    )


def _open(home: int, path: Path, final: Path) -> tuple[int, int]:
    directory = leftover.open_directory(home, path.name)
    try:
        marker = os.open(MARKER, _CREATE_MARKER, 0o600, dir_fd=directory)
        try:
            _check_own(directory, marker, path)
            _claim(directory, marker, home, path, final)
        except BaseException:
            os.close(marker)
            raise
    except BaseException:
        os.close(directory)
        raise
    return directory, marker


def _check_own(directory: int, marker: int, path: Path) -> None:
    """Raise `DestinationError` if the opened directory is not the one that was made.

    The marker is certainly new: it shows the owner and mode of new files of this process here.
    """
    around, own = os.fstat(directory), os.fstat(marker)
    shared = bool(around.st_mode & _OTHERS and not own.st_mode & _OTHERS)
    if shared or around.st_uid != own.st_uid:
        os.unlink(MARKER, dir_fd=directory)
        raise leftover.in_the_way(
            path, "other users have permission to write to it" if shared else "it belongs to another user"
        )


def _claim(directory: int, marker: int, home: int, path: Path, final: Path) -> None:
    """Lock and sign the new marker; if the system refuses, leave nothing behind.

    Raises `DestinationError` if another run has the lock, `FileNotFoundError` if it has removed the directory.
    """
    try:
        leftover.lock(marker, directory, final)
        if not (leftover.is_at(marker, MARKER, directory) and leftover.is_at(directory, path.name, home)):
            raise FileNotFoundError(path)
        _sign(marker, Owner.current())
    except FileNotFoundError:
        raise
    except OSError:
        with suppress(OSError):
            leftover.remove(home, directory, path)
        raise


def _sign(marker: int, owner: Owner) -> None:
    """Write the marker and make it durable before anything else is in the directory."""
    os.pwrite(marker, owner.encode(), 0)
    os.fsync(marker)


def _through(descriptor: int, path: Path) -> Path:
    """Return a path that leads to the open directory itself; ``path`` if the system has none."""
    held = Path(f"/proc/self/fd/{descriptor}")
    try:
        same = os.path.samestat(os.stat(held), os.fstat(descriptor))
    except OSError:
        return path
    return held if same else path


def _replaced(path: Path) -> DestinationError:
    return DestinationError(
        f"another program replaced {shown(path)} while tieconv wrote OUT",
        f"check who may write to {shown(path.parent)}, then run the command again",
        "out.replaced",
    )
