"""Dequantise block types of ggml. Imports numpy: import it lazily. Source: `ggml-quants.c`, as gguf 0.19 has it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tieconv.inspection.quantised.schemes.interface import CODES
from tieconv.inspection.quantised.values.compressed_tensors_values import POWER_OF_TWO_EDGE
from tieconv.inspection.quantised.values.ggml_k_values import K_DECODERS, half
from tieconv.inspection.quantised.values.number_types import E2M1, POWERS, ROUNDOFF, Array, half_gaps
from tieconv.inspection.quantised.values.part_reader import Decoded, PartReader, from_table, uniform

_BYTES = {
    "Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34, "IQ4_NL": 18, "MXFP4": 17,
    "Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210, "IQ4_XS": 136,
}  # fmt: skip
"""Bytes of a block."""
IQ4_CODES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float64)
"""The levels of IQ4_NL and IQ4_XS. Source: `kvalues_iq4nl`."""
_MX_GAPS = half_gaps(E2M1, edge=6 * POWER_OF_TWO_EDGE)
_ROUNDOFF = ROUNDOFF["F16"]
_ONE_SIDED_EDGE = 1.0
"""Q4_0 and Q5_0 make the largest value an end of the codes; the opposite value is one step outside them."""


def ggml_rows(parts: PartReader, start: int, stop: int) -> Decoded:
    """Return rows of a block type."""
    kind = parts.dtype(CODES)
    raw = parts.raw(CODES, start, stop)
    blocks = raw.reshape(-1, _BYTES[kind])
    decoded = _DECODERS[kind](blocks)
    shape = (stop - start, -1)
    step = np.broadcast_to(decoded.step, decoded.values.shape)
    return Decoded(decoded.values.reshape(shape), step.reshape(shape), decoded.bound.reshape(shape))


def _low_then_high(packed: Array) -> Array:
    """Return the codes of a block: its first half in the low 4 bits, its second in the high."""
    return np.concatenate([packed & 0xF, packed >> 4], axis=1).astype(np.int64)


def _fifth_bits(raw: Array) -> Array:
    return np.unpackbits(np.ascontiguousarray(raw), axis=1, bitorder="little").astype(np.int64) << 4


def _q4_0(blocks: Array) -> Decoded:
    codes = _low_then_high(blocks[:, 2:])
    return uniform(codes, half(blocks[:, :2]), 8, ends=(0, 15), roundoff=_ROUNDOFF, edge=_ONE_SIDED_EDGE)


def _q4_1(blocks: Array) -> Decoded:
    return _with_minimum(_low_then_high(blocks[:, 4:]), blocks, 15)


def _q5_0(blocks: Array) -> Decoded:
    codes = _low_then_high(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return uniform(codes, half(blocks[:, :2]), 16, ends=(0, 31), roundoff=_ROUNDOFF, edge=_ONE_SIDED_EDGE)


def _q5_1(blocks: Array) -> Decoded:
    return _with_minimum(_low_then_high(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), blocks, 31)


def _with_minimum(codes: Array, blocks: Array, largest: int) -> Decoded:
    minimum = half(blocks[:, 2:4])
    decoded = uniform(codes, half(blocks[:, :2]), 0, ends=(0, largest), roundoff=_ROUNDOFF)
    return Decoded(decoded.values + minimum, decoded.step, decoded.bound + _ROUNDOFF * np.abs(minimum))


def _q8_0(blocks: Array) -> Decoded:
    codes = np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.int64)
    return uniform(codes, half(blocks[:, :2]), 0, ends=(-127, 127), roundoff=_ROUNDOFF)


def _iq4_nl(blocks: Array) -> Decoded:
    return from_table(_low_then_high(blocks[:, 2:]), IQ4_CODES, half_gaps(IQ4_CODES), half(blocks[:, :2]), _ROUNDOFF)


def _iq4_xs(blocks: Array) -> Decoded:
    """Return blocks of 256 codes in eight groups, each with a scale of 6 bits."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2").astype(np.int64)
    low = np.stack([blocks[:, 4:8] & 0xF, blocks[:, 4:8] >> 4], axis=-1).reshape(-1, 8).astype(np.int64)
    scales = (low | (high >> 2 * np.arange(8) & 3) << 4) - 32
    packed = blocks[:, 8:].reshape(-1, 8, 16)
    codes = np.concatenate([packed & 0xF, packed >> 4], axis=-1).astype(np.int64)
    steps = (half(blocks[:, :2]) * scales)[:, :, None]
    return from_table(codes, IQ4_CODES, half_gaps(IQ4_CODES), steps, _ROUNDOFF)


def _mxfp4(blocks: Array) -> Decoded:
    return from_table(_low_then_high(blocks[:, 1:]), E2M1, _MX_GAPS, POWERS[blocks[:, :1]], 0.0)


_DECODERS: dict[str, Callable[[Array], Decoded]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    **K_DECODERS,
}
