"""Build the new model in the staging directory, where no other program sees it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.write_plan.output import (
    Assembled,
    Averaged,
    Gathered,
    InlineBytes,
    OutputText,
    OutputWeights,
    Scaled,
    Zeros,
)
from tieconv.errors import RefusedError, TieconvError
from tieconv.execute.contents.assembled_chunks import write_assembled
from tieconv.execute.contents.attributes import Like, inherit, reset
from tieconv.execute.contents.clone import clone
from tieconv.execute.contents.copy import Tick, copy_range, read_full, write_full, write_zeros
from tieconv.execute.contents.file_layout import file_layout
from tieconv.execute.contents.hard_link_error import not_linkable
from tieconv.execute.contents.mean import averaged_blocks
from tieconv.execute.contents.power_of_two import scaled
from tieconv.execute.contents.strided_write import write_gathered
from tieconv.execute.contents.sync import EARLY, Syncer
from tieconv.execute.contents.write_record import Record, Shared
from tieconv.execute.system_errors import writing
from tieconv.sources.local.files import FileSet, file_state, open_files, open_regular
from tieconv.text import shown

SCALE_BLOCK = 1024 * 1024
"""Bytes scaled in one step: a multiple of every element's width."""


@dataclass
class Writer:
    """Write files of a model to ``new``; ``syncer`` syncs them.

    ``like(name)`` is the file, if any, whose mode and owner a written one takes.
    """

    root: Path
    new: Path
    syncer: Syncer
    tick: Tick
    like: Callable[[str], Like | None]
    record: Record = field(default_factory=Record)

    def weights(self, output: OutputWeights, name: str) -> None:
        """Write the weight file ``output`` as ``name``."""
        with (
            writing(name, self.new, output.nbytes),
            open_files(self.root) as files,
            self._created(name, self.like(output.name)) as descriptor,
        ):
            self.record.add_shared(name, self._fill(output, files, descriptor))

    def keep(self, output: OutputWeights, name: str) -> None:
        """Take over the weight file ``name`` of a killed run, which is compared later like a written one."""
        with writing(name, self.new, 0):
            descriptor = os.open(self.new / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                like = self.like(output.name)
                reset(descriptor, like, (self.new / name).parent)
                _finish(descriptor, name, like, self.syncer, self.record)
            finally:
                os.close(descriptor)
        self.record.add_reused(name)
        self.tick(output.nbytes)

    def replace(self, output: OutputWeights, name: str) -> None:
        """Write the weight file anew: the one of the killed run has other bytes."""
        self.record.reused.remove(name)
        os.unlink(self.new / name)
        self.weights(output, name)

    def _fill(self, output: OutputWeights, files: FileSet, descriptor: int) -> list[Shared]:
        whole = file_layout(output)
        tick = self._nudging(descriptor)
        # With its full length from the start, XFS reserves no space beyond the end of the file.
        os.ftruncate(descriptor, whole.size)
        shared: list[Shared] = []
        for piece in whole.pieces:
            offset = piece.offset
            match piece.content:
                case ByteRange() as span:
                    shared += self._copy(files, span, descriptor, offset, tick)
                case Zeros(size):
                    write_zeros(descriptor, offset, size, self.tick)
                case Scaled() as content:
                    self._scale(files, content, descriptor, offset)
                case Averaged() as content:
                    self._average(files, content, descriptor, offset)
                case InlineBytes(data):
                    write_full(descriptor, data, offset)
                    self.tick(len(data))
                case Gathered() as view:
                    write_gathered(self._open(files, view.range.file), descriptor, offset, view, self.tick)
                case Assembled() as content:
                    for name in {chunk.range.file for chunk in content.chunks}:
                        self._open(files, name)
                    write_assembled(files, descriptor, offset, content, self.tick)
                case _:
                    assert_never(piece.content)
        for offset, literal in whole.literals(descriptor):
            write_full(descriptor, literal, offset)
        return shared

    def _open(self, files: FileSet, name: str) -> int:
        if name not in self.record.sources:
            self.record.add_source(name, files.state(name))
        return files.descriptor(name)

    def _nudging(self, descriptor: int) -> Tick:
        """Return `tick`, extended to start a sync after every `EARLY` bytes."""
        written = 0

        def tick(count: int) -> None:
            nonlocal written
            written += count
            if written >= EARLY:
                written = 0
                self.syncer.nudge(descriptor)
            self.tick(count)

        return tick

    def _copy(self, files: FileSet, span: ByteRange, descriptor: int, offset: int, tick: Tick) -> list[Shared]:
        source = self._open(files, span.file)
        extents = copy_range(source, span.start, descriptor, offset, span.size, tick)
        return [Shared(start, end, span.file, span.start - offset) for start, end in extents]

    def _scale(self, files: FileSet, content: Scaled, descriptor: int, offset: int) -> None:
        source = self._open(files, content.range.file)
        for done in range(0, content.range.size, SCALE_BLOCK):
            block = memoryview(bytearray(min(SCALE_BLOCK, content.range.size - done)))
            read_full(source, block, content.range.start + done)
            write_full(descriptor, scaled(block, content.dtype, content.exponent), offset + done)
            self.tick(len(block))

    def _average(self, files: FileSet, content: Averaged, descriptor: int, offset: int) -> None:
        sources = self._open(files, content.range.file), self._open(files, content.second.file)
        for done, block in averaged_blocks(sources, content):
            write_full(descriptor, block, offset + done)
            self.tick(len(block))

    def text(self, output: OutputText) -> None:
        """Write a document."""
        data = output.text.encode()
        like = self.like(output.name)
        with writing(output.name, self.new, len(data)), self._created(output.name, like) as descriptor:
            write_full(descriptor, data, 0)
        self.tick(len(data))

    def companion(self, name: str) -> None:
        """Take over an unchanged file: share its blocks if possible, else copy them. A symlink becomes a file."""
        source = open_regular(self.root / name, self.root)
        try:
            status = os.fstat(source)
            self.record.add_source(name, file_state(source))
            with writing(name, self.new, status.st_size):
                self._bring(name, source, status)
        finally:
            os.close(source)
        self.record.add_companion(name)

    def _bring(self, name: str, source: int, status: os.stat_result) -> None:
        with self._created(name, self.like(name) or Like(self.root / name, False)) as descriptor:
            if clone(source, descriptor):
                extents = [(0, status.st_size)]
                self.tick(status.st_size)
            else:
                extents = copy_range(source, 0, descriptor, 0, status.st_size, self.tick)
            self.record.add_shared(name, [Shared(start, end, name, 0) for start, end in extents])
            os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))

    def hardlink(self, name: str) -> None:
        """Hard-link an unchanged file. Raises `RefusedError` if the system cannot."""
        source = open_regular(self.root / name, self.root)
        try:
            with writing(name, self.new, 0):
                (self.new / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(os.path.realpath(self.root / name), self.new / name)
            if not os.path.samestat(os.fstat(source), os.lstat(self.new / name)):
                raise RefusedError(f"{shown(name)} was replaced while tieconv linked it", "run the command again")
            self.record.add_source(name, file_state(source))
            self.syncer.add(source)
        except TieconvError as error:
            raise not_linkable(name, error) from error
        finally:
            os.close(source)
        self.record.add_companion(name)

    def share(self, name: str) -> None:
        """Hard-link an unchanged file, or copy it if the file system has no hard links."""
        try:
            self.hardlink(name)
        except RefusedError:
            self.companion(name)

    def _created(self, name: str, like: Like | None) -> AbstractContextManager[int]:
        return created(self.new, name, like, self.syncer, self.record)


@contextmanager
def created(directory: Path, name: str, like: Like | None, syncer: Syncer, written: Record) -> Iterator[int]:
    """Yield the descriptor of a new file. At the end, set the mode and owner of ``like``, sync it and close it."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # The system applies the umask and the default ACL; the staging directory is private.
    mode = 0o666 if like is None else like.creation_mode
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield descriptor
        _finish(descriptor, name, like, syncer, written)
    finally:
        os.close(descriptor)


def _finish(descriptor: int, name: str, like: Like | None, syncer: Syncer, written: Record) -> None:
    if like is not None and (lost := inherit(descriptor, like)):
        written.add_lost(name, lost)
    syncer.add(descriptor)
