"""Build the new model in the staging directory, where no other program sees it."""

from __future__ import annotations

import os
import queue
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from tieconv.checkpoint import write_plan
from tieconv.checkpoint.model_files import FileState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, ChunkTable, TensorRecord
from tieconv.errors import RefusedError, TieconvError
from tieconv.execute import copy
from tieconv.execute.arithmetic import averaged_blocks, scaled
from tieconv.execute.file_layout import FileLayout, file_layout
from tieconv.execute.target import Target, bytes_copied
from tieconv.execute.tree import writing
from tieconv.inspection.chunk_reader import ChunkReader
from tieconv.inspection.view_reader import stream
from tieconv.sources import local
from tieconv.sources.local import FileSet, file_state, open_files, open_regular
from tieconv.sources.strided import StridedRange, dense, gather
from tieconv.text import count, shown

# What a write did: the files that it opened, copied in the kernel, linked and took over.


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

    def resumed(self, files: int) -> Iterator[str]:
        """Yield a note if some of all the weight ``files`` are those of an earlier run."""
        if self.reused:
            share = f"{len(self.reused)} of {count(files, 'weight file')}"
            yield f"an earlier run finished {share}; tieconv compared every byte of them"


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
    tick: copy.Tick
    like: Callable[[str], copy.Like | None]
    record: Record = field(default_factory=Record)

    def weights(self, output: write_plan.OutputWeights, name: str) -> None:
        """Write the weight file ``output`` as ``name``."""
        with (
            writing(name, self.new, output.nbytes),
            open_files(self.root) as files,
            self._created(name, self.like(output.name)) as descriptor,
        ):
            whole = file_layout(output)
            tick = self._nudging(descriptor)
            # With its full length from the start, XFS reserves no space beyond the end of the file.
            os.ftruncate(descriptor, whole.size)
            shared: list[Shared] = []
            for piece in whole.pieces:
                content, offset = piece.content, piece.offset
                if isinstance(content, ByteRange):
                    source = self._open(files, content.file)
                    extents = copy.copy_range(source, content.start, descriptor, offset, content.size, tick)
                    shared += [Shared(start, end, content.file, content.start - offset) for start, end in extents]
                elif isinstance(content, write_plan.Zeros):
                    copy.write_zeros(descriptor, offset, content.size, self.tick)
                else:
                    chunks = content.chunks if isinstance(content, write_plan.Assembled) else ()
                    for span in [chunk.range for chunk in chunks] or write_plan.ranges(content):
                        self._open(files, span.file)
                    for done, block in computed_blocks(files, content):
                        copy.write_full(descriptor, memoryview(block), offset + done)
                        self.tick(len(block))
            for offset, literal in whole.literals(descriptor):
                copy.write_full(descriptor, literal, offset)
            self.record.shared[name] = shared

    def keep(self, output: write_plan.OutputWeights, name: str) -> None:
        """Take over the weight file ``name`` of a killed run, which is compared later like a written one."""
        with (
            writing(name, self.new, 0),
            local.closing(os.open(self.new / name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)) as descriptor,
        ):
            like = self.like(output.name)
            copy.reset(descriptor, like, (self.new / name).parent)
            _finish(descriptor, name, like, self.syncer, self.record)
        self.record.reused.add(name)
        self.tick(output.nbytes)

    def replace(self, output: write_plan.OutputWeights, name: str) -> None:
        """Write the weight file anew: the one of the killed run has other bytes."""
        self.record.reused.remove(name)
        os.unlink(self.new / name)
        self.weights(output, name)

    def _open(self, files: FileSet, name: str) -> int:
        if name not in self.record.sources:
            self.record.sources[name] = files.state(name)
        return files.descriptor(name)

    def _nudging(self, descriptor: int) -> copy.Tick:
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

    def text(self, output: write_plan.OutputText) -> None:
        """Write a document."""
        data = output.text.encode()
        like = self.like(output.name)
        with writing(output.name, self.new, len(data)), self._created(output.name, like) as descriptor:
            copy.write_full(descriptor, data, 0)
        self.tick(len(data))

    def companion(self, name: str) -> None:
        """Take over an unchanged file: share its blocks if possible, else copy them. A symlink becomes a file."""
        with local.closing(open_regular(self.root / name, self.root)) as source:
            status = os.fstat(source)
            self.record.sources[name] = file_state(source)
            with (
                writing(name, self.new, status.st_size),
                self._created(name, self.like(name) or copy.Like(self.root / name, False)) as descriptor,
            ):
                if copy.clone(source, descriptor):
                    extents = [(0, status.st_size)]
                    self.tick(status.st_size)
                else:
                    extents = copy.copy_range(source, 0, descriptor, 0, status.st_size, self.tick)
                self.record.shared[name] = [Shared(start, end, name, 0) for start, end in extents]
                os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
        self.record.companions.append(name)

    def hardlink(self, name: str) -> None:
        """Hard-link an unchanged file. Raises `RefusedError` if the system cannot."""
        source = open_regular(self.root / name, self.root)
        try:
            with writing(name, self.new, 0):
                (self.new / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(os.path.realpath(self.root / name), self.new / name)
            if not os.path.samestat(os.fstat(source), os.lstat(self.new / name)):
                raise RefusedError(f"{shown(name)} was replaced while tieconv linked it", "run the command again")
            self.record.sources[name] = file_state(source)
            self.syncer.add(source)
        except TieconvError as error:
            raise copy.not_linkable(name, error) from error
        finally:
            os.close(source)
        self.record.companions.append(name)

    def share(self, name: str) -> None:
        """Hard-link an unchanged file, or copy it if the file system has no hard links."""
        try:
            self.hardlink(name)
        except RefusedError:
            self.companion(name)

    def _created(self, name: str, like: copy.Like | None) -> AbstractContextManager[int]:
        return created(self.new, name, like, self.syncer, self.record)


@contextmanager
def created(directory: Path, name: str, like: copy.Like | None, syncer: Syncer, written: Record) -> Iterator[int]:
    """Yield the descriptor of a new file. At the end, set the mode and owner of ``like``, sync it and close it."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    # The system applies the umask and the default ACL; the staging directory is private.
    mode = 0o666 if like is None else like.creation_mode
    with local.closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)) as descriptor:
        yield descriptor
        _finish(descriptor, name, like, syncer, written)


def _finish(descriptor: int, name: str, like: copy.Like | None, syncer: Syncer, written: Record) -> None:
    if like is not None and (lost := copy.inherit(descriptor, like)):
        written.lost[name] = lost
    syncer.add(descriptor)


def is_finished(path: Path, layout: FileLayout) -> bool:
    """Return whether ``path`` is a file of this user with the size and the header of ``layout``.

    The header is written last. Says nothing about the tensors.
    """
    try:
        descriptor = os.open(path, local.READ | local.NO_FOLLOW)
    except OSError:
        return False
    with local.closing(descriptor):
        status = os.fstat(descriptor)
        alone = stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid == os.geteuid()
        return alone and status.st_size == layout.size and _has_literals(descriptor, layout)


def _has_literals(descriptor: int, layout: FileLayout) -> bool:
    for offset, expected in layout.literals(descriptor):
        stored = memoryview(bytearray(len(expected)))
        copy.read_full(descriptor, stored, offset)
        if stored != expected:
            return False
    return True


# The values that are computed: what is written, and what a written file must then hold.


BLOCK = 4 * 1024 * 1024
"""Bytes that are put together in one step."""

Computed = write_plan.Scaled | write_plan.Averaged | write_plan.InlineBytes | write_plan.Gathered | write_plan.Assembled


def computed_blocks(files: FileSet, content: Computed) -> Iterator[tuple[int, bytes | bytearray]]:
    """Yield (offset, bytes) of a content, block by block. The next block may overwrite the bytes."""
    match content:
        case write_plan.Scaled():
            source = files.descriptor(content.range.file)
            for done, block in copy.read_blocks(source, content.range.start, content.range.size, SCALE_BLOCK):
                yield done, scaled(block, content.dtype, content.exponent)
        case write_plan.Averaged():
            pair = files.descriptor(content.range.file), files.descriptor(content.second.file)
            yield from averaged_blocks(pair, content)
        case write_plan.InlineBytes(data):
            yield 0, data
        case write_plan.Gathered():
            yield from blocks(files.descriptor(content.range.file), content)
        case write_plan.Assembled():  # its chunks are in several files
            name, offset = content.tensor.name, 0
            table = ChunkTable({name: content.chunks}, frozenset({name} if content.overlapping else ()))
            for chunk in stream(ChunkReader(files, (content.tensor,), table), content.range, length=BLOCK):
                yield offset, chunk
                offset += len(chunk)
        case _:
            assert_never(content)


def blocks(source: int, content: write_plan.Gathered) -> Iterator[tuple[int, bytearray]]:
    """Yield (dense offset, bytes) of a strided view of ``source``, block by block."""
    span = dense(TensorRecord("", content.dtype, content.shape, content.range, content.stride)).range
    assert isinstance(span, StridedRange)  # a dense tensor is a byte range

    def read(position: int, buffer: memoryview) -> None:
        copy.read_full(source, buffer, position)

    step = max(BLOCK // span.width, 1) * span.width
    for first in range(0, span.end, step):
        yield first, gather(read, span, first, min(first + step, span.end))


_QUEUED = 64
"""Files that may wait in the queue: each holds a descriptor."""
EARLY = 128 * 1024 * 1024
"""Bytes of a file after which a first sync starts, so that the disk works while the copy goes on."""


class Syncer:
    """Sync each file that it receives; `finish` reports the first failure."""

    def __init__(self) -> None:
        self._queue: queue.Queue[int | None] = queue.Queue(_QUEUED)
        self._error: OSError | None = None
        self._stopped = False
        self._idle = True
        self._thread = threading.Thread(target=self._work, name="tieconv-sync", daemon=True)
        self._thread.start()

    def add(self, descriptor: int) -> None:
        """Sync the open file soon; the caller may close its descriptor."""
        self._queue.put(os.dup(descriptor))

    def nudge(self, descriptor: int) -> None:
        """Start a sync of the bytes written so far, unless one is running. The file still needs `add`."""
        if self._idle and self._queue.empty():
            self.add(descriptor)

    def finish(self) -> None:
        """Wait until every file is durable. Raises the first `OSError`."""
        self._queue.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Drop the files that are not synced yet."""
        self._stopped = True
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (descriptor := self._queue.get()) is not None:
            self._idle = False
            try:
                if not (self._stopped or self._error):
                    os.fsync(descriptor)
            except OSError as error:
                self._error = error
            finally:
                os.close(descriptor)
                self._idle = True


Progress = Callable[[int, int], None]
"""It receives the bytes that are done and all bytes."""


@dataclass
class ByteMeter:
    """Count bytes for ``progress``."""

    total: int
    progress: Progress | None
    done: int = 0

    @classmethod
    def of(cls, plan: write_plan.Plan, target: Target, progress: Progress | None) -> ByteMeter:
        once = plan.bytes_written + bytes_copied(plan, target)
        return cls(once * (2 if target.verify == "full" else 1), progress)

    def tick(self, count: int) -> None:
        """Count ``count`` more bytes as done."""
        self.done = min(self.done + count, self.total)
        if self.progress is not None:
            self.progress(self.done, self.total)
