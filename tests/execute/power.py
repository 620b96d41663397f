"""What a power cut leaves of a run, told from its system calls.

The model is that of a journalling file system: names change in the order of the calls and survive as a prefix of it;
of a file only what was synced survives. After each call the image is judged that keeps all names so far.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TRACED = (
    "mkdir,mkdirat,openat,dup,dup2,dup3,fcntl,pwrite64,pwritev,write,ftruncate,copy_file_range,sendfile,ioctl,link,"
    "linkat,fsync,fdatasync,rename,renameat,renameat2,unlink,unlinkat,rmdir,close"
)
_LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (\d+)(?:<(.*)>)?$", re.MULTILINE)
_ARGUMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|(AT_FDCWD|\d+)<([^>]*)>|([^,\s][^,]*)')

_RESUMED = re.compile(r"^\d+ +<\.\.\. \w+ resumed>(.*)$")


@dataclass(eq=False)
class File:
    """An inode: how often it was written, and how often when it was last synced."""

    version: int = 0
    synced: int = 0


@dataclass(eq=False)
class Directory:
    """Names, and those of them that are durable without the journal's order."""

    entries: dict[str, Node] = field(default_factory=dict)
    durable: set[str] = field(default_factory=set)


Node = File | Directory
Files = dict[str, File]


def read(path: Path) -> Node:
    """A tree as it is on disk, all of it durable."""
    if not path.is_dir():
        return File()
    names = os.listdir(path)
    return Directory({name: read(path / name) for name in names}, set(names))


def files(node: Node | None, below: str = "") -> Files:
    """Every file of a tree; nothing of an absent one."""
    if node is None:
        return {}
    if isinstance(node, File):
        return {below: node}
    return {
        name: file for entry, child in node.entries.items() for name, file in files(child, f"{below}/{entry}").items()
    }


def _joined(log: str) -> str:
    """The log with each call in one line, where it ended: strace splits what threads do at the same time."""
    begun: dict[str, str] = {}
    lines: list[str] = []
    for line in log.splitlines():
        thread = line.split(" ", 1)[0]
        if line.endswith("<unfinished ...>"):
            begun[thread] = line.removesuffix("<unfinished ...>").rstrip()
        elif resumed := _RESUMED.match(line):
            lines.append(begun.pop(thread) + resumed[1])
        else:
            lines.append(line)
    return "\n".join(lines)


class Disk:
    """The directory ``root`` while a traced run works in it."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = str(root.parent), Directory({root.name: read(root)})
        self._paths: dict[str, str] = {}
        self._open: dict[str, Node | None] = {}

    def play(self, log: str) -> Iterator[str]:
        """Carry out each call of the log that changed something here; its name."""
        for name, given, result, opened in _LINE.findall(_joined(log)):
            arguments = [text or path or word for text, _, path, word in _ARGUMENT.findall(given)]
            numbers = [number for _, number, _, _ in _ARGUMENT.findall(given)]
            if self._call(name, arguments, numbers, result, opened):
                yield name

    def _call(self, name: str, arguments: list[str], numbers: list[str], result: str, opened: str) -> bool:
        match name:
            case "openat":
                return self._opened(arguments, result, opened)
            case "dup" | "dup2" | "dup3" | "fcntl":
                if name != "fcntl" or arguments[1].startswith("F_DUPFD"):
                    self._paths[result], self._open[result] = opened, self._open.get(numbers[0])
                return False
            case "pwrite64" | "pwritev" | "write" | "ftruncate" | "sendfile" | "copy_file_range":
                return self._written(numbers[2 if name == "copy_file_range" else 0])
            case "ioctl":
                return "CLONE" in arguments[1] and self._written(numbers[0])
            case "fsync" | "fdatasync":
                return self._synced(numbers[0])
            case "close":
                self._open.pop(numbers[0], None)
                return False
        return self._named(name, arguments)

    def _opened(self, arguments: list[str], result: str, opened: str) -> bool:
        self._paths[result] = opened
        path, flags = self._resolve(arguments[0], arguments[1]), arguments[2]
        around, name = self._find(path)
        if around is None or "O_TMPFILE" in flags:
            self._open[result] = None
            return False
        new = name not in around.entries and "O_CREAT" in flags
        if new:
            self._set(around, name, File())
        self._open[result] = around.entries.get(name)
        return new

    def _written(self, number: str) -> bool:
        file = self._open.get(number)
        if isinstance(file, File):
            file.version += 1
        return file is not None

    def _synced(self, number: str) -> bool:
        node = self._open.get(number)
        if isinstance(node, File):
            node.synced = node.version
        elif node is not None:
            node.durable = set(node.entries)
        return node is not None

    def _named(self, name: str, arguments: list[str]) -> bool:
        if name.endswith(("at", "at2")):
            paths = [self._resolve(*pair) for pair in zip(arguments[:4:2], arguments[1:4:2], strict=False)]
        else:
            paths = [self._resolve("", argument) for argument in arguments]
        around, entry = self._find(paths[0])
        if around is None:
            return False
        if name.startswith("mkdir"):
            self._set(around, entry, Directory())
        elif name.startswith(("unlink", "rmdir")):
            del around.entries[entry]
        else:
            self._moved(name, around, entry, paths[1], "RENAME_EXCHANGE" in arguments)
        return True

    def _moved(self, name: str, around: Directory, entry: str, to: str, exchange: bool) -> None:
        target, other = self._find(to)
        assert target is not None, to
        node, old = around.entries[entry], target.entries.get(other)
        self._set(target, other, node)
        if exchange:
            assert old is not None
            self._set(around, entry, old)
        elif name.startswith("rename"):
            del around.entries[entry]

    @staticmethod
    def _set(around: Directory, name: str, node: Node) -> None:
        around.entries[name] = node
        around.durable.discard(name)

    def _resolve(self, directory: str, path: str) -> str:
        through = re.match(r"/proc/self/fd/(\d+)", path)
        if through:
            return self._paths[through[1]] + path[through.end() :]
        return path if path.startswith("/") else f"{directory}/{path}"

    def _find(self, path: str) -> tuple[Directory | None, str]:
        """The simulated directory that holds ``path``, and its name there."""
        relative = os.path.relpath(path, self.root)
        if relative.startswith("."):
            return None, ""
        node: Node | None = self.tree
        *parents, name = relative.split("/")
        for part in parents:
            node = node.entries.get(part) if isinstance(node, Directory) else None
        return (node, name) if isinstance(node, Directory) else (None, "")

    def at(self, path: Path) -> Node | None:
        """What is at ``path``."""
        around, name = self._find(str(path))
        return around.entries.get(name) if around else None
