"""The staging directory: made afresh, held open by one live process, removed by it or by the next run.

tieconv reaches everything in it through its open descriptor. A program that renames it in a shared directory therefore
cannot put another directory in its place.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from tieconv.checkpoint.value_type import record
from tieconv.errors import DestinationError
from tieconv.execute import tree
from tieconv.execute.target import staging_path
from tieconv.sources import local
from tieconv.text import ANOTHER_OUT, Hint, shell_word, shown

_ATTEMPTS = 100
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
        local.require_posix()
        self.final = final
        self.path = staging_path(final)
        self._home = os.open(self.path.parent, local.DIRECTORY)
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
        if not is_at(self._directory, self.path.name, self._home):
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
        empty(self._directory, NEW)
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
            empty(self._directory)
            remove(self._home, self._directory, self.path)
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
    with suppress(DestinationError, OSError), local.closing(os.open(path.parent, local.DIRECTORY)) as home:
        clear(home, path, final)
    return not os.path.lexists(path)


def _take_over(home: int, path: Path, final: Path) -> tuple[int, int] | None:
    """Return the open directory of a killed run and its marker, now of this process; ``None`` if there is none."""
    taken = take_over(home, path, final)
    if taken is not None:
        _sign(taken[1], Owner.current())
    return taken


def _make(home: int, path: Path, final: Path) -> tuple[int, int]:
    """Return the open directory and its locked marker, both new."""
    for _ in range(_ATTEMPTS):
        try:
            os.mkdir(path.name, 0o700, dir_fd=home)
        except FileExistsError:
            clear(home, path, final)
            continue
        try:
            return _open(home, path, final)
        except (FileExistsError, FileNotFoundError):
            continue  # another run took the name, or removed the directory before the marker was in it
    hint = "wait until the other commands have ended, then run the command again"
    raise DestinationError(f"{shown(final)} is busy: other processes keep removing {shown(path)}", hint, "out.busy")


def _open(home: int, path: Path, final: Path) -> tuple[int, int]:
    directory = open_directory(home, path.name)
    try:
        marker = os.open(MARKER, local.CREATE, 0o600, dir_fd=directory)
        try:
            # Raise `DestinationError` if the opened directory is not the one that was made.
            around, own = os.fstat(directory), os.fstat(marker)
            shared = bool(around.st_mode & _OTHERS and not own.st_mode & _OTHERS)
            if shared or around.st_uid != own.st_uid:
                os.unlink(MARKER, dir_fd=directory)
                raise in_the_way(
                    path, "other users have permission to write to it" if shared else "it belongs to another user"
                )
            _claim(directory, marker, home, path, final)
        except BaseException:
            os.close(marker)
            raise
    except BaseException:
        os.close(directory)
        raise
    return directory, marker


def _claim(directory: int, marker: int, home: int, path: Path, final: Path) -> None:
    """Lock and sign the new marker; if the system refuses, leave nothing behind.

    Raises `DestinationError` if another run has the lock, `FileNotFoundError` if it has removed the directory.
    """
    try:
        lock(marker, directory, final)
        if not (is_at(marker, MARKER, directory) and is_at(directory, path.name, home)):
            raise FileNotFoundError(path)
        _sign(marker, Owner.current())
    except FileNotFoundError:
        raise
    except OSError:
        with suppress(OSError):
            remove(home, directory, path)
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
    hint = f"check who may write to {shown(path.parent)}, then run the command again"
    return DestinationError(f"another program replaced {shown(path)} while tieconv wrote OUT", hint, "out.replaced")


# Recognise what a killed run left at the name of a staging directory; remove it or refuse.


MARKER = "owner"
"""The marker file. Its lock is the ownership; its content identifies the owner."""
NEW = "new"
OLD = "old"
DATA = ".data"
"""The suffix of a graph's data file, after the graph's name."""
EARLIER = "earlier"
_OURS = re.compile(r"new|old|earlier|raw|quantised|exchange-[ab]|step-[0-9]+")
"""The directories that a run makes in its staging directory."""
_OPEN_MARKER = os.O_RDWR | local.READ | local.NO_FOLLOW
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def clear(home: int, path: Path, final: Path) -> None:
    """Remove the staging directory ``path`` of ``final`` that a killed run left; ``home`` is its open parent.

    Does nothing if it has gone meanwhile. Raises `DestinationError` and changes nothing if a live process owns it.
    Raises it too if anything in it differs from what a killed run of this user leaves.
    """
    with suppress(FileNotFoundError), _opened(home, path) as directory:
        if directory is None:
            return
        if not os.listdir(directory):
            with suppress(OSError):  # another run fills it at this moment
                os.rmdir(path.name, dir_fd=home)
            return
        with _settled(home, directory, path, final) as marker:
            if marker is not None:
                empty(directory)
                remove(home, directory, path)


def take_over(home: int, path: Path, final: Path) -> tuple[int, int] | None:
    """Return the open staging directory that a killed run left, and its locked marker; ``None`` if there is none.

    Only `NEW` and the marker stay in it. Raises `DestinationError` in the cases of `clear`.
    """
    with suppress(FileNotFoundError), _opened(home, path) as directory:
        if directory is None or not os.listdir(directory):
            return None
        with _settled(home, directory, path, final) as marker:
            if marker is None:
                return None
            empty(directory, NEW)
            owned = os.dup(directory)
            try:
                return owned, os.dup(marker)  # the lock lasts until both descriptors of the marker are closed
            except OSError:
                os.close(owned)
                raise
    return None


@contextmanager
def _opened(home: int, path: Path) -> Iterator[int | None]:
    """Yield the open directory at ``path``, or ``None`` if another one has the name now.

    Raises `FileNotFoundError` if there is none, and `DestinationError` if it is not a private directory of this user.
    """
    status = os.stat(path.name, dir_fd=home, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        kind = "a symlink" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise in_the_way(path, f"it is {kind}", f"check it, then remove it: rm {shell_word(str(path))}")
    _check_private(status, path, "it")
    with local.closing(open_directory(home, path.name)) as directory:
        yield directory if os.path.samestat(status, os.fstat(directory)) else None


def open_directory(home: int, name: str) -> int:
    """Open a directory without following links. Raises `FileNotFoundError` if it is missing or cannot be opened."""
    try:
        return os.open(name, local.DIRECTORY | local.NO_FOLLOW, dir_fd=home)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EACCES):
            raise FileNotFoundError(name) from error
        raise


def _check_private(status: os.stat_result, path: Path, label: str) -> None:
    if status.st_uid != os.geteuid():
        hint = Hint("wait if that user is writing there, otherwise ask them to remove it, or ", ANOTHER_OUT)
        raise in_the_way(path, f"{label} belongs to another user", hint)
    if status.st_mode & _OTHERS_WRITE:
        raise in_the_way(path, f"other users have permission to write to {label}")


def in_the_way(path: Path, why: str, hint: str = "") -> DestinationError:
    """Return the refusal of what is at ``path``, a staging directory's name."""
    hint = hint or f"check it, then remove it: rm -r {shell_word(str(path))}"
    return DestinationError(f"{shown(path)} is in the way: {why}", hint, "out.staging")


@contextmanager
def _settled(home: int, directory: int, path: Path, final: Path) -> Iterator[int | None]:
    """Yield the locked marker of a killed run, after OUT has its name back; ``None`` if the owner removed it."""
    with local.closing(_open_marker(directory, path)) as marker:
        lock(marker, directory, final)
        if not is_at(marker, MARKER, directory):
            yield None  # its owner removed it before this run had the lock
            return
        # A marker that a kill cut short must be alone.
        data = os.pread(marker, SIZE + 1, 0)
        owner = parse(data)
        if owner is None and not (is_cut(data) and os.listdir(directory) == [MARKER]):
            raise in_the_way(path, "tieconv did not make it")
        if owner is not None and not owner.is_gone:
            hint = f"wait until that process has ended, then remove what it left: rm -r {shell_word(str(path))}"
            raise in_the_way(path, f"{owner} may still be writing to it", hint)
        # Check that only a run's directories are beside the marker. `OLD` must be the one that the run set aside.
        for name in os.listdir(directory):
            if name == MARKER:
                continue
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if not _OURS.fullmatch(name) or not stat.S_ISDIR(status.st_mode):
                raise in_the_way(path, f"it holds {shown(name)}, which tieconv did not put there")
            if name == OLD and not (owner and owner.is_of_this_boot and owner.old == status.st_ino):
                raise in_the_way(path, f"its directory {OLD} is not the one that the killed run set aside")
        if not os.path.lexists(final):
            if OLD in os.listdir(directory):  # an old OUT gets its name back
                os.rename(OLD, final.name, src_dir_fd=directory, dst_dir_fd=home)
            _remove_data(home, final, owner)
        yield marker


def _open_marker(directory: int, path: Path) -> int:
    """Open the marker, which must be a regular file of this user with one name. It is never written to."""
    try:
        status = os.stat(MARKER, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        if not os.listdir(directory):
            raise  # its owner removed everything just now
        raise in_the_way(path, "tieconv did not make it") from None
    if not stat.S_ISREG(status.st_mode):
        raise in_the_way(path, f"its file {MARKER} is not a regular file")
    if status.st_nlink != 1:
        raise in_the_way(path, f"its file {MARKER} is a hard link to another file")
    _check_private(status, path, f"its file {MARKER}")
    try:
        marker = os.open(MARKER, _OPEN_MARKER, dir_fd=directory)
    except PermissionError:
        raise in_the_way(path, f"its file {MARKER} cannot be opened") from None
    if os.path.samestat(status, os.fstat(marker)):
        return marker
    os.close(marker)
    raise FileNotFoundError(MARKER)


def lock(marker: int, directory: int, final: Path) -> None:
    """Take the lock of the open marker. Raises `DestinationError` if another process has it."""
    try:
        local.fcntl.flock(marker, local.fcntl.LOCK_EX | local.fcntl.LOCK_NB)
    except BlockingIOError:
        who = parse(os.pread(marker, SIZE, 0))
        problem = f"{shown(final)} is busy: another tieconv{f' ({who})' if who else ''} is writing it"
        hint = "wait until that process has ended, then run the command again"
        raise DestinationError(problem, hint, "out.busy") from None


def is_at(descriptor: int, name: str, directory: int) -> bool:
    """Return whether ``name`` in the open directory still is the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _remove_data(home: int, final: Path, owner: Owner | None) -> None:
    """Remove the data file whose graph never got its name, if the marker identifies it."""
    name = f"{final.name}{DATA}"
    if not (owner and owner.is_of_this_boot and owner.data) or name not in os.listdir(home):
        return
    status = os.stat(name, dir_fd=home, follow_symlinks=False)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_ino == owner.data:
        os.unlink(name, dir_fd=home)


def empty(directory: int, but: str = MARKER) -> None:
    """Remove everything in the open staging directory except the marker and ``but``."""
    for name in os.listdir(directory):
        if name not in (MARKER, but):
            tree.remove_at(directory, name)


def remove(home: int, directory: int, path: Path) -> None:
    """Remove the marker, then the empty directory, unless another run has taken its name since."""
    os.unlink(MARKER, dir_fd=directory)
    if is_at(directory, path.name, home):
        with suppress(OSError):
            os.rmdir(path.name, dir_fd=home)


# Record in a marker file which process owns a staging directory.


SIZE = 512
"""Bytes of a marker: one sector, so that a power cut leaves the old or the new one."""
_PROGRAM = "tieconv"
_START = json.dumps({"program": _PROGRAM})[:-1].encode()


@record
class Owner:
    """A process. ``boot`` identifies the boot of its kernel, ``ticks`` is its start.

    Both are empty if the system has none. ``old`` is the inode of the directory that the process set aside. ``data`` is
    the inode of the data file that gets its name before its graph. Both are 0 for none.
    """

    pid: int
    host: str
    boot: str = ""
    ticks: int = 0
    old: int = 0
    data: int = 0

    @classmethod
    def current(cls) -> Owner:
        """Return this process."""
        pid = os.getpid()
        return cls(pid, os.uname().nodename[:64], _boot(), _ticks(pid))

    def encode(self) -> bytes:
        """Return the content of the marker, always `SIZE` bytes."""
        return json.dumps({"program": _PROGRAM, **asdict(self)}).encode().ljust(SIZE)

    @property
    def is_gone(self) -> bool:
        """Whether the process has certainly ended; the caller holds the lock that the process would hold."""
        if not self.is_of_this_boot:
            here = self.host == os.uname().nodename[:64]
            return here and (bool(self.boot and _boot()) or _is_free(self.pid))
        return self.pid == os.getpid() or _ticks(self.pid) != self.ticks

    @property
    def is_of_this_boot(self) -> bool:
        """Whether a process of this boot certainly wrote the marker: no other machine knows the boot's name."""
        return bool(self.boot) and self.boot == _boot()

    def __str__(self) -> str:
        return f"process {self.pid} on {shown(self.host)}"


def parse(content: bytes) -> Owner | None:
    """Return the owner in a marker, ``None`` for any other content."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("program") != _PROGRAM:
        return None
    host, boot = value.get("host"), value.get("boot", "")
    if not (isinstance(host, str) and isinstance(boot, str)):
        return None
    pid, ticks, old, data = numbers = [value.get(key, 0) for key in ("pid", "ticks", "old", "data")]
    if not all(type(number) is int and 0 <= number < 1 << 64 for number in numbers):
        return None
    return Owner(pid, host, boot, ticks, old, data)


def is_cut(data: bytes) -> bool:
    """Return whether a kill or a power cut left the marker ``data`` unfinished: empty, zeros, or its beginning."""
    return not data.strip(b"\0") or _START.startswith(data) or (data.startswith(_START) and parse(data) is None)


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(64).strip()
    except OSError:
        return ""


def _ticks(pid: int) -> int:
    """Return when the process ``pid`` started, in ticks of its kernel; 0 if no process has that number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read(4096).rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _is_free(pid: int) -> bool:
    if pid in (0, os.getpid()):
        return pid != 0
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False
