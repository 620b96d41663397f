"""List and read the local files of MODEL, and never follow a link out of its directory."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from importlib import import_module
from itertools import pairwise
from operator import or_
from typing import TYPE_CHECKING, Any, NoReturn

from tieconv.checkpoint.model_files import LARGEST, FileState, Listing, check_git_file
from tieconv.checkpoint.weight_file import ByteRange, WeightFile
from tieconv.errors import UnreadableError, UnsafePathError, UnsupportedSystemError
from tieconv.text import close, path_word, shown

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.sources.digest import Sums


# Explain why a path cannot be opened, and what to do.


def unreadable(path: str | os.PathLike[str], error: OSError) -> UnreadableError:
    """Convert a system error for a path to an error with a hint."""
    if error.errno in (errno.ENXIO, errno.ELOOP):
        problem = f"{shown(path)} is not a regular file"
        return UnsafePathError(problem, "move it out of the model directory", "path.not-regular")
    reason = (error.strerror or "unknown error").lower()
    hint = _HINTS.get(error.errno or 0, "check the path and the disk")
    if error.errno == errno.ENOENT and os.path.islink(path):
        hint = "the symlink points to a missing file: fetch the file again, or remove the symlink"
    return UnreadableError(f"{shown(path)} cannot be opened: {reason}", hint, "path.unreadable")


_HINTS = {
    errno.ENOENT: "check the path",
    errno.EACCES: "ask its owner for permission to read it",
    errno.EPERM: "ask its owner for permission to read it",
    errno.EMFILE: "allow more open files: ulimit -n 8192",
}


_FILE_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
}

WANTED = "give a model directory, a weight file or an index"
_PAGE = r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([^/?#]+/[^/?#]+)(?:[/?#].*)?"


_REPOSITORY = r"(?a:(?!\.)[\w.-]+/(?!\.)[\w.-]+)"
_FILES = (".safetensors", ".json", ".bin", ".pt", ".pth", ".th", ".ckpt", ".onnx")


def hint_for_missing(source: str) -> str:
    """Return the hint for a missing path. A name on the Hub gets its hf:// name."""
    if page := re.fullmatch(_PAGE, source):
        return f"for the model on the Hub write hf://{shown(page[1])}"
    if re.fullmatch(_REPOSITORY, source) and not source.endswith(_FILES):
        return f"for the model on the Hub write hf://{shown(source)}"
    folder, name = os.path.split(source.rstrip("/"))
    with suppress(OSError, ValueError):
        if like := close(name, os.listdir(folder or ".")):
            return f"did you mean {path_word(os.path.join(folder, like[0]))}?"
    return WANTED


def shrank(name: str) -> UnreadableError:
    """Return the error about a file that ended before the bytes that its header describes."""
    hint = "check that no other program is writing the file, then run the command again"
    return UnreadableError(f"{shown(name)} ended while it was read", hint, "path.shrank")


# Decide which symlinks may be followed, and recognise the Hub cache.


def follow(path: str, root: str) -> str:
    """Return the target of the symlink at ``path``, which is below ``root`` or a blob of its Hub cache.

    Raises `UnsafePathError` for any other target.
    """
    real_root, target = _real_path(root), _real_path(path)
    if target.is_relative_to(real_root) or _is_blob(target, real_root):
        return str(target)
    problem = f"{shown(path)} is a symlink that points outside the model directory, to {shown(target)}"
    raise UnsafePathError(problem, "if you trust the file, copy it into the model directory", "path.escape")


def _real_path(path: AnyPath) -> Path:
    from pathlib import Path  # imports urllib, a tenth of the start of `inspect`; most models have no links

    return Path(os.path.realpath(path))  # unlike Path.resolve, it raises for no loop: opening the link fails later


_HUB_REPOSITORY = ("models--", "datasets--", "spaces--")
_SHARED_BLOB = re.compile(r"[0-9a-f]{2}/[0-9a-f]{64}")


def _hub_repository(real_root: Path) -> Path | None:
    """Return the repository of the Hub cache with ``real_root`` in one of its snapshots, or ``None``."""
    for parent in real_root.parents:
        if parent.name == "snapshots" and parent.parent.name.startswith(_HUB_REPOSITORY):
            return parent.parent
    return None


def _is_blob(target: Path, real_root: Path) -> bool:
    """Return whether ``target`` is a blob of the Hub cache that the snapshot ``real_root`` may use."""
    repository = _hub_repository(real_root)
    if repository is None:
        return False
    shared = repository.parent / "blobs"  # since huggingface_hub 2.4
    if target.is_relative_to(shared):
        return _SHARED_BLOB.fullmatch(str(target.relative_to(shared))) is not None
    return target.is_relative_to(repository / "blobs")


def in_hub_cache(root: AnyPath) -> bool:
    """Return whether ``root`` is in a snapshot of the Hub cache, whose files other snapshots share."""
    repository = _hub_repository(_real_path(root))
    return repository is not None and any((home / "blobs").is_dir() for home in (repository, repository.parent))


def in_hub_store(path: AnyPath) -> bool:
    """Return whether ``path`` is in the snapshots or blobs of a Hub cache.

    Every program reads these files as the published model, so tieconv must not write there.
    """
    real = _real_path(path)
    for inner, parent in pairwise((real, *real.parents)):
        if parent.name.startswith(_HUB_REPOSITORY) and inner.name in ("snapshots", "blobs", "refs"):
            return True
        if inner.name == "blobs" and _holds_hub_repositories(parent):
            return True
    return False


def _holds_hub_repositories(directory: Path) -> bool:
    try:
        return any(name.startswith(_HUB_REPOSITORY) for name in os.listdir(directory))
    except OSError:
        return False


# List and read the local files of MODEL, and never follow a link out of its directory.


AnyPath = str | os.PathLike[str]


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Yield an open descriptor, and close it at the end of the block."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(path: AnyPath, root: AnyPath) -> int:
    """Open the regular file at ``path`` for reading, and return its descriptor. The caller closes it.

    Follows a symlink only to a file below ``root``, or to a blob of the Hub cache around
    ``root``. Refuses FIFOs, devices and sockets without waiting for them.
    """
    target = _resolve(os.fspath(path), os.fspath(root))
    try:
        descriptor = os.open(target, READ | NO_FOLLOW)
    except OSError as error:
        raise unreadable(path, error) from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        problem = f"{shown(path)} is {_FILE_KINDS.get(stat.S_IFMT(mode), 'a special file')}, not a regular file"
        raise UnsafePathError(problem, "move it out of the model directory", "path.not-regular")
    return descriptor


def _resolve(path: str, root: str) -> str:
    return follow(path, root) if os.path.islink(path) else path


def file_state(descriptor: int) -> FileState:
    """Return the state that identifies the content of an open file."""
    status = os.fstat(descriptor)
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


class FileSet:
    """The open files of one checkpoint; a `ByteReader`. ``bytes_read`` and the caches are those of `RangedFiles`."""

    def __init__(self, root: AnyPath) -> None:
        self._root = os.fspath(root)
        self._sums: Sums | None = None
        self._descriptors: dict[str, int] = {}
        self.bytes_read = 0
        self.nans: dict[ByteRange, bool] = {}
        self.equal_ranges: set[frozenset[ByteRange]] = set()

    def descriptor(self, name: str) -> int:
        """Return the descriptor of the file ``name`` (relative to the root). Opens the file once."""
        if name not in self._descriptors:
            self._descriptors[name] = open_regular(self._path(name), self._root)
        return self._descriptors[name]

    def state(self, name: str) -> FileState:
        return file_state(self.descriptor(name))

    def pread(self, name: str, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes at ``offset``, fewer only at the end of the file.

        Raises `UnreadableError` if the file is a Git LFS pointer or the text of a symlink.
        """
        descriptor = self.descriptor(name)
        try:
            data = read_at(descriptor, size, offset)
        except OSError as error:
            raise unreadable(self._path(name), error) from error
        if not offset and 0 < len(data) <= LARGEST:
            check_git_file(name, data, os.fstat(descriptor).st_size)
        return data

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``offset`` of ``span``. Raises ``UnreadableError`` if the file ends early."""
        descriptor = self.descriptor(span.file)
        position, done = span.start + offset, 0
        read_ahead(descriptor, position, len(buffer), span.end)
        while done < len(buffer):
            try:
                got = _read_into(descriptor, buffer[done:], position + done)
            except OSError as error:
                raise unreadable(self._path(span.file), error) from error
            if not got:
                raise shrank(span.file)
            done += got
        self.bytes_read += done
        if self._sums is not None:
            self._sums.seen(span.file, position, buffer)

    def expect(self, weights: Iterable[WeightFile]) -> None:
        """Check the storages of ``weights`` against their checksums when `read_into` reads them completely."""
        self.sums.expect(weights)

    @property
    def sums(self) -> Sums:
        """The checksums of the storages read so far."""
        if self._sums is None:
            from tieconv.sources.digest import Sums  # most formats have no checksums

            self._sums = Sums()
        return self._sums

    def next_data(self, span: ByteRange, offset: int) -> int:
        """Return the first offset of ``span`` from ``offset`` on that is not in a hole, or the size of ``span``.

        A hole reads as zeros. Returns ``offset`` if the file system does not report holes.
        """
        descriptor, start = self.descriptor(span.file), span.start + offset
        try:
            data_offset = os.lseek(descriptor, start, os.SEEK_DATA) if hasattr(os, "SEEK_DATA") else start
        except OSError as error:
            if error.errno != errno.ENXIO or os.fstat(descriptor).st_size < span.end:
                return offset  # reading raises the error
            return span.size
        return min(data_offset - span.start, span.size)

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


@contextmanager
def open_files(root: AnyPath) -> Iterator[FileSet]:
    """Yield the files below ``root``, and close them at the end."""
    files = FileSet(root)
    try:
        yield files
    finally:
        files.close()


def _is_skipped(directory: str) -> bool:
    """Return whether a directory is `.git` or a leftover of a killed write, and so not part of the model."""
    return directory == ".git" or (directory.startswith(".") and directory.endswith(".tieconv-staging"))


def locate(source: str) -> Listing:
    """List the files of MODEL. Raises `UnreadableError` if it does not exist.

    An index file means its whole directory.
    """
    try:
        os.lstat(source)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise unreadable(source, error) from error
        problem = f"{shown(source) or 'an empty name'}: no such file or directory"
        raise UnreadableError(problem, hint_for_missing(source), "path.absent") from None
    if os.path.isdir(source):
        root, named = os.path.abspath(source), None
    else:
        root, named = os.path.split(os.path.abspath(source))
        try:
            os.close(open_regular(os.path.join(root, named), root))
        except UnsafePathError as error:
            if error.code != "path.not-regular":
                raise
            raise UnsafePathError(error.message, WANTED, error.code) from error  # the user gave this path
    deep = named is None or named.endswith(".index.json")
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
            path = os.path.join(directory, name)
            relative = path.removeprefix(root).lstrip(os.sep).replace(os.sep, "/")
            size = _regular_size(path, root)
            if size is None:
                special.append(relative)
            else:
                regular[relative] = size
    return Listing(source, root, named, dict(sorted(regular.items())), tuple(sorted(special)))


MAX_FILES = 100_000
MAX_LEVELS = 64
"""The most files and nested directories below MODEL. With more, MODEL is not a model directory."""


def _check_extent(root: str, directory: str, files: int) -> None:
    levels = directory.count(os.sep) - root.count(os.sep)
    if files <= MAX_FILES and levels <= MAX_LEVELS:
        return
    problem = f"more than {MAX_FILES:,} files" if files > MAX_FILES else f"directories more than {MAX_LEVELS} deep"
    hint = "give the directory that holds the weights"
    raise UnreadableError(f"{shown(root)} holds {problem}", hint, "path.too-large")


def _raise_unreadable(error: OSError) -> NoReturn:
    raise unreadable(str(error.filename), error)


def _regular_size(path: str, root: str) -> int | None:
    try:
        status = os.lstat(_resolve(path, root))
    except (UnsafePathError, OSError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


AHEAD = 2 * 1024 * 1024
"""Bytes between two hints."""
_LARGE = 128 * 1024
"""Bytes of a read that belongs to a read from end to end."""


def read_ahead(descriptor: int, position: int, size: int, end: int) -> None:
    """Announce the bytes behind a read of ``size`` bytes at ``position``; ``end`` is the end of the tensor.

    The kernel reads ahead of one series of reads. A comparison reads two tensors in turn, often of one file. Does
    nothing for a small read, and on systems without `posix_fadvise`.
    """
    after = position + size
    if size < _LARGE or position // AHEAD == after // AHEAD or after >= end or not hasattr(os, "posix_fadvise"):
        return
    os.posix_fadvise(descriptor, after, min(2 * AHEAD, end - after), os.POSIX_FADV_WILLNEED)


# What Linux and macOS have, and Windows and WebAssembly lack: reading has a fallback, writing a refusal.
fcntl: Any = None
"""The module of the locks; ``None`` on Windows."""
with suppress(ImportError):
    fcntl = import_module("fcntl")


def _flags(*names: str) -> int:
    return reduce(or_, (getattr(os, name, 0) for name in names))


READ = _flags("O_RDONLY", "O_NONBLOCK", "O_BINARY")
"""Flags that open a file for reading, without waiting for the writer of a FIFO."""
NO_FOLLOW = _flags("O_NOFOLLOW")
DIRECTORY = _flags("O_RDONLY", "O_DIRECTORY")
CREATE = _flags("O_RDWR", "O_CREAT", "O_EXCL", "O_NOFOLLOW", "O_BINARY")
"""Flags that create a file and fail if the name exists, also as a symlink."""


def require_posix() -> None:
    """Raise `UnsupportedSystemError` before a write on a system without locks and directory descriptors."""
    if fcntl is None or os.open not in os.supports_dir_fd or not hasattr(os, "geteuid"):  # WebAssembly has two of them
        problem = "tieconv does not write files on this system: it needs the file operations of Linux or macOS"
        hint = "on Windows, run the command in WSL (Windows Subsystem for Linux)"
        raise UnsupportedSystemError(problem, hint, "system.write")


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """Return up to ``size`` bytes at ``offset``. Without `os.pread`, the position of the descriptor moves."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, size, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def _read_into(descriptor: int, buffer: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], offset)
    data = read_at(descriptor, len(buffer), offset)
    buffer[: len(data)] = data
    return len(data)
