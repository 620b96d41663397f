"""What a proof costs: modules, memory, bytes read and array operations, also of turned views."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.inspection.stored import Array, Memory
from tests.patience import examples
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.weight_file import BITS, ByteRange, TensorRecord
from tieconv.inspection.equality import relate, relate_cast
from tieconv.inspection.numeric import bits as numeric_transpose, rows, rows as numeric_rows
from tieconv.inspection.numeric.bits import PIECE
from tieconv.sources import strided
from tieconv.sources.strided import dense, gather

PROLOGUE = """
import os, resource, sys
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.inspection.duplicates import find_duplicates
from tieconv.inspection.equality import relate
from tieconv.inspection.equality import bias_summary, has_nan

class Pattern:
    # Bytes without a file: b differs from a in the first byte of each span that `changed` says.
    def __init__(self, changed=lambda offset: False):
        self.changed, self.block = changed, bytes((0, 0x3F)) * (4 << 20)
    def read_into(self, span, offset, buffer):
        buffer[:] = self.block[:len(buffer)] if offset % 2 == 0 else self.block[1:len(buffer) + 1]
        if span.file == "b" and self.changed(offset):
            buffer[0] ^= 1

def tensor(name, dtype, rows, columns, width):
    return TensorRecord(name, dtype, (rows, columns), ByteRange(name, 0, rows * columns * width))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
"""

EQUALITY = """
reader = Pattern()
before = peak()
a, b = (tensor(name, "BF16", 65536, 2048, 2) for name in "ab")
assert relate(reader, a, b).state == "identical"
assert find_duplicates(reader, [a, b])[0].kind == "identical"
assert not has_nan(reader, a)
assert bias_summary(reader, tensor("c", "BF16", 1, 1000, 2))[0] == "nonzero"
assert relate(reader, a, tensor("b", "BF16", 65537, 2048, 2)).state == "distinct"
assert "numpy" not in sys.modules and "torch" not in sys.modules
print(peak() - before)
"""

NUMERIC = """
a = tensor("a", "BF16", 65536, 2048, 2)
other = {other}
before = peak()
assert relate(Pattern({changed}), a, other).state == "{state}"
print(peak() - before)
"""


def mebibytes(body: str) -> int:
    """The growth of peak memory that a script prints, run beside the package under test."""
    import tieconv.checkpoint

    root = Path(tieconv.checkpoint.__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-c", PROLOGUE + body], cwd=root, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return int(result.stdout)


def test_equality_of_256_mib_needs_little_memory_and_no_numpy() -> None:
    assert mebibytes(EQUALITY) < 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("state", "canonical", "changed"),
    [
        ("transposed", 'tensor("b", "BF16", 2048, 65536, 2)', "lambda offset: False"),
        ("near", 'tensor("b", "BF16", 65536, 2048, 2)', "lambda offset: True"),
        ("cast", 'tensor("b", "F32", 65536, 2048, 4)', "lambda offset: True"),
    ],
)
def test_numbers_from_256_mib_need_less_than_150(state: str, canonical: str, changed: str) -> None:
    assert mebibytes(NUMERIC.format(state=state, other=canonical, changed=changed)) < 150


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
    """A few passes over the bytes, and at most one of each side whose elements bound a factor, whatever they hold."""
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
    assert bounded[0] <= ROWS * WIDTH * 2 * 2  # for two widths of interval each
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


TALL, WIDE = 16384, 256
"""16 MiB of F32: more than a reading holds at a time."""


class Counted:
    """Matrices in memory, and how many bytes of them were read."""

    def __init__(self, **arrays: np.ndarray) -> None:
        self.held = {name: array.tobytes() for name, array in arrays.items()}
        self.read = 0

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        start = span.start + offset
        self.read += len(buffer)
        buffer.cast("B")[:] = self.held[span.file][start : start + len(buffer)]


def record(name: str, array: np.ndarray, *, turned: bool = False) -> TensorRecord:
    """The matrix as it lies; with ``turned`` the other way round."""
    dtype = {"float32": "F32", "float16": "F16"}[array.dtype.name]
    span = ByteRange(name, 0, array.nbytes)
    rows, columns = array.shape
    if turned:
        return TensorRecord(name, dtype, (columns, rows), span, (1, columns))
    return TensorRecord(name, dtype, array.shape, span)


def matrix(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((TALL, WIDE), dtype="f4")


@pytest.mark.parametrize("state", [State.DISTINCT, State.NEAR])
def test_relation(state: State) -> None:
    """Every element compared with a turned matrix: at most four readings of the two."""
    canonical = matrix()
    compared = matrix(1) if state is State.DISTINCT else canonical.copy()
    compared[-1] += 1
    lies = np.ascontiguousarray(compared.T)
    reader = Counted(one=canonical, other=lies)
    evidence = relate(reader, record("one", canonical), record("other", lies, turned=True))
    assert evidence.state is state
    assert reader.read <= 4 * (canonical.nbytes + lies.nbytes)


def test_cast() -> None:
    """A turned exact cast is proved with each byte of both read about once."""
    narrow = matrix().astype("f2")
    wide = np.ascontiguousarray(narrow.astype("f4").T)
    reader = Counted(narrow=narrow, wide=wide)
    cast = relate_cast(reader, *(dense(r) for r in (record("narrow", narrow), record("wide", wide, turned=True))))
    assert cast is None  # a reader of views is what understands such a range
    from tieconv.inspection.view_reader import readable

    views, pair = readable(reader, (record("narrow", narrow), record("wide", wide, turned=True)))
    reader.read = 0
    cast = relate_cast(views, *pair)
    assert cast is not None and cast.lossless
    assert reader.read <= 2 * (narrow.nbytes + wide.nbytes)


@settings(max_examples=examples(200), deadline=None)
@given(
    shape=st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    data=st.data(),
    limit=st.sampled_from([16, 64, 256]),
    run=st.sampled_from([1, 8, 64]),
)
def test_runs(shape: tuple[int, ...], data: st.DataObject, limit: int, run: int) -> None:
    """Whatever is read whole or in stretches, a view's bytes are those that numpy gives."""
    order = data.draw(st.permutations(range(len(shape))))
    stored = np.arange(int(np.prod(shape)), dtype="<u4").reshape([shape[axis] for axis in order])
    view = stored.transpose(np.argsort(order))
    steps = tuple(step // 4 for step in view.strides)
    span = dense(TensorRecord("t", "U32", view.shape, ByteRange("f", 0, stored.nbytes), steps)).range
    raw = stored.tobytes()

    def read(position: int, buffer: memoryview) -> None:
        buffer[:] = raw[position : position + len(buffer)]

    first = data.draw(st.integers(0, view.size)) * 4
    end = data.draw(st.integers(first // 4, view.size)) * 4
    limits = strided.SPAN_LIMIT, strided.READ_COST
    strided.SPAN_LIMIT, strided.READ_COST = limit, run
    try:
        assert isinstance(span, strided.StridedRange)
        assert gather(read, span, first, end) == np.ascontiguousarray(view).tobytes()[first:end]
    finally:
        strided.SPAN_LIMIT, strided.READ_COST = limits


def test_both_ways() -> None:
    """The sides are given in either order: the tall form is compared, so that stretches stay long."""
    from tieconv.inspection.view_reader import one_way

    array = matrix()
    lies = np.ascontiguousarray(array.T)
    for left, right in itertools.permutations((record("a", array), record("b", lies))):
        assert all(side.shape == (TALL, WIDE) for side in one_way(left, right))


def test_over_a_network() -> None:
    """A request costs more than a read of a disk: there are few of them, and more bytes."""
    lies = np.ascontiguousarray(matrix().T)
    span = dense(record("f", lies, turned=True)).range
    assert isinstance(span, strided.StridedRange)
    sizes: list[int] = []

    def read(position: int, buffer: memoryview) -> None:
        sizes.append(len(buffer))

    gather(read, span, 0, 1024 * 128)
    local_sizes, sizes[:] = list(sizes), []
    gather(read, span, 0, 1024 * 128, strided.REQUEST_COST)
    assert len(sizes) * 16 < len(local_sizes)
    assert sum(local_sizes) * 16 < sum(sizes)
