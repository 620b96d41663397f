"""Copy mode, owner, extended attributes and access control list from the replaced file to the written file."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tieconv.checkpoint.value_type import record
from tieconv.text import count, shown

_ACCESS = "system.posix_acl_access"
_LISTS = frozenset({_ACCESS, "system.posix_acl_default"})
_OF_CONTENT = frozenset({"security.ima", "security.evm"})
"""Signatures of the old content, which are wrong for the new content."""
_NONE = frozenset({errno.EOPNOTSUPP, errno.ENODATA})
_ALL = ("all",)


@record
class Like:
    """The model for a written file's attributes: the file it ``replaces``, else the one it is made from."""

    path: Path
    replaces: bool

    @property
    def status(self) -> os.stat_result:
        return os.stat(self.path)

    @property
    def creation_mode(self) -> int:
        """The mode to create a file with, before the system removes the bits of the umask."""
        return stat.S_IMODE(self.status.st_mode) & 0o777


def first_like(replaced: Path | None, source: Path) -> Like | None:
    """Return the file at ``replaced``, else the one at ``source``, else ``None``."""
    if replaced is not None and replaced.exists():
        return Like(replaced, True)
    return Like(source, False) if source.exists() else None


def inherit(descriptor: int, like: Like) -> tuple[str, ...]:
    """Copy the owner (as root) and, when the file replaces ``like``, all other attributes to the open file.

    Returns the names of the extended attributes that could not be kept.
    """
    old = like.status
    if not like.replaces:
        _own(descriptor, old)
        return ()
    return _take_over(descriptor, like.path, old, like.creation_mode)


def reset(descriptor: int, like: Like | None, directory: Path) -> None:
    """Give a file that a killed run left the mode, group and extended attributes of a new file in ``directory``.

    An archive can bring such a file along, with any mode. Raises ``OSError`` if an attribute cannot be removed.
    """
    fresh = directory / f"{secrets.token_hex(8)}.tmp"
    mode = 0o666 if like is None else like.creation_mode
    made = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        status = os.fstat(made)
        os.fchown(descriptor, -1, status.st_gid)
        if hasattr(os, "listxattr"):
            for name in set(os.listxattr(descriptor)).difference(os.listxattr(made)):
                os.removexattr(descriptor, name)
            _copy_extended(descriptor, fresh)
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
    finally:
        os.close(made)
        os.unlink(fresh)


def inherit_directory(directory: Path, like: Like) -> tuple[str, ...]:
    """Copy attributes to a directory as `inherit` does; a directory that replaces another keeps its whole mode."""
    old = like.status
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if like.replaces:
            return _take_over(descriptor, like.path, old, stat.S_IMODE(old.st_mode))
        _own(descriptor, old)
        os.fchmod(descriptor, stat.S_IMODE(os.fstat(descriptor).st_mode & old.st_mode) | 0o700)
        return ()
    finally:
        os.close(descriptor)


def _own(descriptor: int, old: os.stat_result) -> None:
    if os.geteuid() == 0:
        with suppress(PermissionError):  # a file system without owners, or one whose owners root may not change
            os.fchown(descriptor, old.st_uid, old.st_gid)


def _take_over(descriptor: int, path: Path, old: os.stat_result, mode: int) -> tuple[str, ...]:
    """Copy the access control list; without one, give the group no permission: its bits were the list's mask."""
    _own(descriptor, old)
    lost = _copy_extended(descriptor, path)
    os.fchmod(descriptor, mode & ~stat.S_IRWXG if _ACCESS in lost else mode)
    return lost


def _copy_extended(descriptor: int, path: Path) -> tuple[str, ...]:
    if not hasattr(os, "listxattr"):
        return _ALL
    try:
        names = os.listxattr(path)
    except OSError as error:
        return () if error.errno in _NONE else _ALL
    for name in _LISTS.intersection(os.listxattr(descriptor)).difference(names):
        os.removexattr(descriptor, name)  # the parent directory's default set it; the old file has none
    return tuple(name for name in names if not _copy_one(descriptor, path, name))


def _copy_one(descriptor: int, path: Path, name: str) -> bool:
    if name in _OF_CONTENT:
        return False
    try:
        value = os.getxattr(path, name)
        if value != _value(descriptor, name):
            os.setxattr(descriptor, name, value)
    except OSError as error:
        return error.errno == errno.ENODATA
    return True


def _value(descriptor: int, name: str) -> bytes | None:
    try:
        return os.getxattr(descriptor, name)
    except OSError:
        return None


def notes(lost: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the note about extended attributes that could not be kept; empty if all were kept."""
    if not lost:
        return ()
    name, attributes = min(lost.items())
    others = f" and of {count(len(lost) - 1, 'other file')}" if len(lost) > 1 else ""
    subject = f"extended attributes of {shown(name)}{others}"
    return (f"tieconv could not keep all {subject}: {shown(', '.join(attributes))}",)
