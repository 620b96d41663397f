"""Read the files that people hand in, and write every file that tieconv leaves beside models.

Settings, baselines, lists and results may be files of an unpacked archive. So each is read as a hostile file: only a
regular file counts, and its size is bounded. Reports, figures, baselines and results go through `write_bytes` and
`LineFile`, and no other module writes files. `tests/sources/test_user_files.py` finds every call that does.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, TypeVar

from tieconv.errors import MALFORMED, DestinationError, SettingsError
from tieconv.sources import local
from tieconv.text import path_word, shown

LIMIT = 64 << 20
"""Bytes of the largest document, and of the longest line of results."""
MOST_RESULTS = 8 << 30
"""Bytes of the largest file of lines."""
_BLOCK = 1 << 20
_STREAM = re.compile(r"/dev/(?:null|tty|stdout|stderr|fd/\d+)")  # and not /dev/shm, where anybody may unpack an archive
_OPENING = b'{"schema": "tieconv.'
"""How every line of results begins, also the only one of a run that was killed while it wrote it."""
T = TypeVar("T")


def upward(start: str) -> Iterator[str]:
    """Yield the absolute directory ``start`` and its parents, nearest first."""
    directory = start
    while True:
        yield directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return
        directory = parent


def place_of(path: str) -> str:
    """Return the absolute path with resolved parent directories. Patterns and baselines use this form."""
    if "://" in path:
        return path
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(parent), name)


def read_text(path: str, limit: int = LIMIT, *, links: bool = True) -> str:
    """Return the text of a regular file. Raises `SettingsError`, also for a symlink unless ``links``."""
    return decode(read_bytes(path, limit, links=links), path)


def read_bytes(path: str, limit: int = LIMIT, *, links: bool = True) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes, as `read_text` does."""
    with _opened(path, limit, links=links) as file:
        return _bounded(path, file.read(limit + 1), limit)


def read_stream(stream: BinaryIO, label: str, limit: int = LIMIT) -> str:
    """Return the text of standard input, at most ``limit`` bytes. Raises `SettingsError`, which starts with label."""
    return decode(_bounded(label, stream.read(limit + 1), limit), label)


@contextmanager
def _opened(path: str, limit: int, *, links: bool) -> Iterator[BinaryIO]:
    """Open a regular file of at most ``limit`` bytes for reading. Turns every ``OSError`` into a `SettingsError`."""
    flags = local.READ if links else local.READ | local.NO_FOLLOW
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _unreadable(path, "it is not a regular file")
            if status.st_size > limit:
                raise _unreadable(path, f"it is larger than {limit >> 20} MiB")
            yield file
    except OSError as error:
        reason = "it is a symlink" if error.errno == errno.ELOOP and not links else _reason(error)
        raise _unreadable(path, reason) from error


def _bounded(path: str, data: bytes, limit: int) -> bytes:
    if len(data) > limit:
        raise _unreadable(path, f"it is larger than {limit >> 20} MiB")
    return data


def decode(data: bytes, path: str) -> str:
    """Return bytes of the file ``path`` as text: UTF-8, with or without a mark. Raises `SettingsError`."""
    encoding = _encoding(data)
    if encoding:
        convert = f"iconv -f {encoding} -t utf-8 {path_word(path)} > {path_word(f'{path}.utf-8')}"
        raise _unreadable(path, f"it is {encoding.upper()} text instead of UTF-8", convert)
    if b"\0" in data:
        raise _unreadable(path, "it holds NUL bytes, so it is not text")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(
            path, "it is not UTF-8 text", f"save it as UTF-8; to detect its encoding: file {path_word(path)}"
        ) from error


_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""The byte order marks of other encodings. UTF-32 is first, because its mark starts like that of UTF-16."""
_HEAD = 4096


def _encoding(data: bytes) -> str:
    """Return the encoding of a byte order mark, or guess UTF-16. Empty for other text.

    Guesses UTF-16 if a tenth or more of the first characters are Latin. One of their two bytes is zero, always on the
    same side.
    """
    marked = next((name for mark, name in _MARKS if data.startswith(mark)), "")
    if marked or len(data) % 2:
        return marked
    first, second = data[:_HEAD:2].count(0), data[1:_HEAD:2].count(0)
    few, most = sorted((first, second))
    if few or most * 20 < len(data[:_HEAD]):
        return ""
    return ("utf-16be" if first else "utf-16le") if most else ""


def _unreadable(path: str, reason: str, hint: str = "check the path") -> SettingsError:
    return SettingsError(f"{shown(path)} cannot be read: {reason}", hint, "settings.unreadable")


def write_text(path: str, text: str) -> None:
    """Write a text file as `write_bytes` does."""
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: str, data: bytes) -> None:
    """Write a file completely or not at all: beside ``path``, then one rename. Raises `DestinationError`.

    Replaces only a regular file, and follows no symlink at ``path``. The streams of the system are written
    directly. Shells pass pipes as ``/dev/fd/63``, and no archive can put a file there.
    """
    local.require_posix()
    if local.in_hub_store(path):
        raise DestinationError(f"{shown(path)} is in the Hub cache", "write it to another directory", "out.hub-cache")
    with _failing(path):
        if _STREAM.fullmatch(os.path.abspath(path)):
            with open(path, "wb", opener=lambda name, _: os.open(name, os.O_WRONLY)) as file:
                file.write(data)
            return
        with _replacing(path) as descriptor, open(descriptor, "wb", closefd=False) as file:
            file.write(data)


def new_file(path: local.AnyPath) -> BinaryIO:
    """Create a file that must not exist, in a directory that only this process fills, and open it for writing."""
    return open(path, "wb", opener=lambda name, _: os.open(name, local.CREATE, 0o666))


def own_directory(path: str) -> None:
    """Make a directory whose content tieconv decides, if it is missing. Raises `DestinationError` for a symlink."""
    with _failing(path):
        with suppress(FileExistsError):
            os.mkdir(path)
        if not stat.S_ISDIR(mode := os.lstat(path).st_mode):
            raise _in_the_way(path, mode)


class LineFile:
    """Lines that one run adds to a file, after the lines of earlier runs. A killed run may leave half a line.

    The first line that is added moves the earlier ones to a new file. So tieconv never appends to a file that another
    program made.
    """

    def __init__(self, path: str, schema: str) -> None:
        self._path, self._schema, self._end = path, schema, 0
        self._descriptor: int | None = None

    def read(self, parse: Callable[[bytes], T]) -> Iterator[T]:
        """Yield ``parse(line)`` of each whole line, if the file exists. A later `append` keeps these lines.

        Raises `SettingsError` for a line for which ``parse`` raises one of `MALFORMED`, and for a file of no run.
        """
        self._end = 0
        if not os.path.lexists(self._path):
            return
        with _opened(self._path, MOST_RESULTS, links=False) as file:
            number = 0
            while line := file.readline(LIMIT + 2):
                number += 1
                if len(line) > LIMIT + 1:
                    raise _unreadable(self._path, f"line {number} is larger than {LIMIT >> 20} MiB", "remove the file")
                if not line.endswith(b"\n") and (number > 1 or _OPENING.startswith(line[: len(_OPENING)])):
                    return
                try:
                    parsed = parse(line)
                except MALFORMED as error:
                    problem = f"{shown(self._path)} is not a {self._schema} file: line {number} cannot be read"
                    raise SettingsError(problem, "give another file, or remove this one", "run.malformed") from error
                self._end += len(line)
                yield parsed

    def append(self, data: bytes) -> None:
        """Add a line, or nothing to leave only whole lines. Raises `DestinationError`."""
        with _failing(self._path):
            if self._descriptor is None:
                self._descriptor = self._moved()
                weakref.finalize(self, os.close, self._descriptor)
            while data:
                data = data[os.write(self._descriptor, data) :]
            if not os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path)):
                problem = f"another program replaced {shown(self._path)} while tieconv added lines to it"
                raise DestinationError(problem, "run one command at a time, then run this one again", "out.replaced")

    def _moved(self) -> int:
        """Return the descriptor of a new file with the whole lines that were read, which has the name now."""
        _check_one_name(self._path)
        with _replacing(self._path) as descriptor:
            if self._end:
                with _opened(self._path, MOST_RESULTS, links=False) as old:
                    left = self._end
                    while left and (block := old.read(min(left, _BLOCK))):
                        os.write(descriptor, block)
                        left -= len(block)
                if left:
                    raise OSError(errno.ESTALE, "it became shorter while tieconv read it")
            return os.dup(descriptor)


def _check_one_name(path: str) -> None:
    """Raise `DestinationError` for a hard link: a run that used the other name would lose its file."""
    if os.path.lexists(path) and stat.S_ISREG((status := os.lstat(path)).st_mode) and status.st_nlink > 1:
        problem = f"tieconv does not append to {shown(path)}: it is a hard link to another file"
        raise DestinationError(problem, "give another file", "out.text")


@contextmanager
def _replacing(path: str) -> Iterator[int]:
    """Yield the descriptor of a new file, which gets the name ``path`` at the end if nothing fails.

    Works through the open directory, so a directory that is replaced meanwhile gets nothing. The mode is that of any
    new file, less what the replaced file denied.
    """
    folder, name = os.path.split(path)
    with local.closing(os.open(folder or os.curdir, local.DIRECTORY)) as directory:
        old = _regular_at(directory, name, path)
        staged = f".{os.urandom(8).hex()}.tieconv.tmp"
        with local.closing(os.open(staged, local.CREATE, 0o666, dir_fd=directory)) as descriptor:
            try:
                if old is not None:
                    os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode & old.st_mode) | 0o600)
                yield descriptor
                os.fsync(descriptor)
                _regular_at(directory, name, path)
                os.replace(staged, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(OSError):
                    os.unlink(staged, dir_fd=directory)
                raise


def _regular_at(directory: int, name: str, path: str) -> os.stat_result | None:
    """Return the status of the regular file ``name`` in the open directory, ``None`` if there is nothing."""
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode):
        raise _in_the_way(path, status.st_mode)
    return status


def _in_the_way(path: str, mode: int) -> DestinationError:
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    if stat.S_ISLNK(mode):
        kind = "a symlink, and tieconv does not write through symlinks"
    elif stat.S_ISREG(mode):
        kind = "not a directory"
    problem = f"{shown(path)} cannot be written: it is {kind}"
    return DestinationError(problem, "remove it, or give another path", "out.text")


@contextmanager
def _failing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def unwritable(path: str, error: OSError) -> DestinationError:
    """Return the error for a file or directory that the system does not let tieconv write."""
    problem = f"{shown(path)} cannot be written: {_reason(error)}"
    return DestinationError(problem, "check the path and its directory", "out.text")


def _reason(error: OSError) -> str:
    return (error.strerror or "unknown error").lower()


def guard_report(path: str, models: Iterable[str]) -> None:
    """Raise `DestinationError` if a report would replace a file of a model."""
    resolved = place_of(path)
    for model in models:
        root = place_of(model)
        if os.path.isfile(resolved) and (resolved == root or resolved.startswith(os.path.join(root, ""))):
            problem = f"{shown(path)} is a file of the model {shown(model)}"
            raise DestinationError(problem, "write the report to another path", "out.in-model")


def write_reports(directory: str, reports: dict[str, str], model: str) -> None:
    """Write reports by name into ``directory``, which is made if it does not exist.

    Raises `DestinationError` if that fails, and before a file of ``model`` would be replaced.
    """
    paths = {os.path.join(directory, name): text for name, text in reports.items()}
    for path in paths:
        guard_report(path, [model])
    with _failing(directory):
        os.makedirs(directory, exist_ok=True)
    for path, text in paths.items():
        write_text(path, text)
