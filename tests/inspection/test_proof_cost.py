"""What a proof costs beside time: modules and memory, seen from a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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
