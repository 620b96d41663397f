"""Dequantise the K types of ggml: blocks of 256 codes whose groups have scales of 4 to 8 bits. Imports numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tieconv.inspection.quantised.values.number_types import ROUNDOFF, Array
from tieconv.inspection.quantised.values.part_reader import Decoded, uniform

_ROUNDOFF = ROUNDOFF["F16"]


def half(raw: Array) -> Array:
    """Return pairs of bytes as float16 numbers, in float64."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float64)


def _shifted(raw: Array, run: int, shifts: tuple[int, ...], mask: int) -> Array:
    """Return the codes of runs of bytes: the bits at the first shift of a whole run precede the others."""
    runs = raw.reshape(raw.shape[0], -1, 1, run).astype(np.int64)
    codes: Array = (runs >> np.array(shifts).reshape(1, 1, -1, 1) & mask).reshape(raw.shape[0], -1)
    return codes


def _grouped(codes: Array, scales: Array, offset: int, largest: int) -> Decoded:
    """Return (codes − offset) · scales, with one scale for each group of the block."""
    groups = codes.reshape(*scales.shape, -1)
    return uniform(groups, scales[:, :, None], offset, ends=(0, largest), roundoff=_ROUNDOFF)


def _with_minima(codes: Array, scales: Array, minima: Array, largest: int) -> Decoded:
    decoded = _grouped(codes, scales, 0, largest)
    moved = minima[:, :, None]
    return Decoded(decoded.values - moved, decoded.step, decoded.bound + _ROUNDOFF * np.abs(moved))


def _q2_k(blocks: Array) -> Decoded:
    packed = blocks[:, :16].astype(np.int64)
    codes = _shifted(blocks[:, 16:80], 32, (0, 2, 4, 6), 3)
    return _with_minima(codes, half(blocks[:, 80:82]) * (packed & 0xF), half(blocks[:, 82:84]) * (packed >> 4), 3)


def _q3_k(blocks: Array) -> Decoded:
    high = _shifted(blocks[:, :32], 32, tuple(range(8)), 1)
    codes = _shifted(blocks[:, 32:96], 32, (0, 2, 4, 6), 3) | high << 2
    low = _shifted(blocks[:, 96:104], 8, (0, 4), 0xF)
    scales = (low | _shifted(blocks[:, 104:108], 4, (0, 2, 4, 6), 3) << 4) - 32
    return _grouped(codes, half(blocks[:, 108:110]) * scales, 4, 7)


def _six_bit_pairs(raw: Array) -> tuple[Array, Array]:
    """Return the eight scales and minima of 6 bits that 12 bytes hold."""
    scales, minima, mixed = (part.astype(np.int64) for part in np.split(raw, 3, axis=1))
    later_scales = mixed & 0xF | scales >> 2 & 0x30
    later_minima = mixed >> 4 | minima >> 2 & 0x30
    return (
        np.concatenate([scales & 0x3F, later_scales], axis=1),
        np.concatenate([minima & 0x3F, later_minima], axis=1),
    )


def _q4_k(blocks: Array) -> Decoded:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    codes = _shifted(blocks[:, 16:], 32, (0, 4), 0xF)
    return _with_minima(codes, half(blocks[:, :2]) * scales, half(blocks[:, 2:4]) * minima, 15)


def _q5_k(blocks: Array) -> Decoded:
    scales, minima = _six_bit_pairs(blocks[:, 4:16])
    high = _shifted(blocks[:, 16:48], 32, tuple(range(8)), 1)
    codes = _shifted(blocks[:, 48:], 32, (0, 4), 0xF) | high << 4
    return _with_minima(codes, half(blocks[:, :2]) * scales, half(blocks[:, 2:4]) * minima, 31)


def _q6_k(blocks: Array) -> Decoded:
    codes = _shifted(blocks[:, :128], 64, (0, 4), 0xF) | _shifted(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float64)
    return _grouped(codes, half(blocks[:, 208:210]) * scales, 32, 63)


K_DECODERS: dict[str, Callable[[Array], Decoded]] = {
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
