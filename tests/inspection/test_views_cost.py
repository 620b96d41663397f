"""What a turned view costs to read: each byte about once, whichever way round the matrix lies."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.patience import examples
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.inspection.equality import relate, relate_cast
from tieconv.sources import strided
from tieconv.sources.strided import dense, gather

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
