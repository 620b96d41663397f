"""What a comparison of two matrices takes, counted in bytes read and array operations: whatever they hold."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tests.inspection.stored import Array, Memory
from tieconv.checkpoint.weight_file import BITS
from tieconv.inspection.equality import relate
from tieconv.inspection.numeric import bits as numeric_transpose
from tieconv.inspection.numeric import rows
from tieconv.inspection.numeric import rows as numeric_rows
from tieconv.inspection.numeric.bits import PIECE

ROWS, WIDTH = 256, 4096
PASSES = 8
"""Times that every byte of both may be read: equality, either side as a multiple, the difference, and a few tries."""

Make = Callable[[int, Array, Array], tuple[Array, Array]]


def changed(bits: Array, index: int, by: int = 1) -> Array:
    bits = bits.copy()
    bits[index] ^= by
    return bits


def filled(zeros: Array, bits: int) -> Array:
    return np.full_like(zeros, bits)


MIDDLE = ROWS * WIDTH // 2 + 999  # outside the samples
KINDS: dict[str, Make] = {
    "one byte": lambda unit, zero, normal: (zero, changed(zero, MIDDLE)),
    "one byte, large": lambda unit, zero, normal: (zero, changed(zero, MIDDLE, unit)),
    "the last byte": lambda unit, zero, normal: (zero, changed(zero, -1)),
    "zeros, one of them scaled": lambda unit, zero, normal: (
        changed(zero, MIDDLE, unit), changed(zero, MIDDLE, unit + 9)
    ),
    "zeros of both signs": lambda unit, zero, normal: (zero, filled(zero, 1 << (8 * zero.itemsize - 1))),
    "constant": lambda unit, zero, normal: (filled(zero, unit), changed(filled(zero, unit), MIDDLE)),
    "two constants": lambda unit, zero, normal: (filled(zero, unit), filled(zero, unit + 5)),
    "repeated rows": lambda unit, zero, normal: (
        np.tile(normal[:WIDTH], ROWS), changed(np.tile(normal[:WIDTH], ROWS), MIDDLE)
    ),
    "NaN of other bits": lambda unit, zero, normal: (filled(zero, unit * 2 + 3), filled(zero, unit * 2 + 4)),
    "NaN beside zero": lambda unit, zero, normal: (filled(zero, unit * 2 + 3), zero),
    "subnormal": lambda unit, zero, normal: (zero + normal % 60, changed(zero + normal % 60, MIDDLE)),
    "subnormal, doubled": lambda unit, zero, normal: (normal % 50, normal % 50 * 2),
    "unrelated": lambda unit, zero, normal: (normal, normal[::-1]),
    "scaled but for one": lambda unit, zero, normal: (normal, changed(doubled(unit, normal), MIDDLE)),
    "scaled but for every seventh": lambda unit, zero, normal: (normal, sevenths(doubled(unit, normal))),
    "scaled but for two far off": lambda unit, zero, normal: (
        normal, changed(changed(doubled(unit, normal), MIDDLE, 64), MIDDLE + 5, 64)
    ),
}  # fmt: skip


def doubled(unit: int, bits: Array) -> Array:
    return bits + bits.dtype.type(1 << (23 if bits.itemsize == 4 else 7))


def sevenths(bits: Array) -> Array:
    bits = bits.copy()
    bits[::7] ^= 1
    return bits


def pair(kind: str, dtype: str) -> tuple[Array, Array]:
    words = np.dtype("<u4" if dtype == "F32" else "<u2")
    values = (np.random.default_rng(0).standard_normal(ROWS * WIDTH) * 0.02).astype("<f4").view("<u4")
    normal = values if words.itemsize == 4 else (values >> 16).astype(words)
    unit = 0x3F80_0000 if words.itemsize == 4 else 0x3F80
    left, right = KINDS[kind](unit, np.zeros(ROWS * WIDTH, words), normal)
    return left.astype(words), right.astype(words)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("shape", [(ROWS, WIDTH), (1, ROWS * WIDTH), (ROWS * WIDTH // 2, 2)])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
@pytest.mark.parametrize("kind", KINDS)
def test_passes(kind: str, dtype: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A few passes over the bytes, and no more than one whose every element bounds a factor, whatever they hold."""
    memory, bounded = Memory(), [0]
    left, right = pair(kind, dtype)
    interval = rows._interval

    def counted(values: Array, *rest: object) -> object:
        bounded[0] += len(values)
        return interval(values, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(rows, "_interval", counted)
    reader = memory.counted()
    stored = [memory.store(name, dtype, bits.reshape(shape)) for name, bits in (("a", left), ("b", right))]
    tracemalloc.start()
    relate(reader, *stored)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reader.bytes_read <= PASSES * sum(record.nbytes for record in stored)
    assert bounded[0] <= ROWS * WIDTH * 2  # for two widths of interval each
    assert peak < 4 << 20  # tens of pieces, not the 2 or 4 MiB of either tensor several times


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F64"])
@pytest.mark.parametrize("shape", [(2, 1 << 19), (1 << 19, 2), (16, 1 << 16), (1024, 1024)])
def test_comparisons_of_a_transpose(dtype: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Few array comparisons for each MiB, however flat the matrix is."""
    memory, calls = Memory(), [0]
    width = BITS[dtype] // 8
    bits = np.arange(shape[0] * shape[1]).astype(f"<u{width}").reshape(shape)
    same = np.array_equal

    def counted(left: Array, right: Array) -> bool:
        calls[0] += 1
        return same(left, right)

    monkeypatch.setattr(numeric_transpose.np, "array_equal", counted)
    stored = [memory.store("a", dtype, bits), memory.store("b", dtype, bits.T)]
    assert relate(memory, *stored).state == "transposed"
    assert calls[0] <= 40 * bits.nbytes / 2**20 + 8


def test_pieces_stay_below_the_mapping_threshold() -> None:
    """Temporaries of 128 KiB and more are mapped and returned each time: page faults take longer than arithmetic."""
    assert PIECE * 8 < 128 * 1024


@pytest.mark.parametrize("width", [1, 2, 3, 63, 64, 65, 4096])
def test_rows_of(width: int) -> None:
    """The rows that hold a flagged element, in each of the ways of finding them."""
    flags = np.random.default_rng(width).random(width * 50) < 0.3 / width
    flags[-1] = True
    expected = [flags[row * width : (row + 1) * width].any() for row in range(50)]
    assert numeric_rows._rows_of(flags, width).tolist() == expected
