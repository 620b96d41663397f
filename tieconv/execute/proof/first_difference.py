"""Find the first byte of a written file that differs from the plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.write_plan.output import Scaled
from tieconv.errors import RefusedError
from tieconv.execute.contents.copy import BLOCK, Tick, read_full
from tieconv.execute.contents.power_of_two import scaled
from tieconv.execute.contents.write import SCALE_BLOCK


def first_difference(
    source: int, descriptor: int, ranges: Iterable[tuple[int, int]], shift: int, tick: Tick
) -> int | None:
    """Return the first offset in ``ranges`` of ``descriptor`` whose byte differs from ``source`` at ``shift`` more."""
    for start, end in ranges:
        for offset, expected, actual in _lockstep(source, descriptor, start, end, shift, tick):
            if expected != actual:
                return offset + next(i for i, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b)
    return None


def _lockstep(
    source: int, descriptor: int, start: int, end: int, shift: int, tick: Tick
) -> Iterator[tuple[int, bytearray, bytearray]]:
    """Yield blocks of both files, in two buffers that are reused."""
    expected, actual = bytearray(min(BLOCK, end - start)), bytearray(min(BLOCK, end - start))
    for offset in range(start, end, BLOCK):
        if end - offset < len(actual):
            expected, actual = bytearray(end - offset), bytearray(end - offset)
        read_full(source, memoryview(expected), offset + shift)
        read_full(descriptor, memoryview(actual), offset)
        yield offset, expected, actual
        tick(len(actual))


def first_nonzero(descriptor: int, start: int, end: int, tick: Tick) -> int | None:
    """Return the first offset from ``start`` to ``end`` whose byte is not zero."""
    zeros = bytes(BLOCK)
    for offset in range(start, end, BLOCK):
        actual = bytearray(min(BLOCK, end - offset))
        read_full(descriptor, memoryview(actual), offset)
        if actual != zeros[: len(actual)]:
            return offset + next(i for i, byte in enumerate(actual) if byte)
        tick(len(actual))
    return None


def first_unlike_blocks(
    expected: Iterable[tuple[int, bytes | bytearray]], descriptor: int, start: int, tick: Tick
) -> int | None:
    """Return the first offset that differs from ``expected``, blocks with their offset from ``start``."""
    for done, block in expected:
        actual = bytearray(len(block))
        read_full(descriptor, memoryview(actual), start + done)
        if actual != block:
            return start + done + next(i for i, (a, b) in enumerate(zip(block, actual, strict=True)) if a != b)
        tick(len(block))
    return None


def first_unscaled(source: int, descriptor: int, start: int, content: Scaled, tick: Tick) -> int | None:
    """Return the first written block that, scaled back, differs from its source; an exact product can be undone."""
    for done in range(0, content.range.size, SCALE_BLOCK):
        size = min(SCALE_BLOCK, content.range.size - done)
        expected, actual = bytearray(size), bytearray(size)
        read_full(source, memoryview(expected), content.range.start + done)
        read_full(descriptor, memoryview(actual), start + done)
        if not _undone(actual, expected, content):
            return start + done
        tick(size)
    return None


def _undone(actual: bytearray, expected: bytearray, content: Scaled) -> bool:
    try:
        return scaled(actual, content.dtype, -content.exponent) == expected
    except RefusedError:
        return False
