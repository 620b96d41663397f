"""Local files: which ones make up MODEL, and reading them without being led elsewhere."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tieconv.checkpoint.records import ByteRange, FileState, Listing
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.text import shown


def open_regular(path: Path, root: Path) -> int:
    """A read-only descriptor of the regular file at ``path``; the caller closes it.

    A symbolic link is followed only to a file under ``root``, under the hub repository's own ``blobs/``, or
    under the hub cache's shared blobs. FIFOs, devices and sockets are refused without waiting on them.
    """
    target = _resolve(path, root)
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(path, error) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise UnsafePathError(
            f"{shown(path)} is {_kind(mode)}, not a regular file",
            "move it out of the model directory",
            "path.not-regular",
        )
    return descriptor


def _unreadable(path: Path, error: OSError) -> UnreadableError:
    if error.errno in (errno.ENXIO, errno.ELOOP):
        return UnsafePathError(
            f"{shown(path)} is not a regular file", "move it out of the model directory", "path.not-regular"
        )
    reason = (error.strerror or "unknown error").lower()
    hint = _HINTS.get(error.errno or 0, "check the path and the disk")
    if error.errno == errno.ENOENT and path.is_symlink():
        hint = "the link leads nowhere: fetch the file again, or remove the link"
    return UnreadableError(f"{shown(path)} cannot be opened: {reason}", hint, "path.unreadable")


_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "ask its owner for permission to read it",
    errno.EPERM: "ask its owner for permission to read it",
    errno.EMFILE: "allow more open files: ulimit -n 8192",
}


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a directory",
    }
    return kinds.get(stat.S_IFMT(mode), "a special file")


def _resolve(path: Path, root: Path) -> Path:
    if not path.is_symlink():
        return path
    real_root = Path(os.path.realpath(root))
    # Unlike Path.resolve, realpath raises nothing for a loop: it is found when the link itself cannot be opened.
    target = Path(os.path.realpath(path))
    if target.is_relative_to(real_root) or _is_blob(target, real_root):
        return target
    raise UnsafePathError(
        f"{shown(path)} is a link to {shown(target)}, outside the model directory",
        "copy the file into the directory if you trust it",
        "path.escape",
    )


_HUB_REPOSITORY = ("models--", "datasets--", "spaces--")
_SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")


def _hub_repository(real_root: Path) -> Path | None:
    """The repository in a hub cache whose snapshot ``real_root`` is or lies in."""
    for parent in real_root.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(_HUB_REPOSITORY):
            return parent.parent
    return None


def _is_blob(target: Path, real_root: Path) -> bool:
    """Whether a hub cache keeps ``target`` for the snapshot ``real_root``: as a blob of the repository, or shared."""
    repository = _hub_repository(real_root)
    if repository is None:
        return False
    shared = repository.parent / "blobs"  # since huggingface_hub 2.4
    if target.is_relative_to(shared):
        return _SHARED_BLOB.fullmatch(str(target.relative_to(shared))) is not None
    return target.is_relative_to(repository / "blobs")


def in_hub_cache(root: Path) -> bool:
    """True for a snapshot of a hub cache, whose files other snapshots share."""
    repository = _hub_repository(Path(os.path.realpath(root)))
    return repository is not None and any((home / "blobs").is_dir() for home in (repository, repository.parent))


def file_state(descriptor: int) -> FileState:
    """What identifies the open file's content."""
    status = os.fstat(descriptor)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class FileSet:
    """Open weight files of one checkpoint; a `ByteReader`. ``bytes_read`` counts what was read of tensors."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._descriptors: dict[str, int] = {}
        self.bytes_read = 0

    def descriptor(self, name: str) -> int:
        """The descriptor of the file ``name`` (relative to the root), opened once."""
        if name not in self._descriptors:
            self._descriptors[name] = open_regular(self._root / name, self._root)
        return self._descriptors[name]

    def state(self, name: str) -> FileState:
        return file_state(self.descriptor(name))

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes at ``offset``, fewer only at the end of the file."""
        try:
            return os.pread(self.descriptor(name), size, offset)
        except OSError as error:
            raise _unreadable(self._root / name, error) from error

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` of ``span``; ``UnreadableError`` where the file ends early."""
        descriptor = self.descriptor(span.file)
        position, done = span.start + offset, 0
        while done < len(buffer):
            try:
                got = os.preadv(descriptor, [buffer[done:]], position + done)
            except OSError as error:
                raise _unreadable(self._root / span.file, error) from error
            if not got:
                raise UnreadableError(
                    f"{shown(span.file)} ended while it was read", "is another program writing it?", "path.shrank"
                )
            done += got
        self.bytes_read += done

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


@contextmanager
def open_files(root: Path) -> Iterator[FileSet]:
    """The files under ``root``, closed at the end."""
    files = FileSet(root)
    try:
        yield files
    finally:
        files.close()


def _is_skipped(directory: str) -> bool:
    """Version control, and what a killed write left behind: no part of the model."""
    return directory == ".git" or (directory.startswith(".") and directory.endswith(".tieconv-staging"))


def locate(source: str) -> Listing:
    """Resolve MODEL to what lies there. Raises `UnreadableError` where nothing does.

    An index file stands for the directory that it lies in.
    """
    path = Path(source)
    if not os.path.lexists(path):
        raise UnreadableError(f"{shown(source)}: no such file or directory", _hint_for_missing(source), "path.absent")
    whole = path.is_dir()
    root = Path(os.path.abspath(path if whole else path.parent))
    if not whole:
        os.close(open_regular(root / path.name, root))
    named = None if whole else path.name
    entries, special = _walk(root, deep=whole or path.name.endswith(".index.json"))
    return Listing(source, str(root), named, entries, special)


def _hint_for_missing(source: str) -> str:
    parts = source.split("/")
    if len(parts) == 2 and all(part and not part.startswith(".") for part in parts):
        return f"for the model on the Hub write hf://{shown(source)}"
    return "give a model directory, a weight file or an index"


def _walk(root: Path, *, deep: bool) -> tuple[dict[str, int], tuple[str, ...]]:
    """Regular files (with their bytes) and others under ``root``; only the top level unless ``deep``."""
    regular: dict[str, int] = {}
    special: list[str] = []
    for directory, subdirectories, files in os.walk(root, onerror=_raise_unreadable):
        _check_extent(root, directory, len(regular) + len(special) + len(files))
        subdirectories[:] = sorted(name for name in subdirectories if deep and not _is_skipped(name))
        for name in list(subdirectories):
            if os.path.islink(os.path.join(directory, name)):
                subdirectories.remove(name)
                files.append(name)
        for name in files:
            path = Path(directory, name)
            relative = str(path.relative_to(root))
            size = _regular_size(path, root)
            if size is None:
                special.append(relative)
            else:
                regular[relative] = size
    return dict(sorted(regular.items())), tuple(sorted(special))


MAX_FILES = 100_000
MAX_LEVELS = 64
"""The most files and nested directories under MODEL: beyond, it is no model directory."""


def _check_extent(root: Path, directory: str, files: int) -> None:
    levels = directory.count(os.sep) - str(root).count(os.sep)
    if files <= MAX_FILES and levels <= MAX_LEVELS:
        return
    what = f"more than {MAX_FILES:,} files" if files > MAX_FILES else f"directories more than {MAX_LEVELS} deep"
    raise UnreadableError(f"{shown(root)} holds {what}", "give the directory that the weights lie in", "path.too-large")


def _raise_unreadable(error: OSError) -> None:
    raise _unreadable(Path(str(error.filename)), error)


def _regular_size(path: Path, root: Path) -> int | None:
    try:
        status = _resolve(path, root).lstat()
    except (UnsafePathError, OSError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None
