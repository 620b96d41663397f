"""A matrix written transposed, against numpy."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import Gathered
from tieconv.onnx.write.data_placement import WrittenFile
from tieconv.onnx.write.write import difference, write_pieces

sides = st.integers(1, 11)


@settings(max_examples=60, deadline=None)
@given(sides, sides, st.sampled_from([("U8", "u1"), ("F16", "u2"), ("F32", "u4"), ("F64", "u8")]), sides, sides)
def test_turned(rows: int, columns: int, kind: tuple[str, str], before: int, after: int) -> None:
    """What is written is the transposed, and a byte that is wrong afterwards is found where it is."""
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"tieconv-turn-{os.getpid()}"
    matrix = np.arange(1, rows * columns + 1).astype(kind[1]).reshape(rows, columns)
    path.write_bytes(bytes(before) + matrix.tobytes())
    content = Gathered(ByteRange("x", before, before + matrix.nbytes), kind[0], (columns, rows), (1, columns))
    source, out = os.open(path, os.O_RDONLY), os.open(f"{path}.out", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        done: list[int] = []
        write_pieces(WrittenFile("y", ((after, content),)), out, lambda _: source, done.append)
        assert sum(done) == matrix.nbytes
        assert os.pread(out, 9999, after) == matrix.T.tobytes()
        assert difference(out, after, content, lambda _: source, done.append) is None
        wrong = after + (rows * columns // 2) * matrix.itemsize
        os.pwrite(out, bytes([os.pread(out, 1, wrong)[0] ^ 1]), wrong)
        assert difference(out, after, content, lambda _: source, done.append) == wrong
    finally:
        os.close(source)
        os.close(out)
        os.unlink(path)
        os.unlink(f"{path}.out")


@pytest.mark.parametrize("shape", [(3, 5), (1, 7), (7, 1)])
def test_copied(tmp_path: Path, shape: tuple[int, int]) -> None:
    """A content that is not turned is copied as it lies."""
    matrix = np.arange(shape[0] * shape[1], dtype="f4").reshape(shape)
    (tmp_path / "x").write_bytes(matrix.tobytes())
    content = Gathered(ByteRange("x", 0, matrix.nbytes), "F32", shape, (shape[1], 1))
    with (tmp_path / "x").open("rb") as source, (tmp_path / "y").open("w+b") as out:
        write_pieces(WrittenFile("y", ((4, content),)), out.fileno(), lambda _: source.fileno(), lambda _: None)
        assert os.pread(out.fileno(), 999, 4) == matrix.tobytes()
        assert difference(out.fileno(), 4, content, lambda _: source.fileno(), lambda _: None) is None
