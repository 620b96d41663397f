"""Tensors in memory behind the reader protocol, and exact oracles for their values."""

from __future__ import annotations

from fractions import Fraction
from math import copysign, frexp, inf, isinf, isnan
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.model_files import ByteReader
from tieconv.checkpoint.weight_file import BITS, ByteRange, TensorRecord

Array = npt.NDArray[Any]

FLOAT_DTYPES = ("F16", "BF16", "F32", "F64")
MANTISSA = {"F16": 10, "BF16": 7, "F32": 23, "F64": 52}
LEAST_EXPONENT = {"F16": -14, "BF16": -126, "F32": -126, "F64": -1022}
INFINITY = {"F16": 0x7C00, "BF16": 0x7F80, "F32": 0x7F80_0000, "F64": 0x7FF0 << 48}


class CountingReader:
    """A `ByteReader` that passes reads on and counts them: ``bytes_read`` and ``reads``."""

    __slots__ = ("bytes_read", "inner", "reads")

    def __init__(self, inner: ByteReader) -> None:
        self.inner = inner
        self.bytes_read = 0
        self.reads = 0

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``span``; raises what the wrapped reader raises."""
        self.inner.read_into(span, offset, buffer)
        self.bytes_read += len(buffer)
        self.reads += 1


class Memory:
    """Files as bytes; every tensor is stored in one of its own, after a few bytes of something else."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        assert 0 <= offset <= offset + len(buffer) <= span.size
        start = span.start + offset
        buffer[:] = self.files[span.file][start : start + len(buffer)]

    def store(self, name: str, dtype: str, content: Array | bytes, shape: tuple[int, ...] = ()) -> TensorRecord:
        """Store bits (an array, whose shape is taken) or bytes of the given shape."""
        if not isinstance(content, bytes):
            shape, content = content.shape, np.ascontiguousarray(content).tobytes()
        self.files[name] = b"before" + content + b"after"
        return TensorRecord(name, dtype, shape, ByteRange(name, 6, 6 + len(content)))

    def values(self, name: str, dtype: str, values: Array) -> TensorRecord:
        """Store values (float64, any shape) rounded to ``dtype``."""
        return self.store(name, dtype, bits_of(values, dtype))

    def counted(self) -> CountingReader:
        return CountingReader(self)


def exact_bits(value: float, dtype: str) -> int:
    """The bits of a float rounded to nearest even, by rational arithmetic."""
    mantissa = MANTISSA[dtype]
    sign = (copysign(1, value) < 0) << (BITS[dtype] - 1)
    if isnan(value):
        return INFINITY[dtype] | 1 << (mantissa - 1)
    if isinf(value):
        return sign | INFINITY[dtype]
    if value == 0:
        return sign
    exponent = max(frexp(value)[1] - 1, LEAST_EXPONENT[dtype])
    steps = round(abs(Fraction(value)) / Fraction(2) ** (exponent - mantissa))
    return sign | min(((exponent - LEAST_EXPONENT[dtype]) << mantissa) + steps, INFINITY[dtype])


def bits_of(values: Array, dtype: str) -> Array:
    """`exact_bits` of an array."""
    flat = [exact_bits(float(value), dtype) for value in np.asarray(values, "<f8").ravel()]
    return np.array(flat, f"<u{BITS[dtype] // 8}").reshape(np.shape(values))


def value_of(bits: int, dtype: str) -> float:
    """The value of a bit pattern, by rational arithmetic."""
    mantissa, sign = MANTISSA[dtype], -1.0 if bits >> (BITS[dtype] - 1) else 1.0
    magnitude = bits & ((1 << (BITS[dtype] - 1)) - 1)
    if magnitude >= INFINITY[dtype]:
        return sign * inf if magnitude == INFINITY[dtype] else float("nan")
    exponent, fraction = divmod(magnitude, 1 << mantissa)
    if exponent:
        exponent, fraction = exponent - 1, fraction + (1 << mantissa)
    return sign * float(fraction * Fraction(2) ** (exponent + LEAST_EXPONENT[dtype] - mantissa))


def values_of(bits: Array, dtype: str) -> Array:
    """`value_of` of an array, as float64."""
    flat = [value_of(int(pattern), dtype) for pattern in bits.ravel()]
    return np.array(flat, "<f8").reshape(bits.shape)


def normal(seed: int, shape: tuple[int, ...], scale: float = 1.0) -> Array:
    """Reproducible normally distributed float64 values."""
    return np.random.default_rng(seed).standard_normal(shape) * scale
