"""What a write did: the files that it opened, copied in the kernel, linked and took over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tieconv.checkpoint.files.model_files import FileState
from tieconv.checkpoint.value_type import record
from tieconv.text import count


@record
class Shared:
    """Bytes ``start`` to ``end`` of a written file that the kernel copied or shared.

    The source ``file`` holds the same bytes at ``shift`` more.
    """

    start: int
    end: int
    file: str
    shift: int


@dataclass
class Record:
    """What was written: the kernel-copied extents of each file, and the source files as they were.

    ``lost`` has the extended attributes of replaced files that could not be kept. ``reused`` are weight files of an
    earlier run.
    """

    shared: dict[str, list[Shared]] = field(default_factory=dict)
    companions: list[str] = field(default_factory=list)
    sources: dict[str, FileState] = field(default_factory=dict)
    lost: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reused: set[str] = field(default_factory=set)

    def add_shared(self, name: str, extents: list[Shared]) -> None:
        self.shared[name] = extents

    def add_companion(self, name: str) -> None:
        self.companions.append(name)

    def add_source(self, name: str, state: FileState) -> None:
        self.sources[name] = state

    def add_reused(self, name: str) -> None:
        self.reused.add(name)

    def add_lost(self, name: str, attributes: tuple[str, ...]) -> None:
        self.lost[name] = attributes

    def resumed(self, files: int) -> Iterator[str]:
        """Yield a note if some of all the weight ``files`` are those of an earlier run."""
        if self.reused:
            share = f"{len(self.reused)} of {count(files, 'weight file')}"
            yield f"an earlier run finished {share}; tieconv compared every byte of them"
