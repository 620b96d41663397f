"""Write strided views densely, and read the blocks that a written file must then hold."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.write_plan.output import Gathered
from tieconv.execute.contents.copy import Tick, read_full, write_full
from tieconv.sources.strided import StridedRange, dense, gather

BLOCK = 4 * 1024 * 1024
"""Approximate dense bytes gathered in one step."""


def write_gathered(source: int, descriptor: int, offset: int, content: Gathered, tick: Tick) -> None:
    """Write the elements of a view of ``source`` from ``offset`` on, in row-major order."""
    for done, block in blocks(source, content):
        write_full(descriptor, bytes(block), offset + done)
        tick(len(block))


def blocks(source: int, content: Gathered) -> Iterator[tuple[int, bytearray]]:
    """Yield (dense offset, bytes) of a view of ``source``, block by block."""
    span = dense(TensorRecord("", content.dtype, content.shape, content.range, content.stride)).range
    assert isinstance(span, StridedRange)  # a dense tensor is a byte range

    def read(position: int, buffer: memoryview) -> None:
        read_full(source, buffer, position)

    step = max(BLOCK // span.width, 1) * span.width
    for first in range(0, span.end, step):
        yield first, gather(read, span, first, min(first + step, span.end))
