"""Read a tensor that is stored in chunks, block by block."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.chunks import ChunkTable
from tieconv.checkpoint.write_plan.output import Assembled
from tieconv.execute.contents.copy import Tick, write_full
from tieconv.inspection.blocks import stream
from tieconv.inspection.chunks.chunk_reader import ChunkReader
from tieconv.sources.local.files import FileSet

BLOCK = 4 * 1024 * 1024
"""Bytes that are put together in one step."""


def write_assembled(files: FileSet, descriptor: int, offset: int, content: Assembled, tick: Tick) -> None:
    """Write the dense bytes of a tensor from ``offset`` on."""
    for done, block in assembled_blocks(files, content):
        write_full(descriptor, memoryview(block), offset + done)
        tick(len(block))


def assembled_blocks(files: FileSet, content: Assembled) -> Iterator[tuple[int, bytearray]]:
    """Yield (dense offset, bytes) of a tensor. The next block overwrites the bytes."""
    name = content.tensor.name
    table = ChunkTable({name: content.chunks}, frozenset({name} if content.overlapping else ()))
    offset = 0
    for block in stream(ChunkReader(files, (content.tensor,), table), content.range, length=BLOCK):
        yield offset, block
        offset += len(block)
