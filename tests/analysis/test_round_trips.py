"""A head that went through a quantisation is named by its scheme, and nothing else is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.analysis.constructed import Array, embedding, table
from tieconv.analysis.relation import relate_tables
from tieconv.analysis.relation_section import sentence
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.inspection.numeric.bits import FORMATS, decode, encode

# Written anew from the formats' documents, so that a wrong level in the program is noticed.
NF4 = [-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0, 0.0795803, 0.1609302]
NF4 += [0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0]
FP8 = [(1 + m / 8) * 2.0 ** (x - 7) for x in range(1, 16) for m in range(8) if (x, m) != (15, 7)]
FP8 += [m / 8 * 2.0**-6 for m in range(8)]
FP8_LEVELS = np.array(sorted({*FP8, *(-value for value in FP8)}))


def nearest(values: Array, levels: Array) -> Array:
    """Return the nearest level of each value."""
    above = np.clip(np.searchsorted(levels, values), 1, len(levels) - 1)
    low, high = levels[above - 1], levels[above]
    rounded: Array = np.where(values - low <= high - values, low, high)
    return rounded


def largest(groups: Array) -> Array:
    return np.abs(groups).max(axis=1, keepdims=True)


def int4(groups: Array) -> Array:
    step = largest(groups) / 7
    return np.clip(np.rint(groups / step), -8, 7) * step


def q4_0(groups: Array) -> Array:
    """As llama.cpp: the number with the largest magnitude becomes −8, and the scale is float16."""
    step = np.take_along_axis(groups, np.abs(groups).argmax(axis=1, keepdims=True), 1) / -8
    codes = np.clip(np.floor(groups / step + 8.5), 0, 15) - 8
    return codes * step.astype("f2").astype("f8")


def q4_1(groups: Array) -> Array:
    least = groups.min(axis=1, keepdims=True)
    step = (groups.max(axis=1, keepdims=True) - least) / 15
    return np.rint((groups - least) / step) * step + least


def zero_point(groups: Array) -> Array:
    least = np.minimum(groups.min(axis=1, keepdims=True), 0)
    step = (np.maximum(groups.max(axis=1, keepdims=True), 0) - least) / 15
    zero = np.rint(-least / step)
    return (np.clip(np.rint(groups / step) + zero, 0, 15) - zero) * step


def nf4(groups: Array) -> Array:
    return nearest(groups / largest(groups), np.array(NF4)) * largest(groups)


def nested_nf4(groups: Array) -> Array:
    """The scales are quantised too, as bitsandbytes can: they are off by half a percent."""
    off = 1 + 0.005 * np.cos(np.arange(len(groups)))[:, None]
    return nf4(groups) * off


def fp8(groups: Array) -> Array:
    scale = largest(groups) / 448
    return nearest(groups / scale, FP8_LEVELS) * scale


CASES = [
    ("int4", 4, int4, 128),
    ("int4", 4, int4, 32),
    ("Q4_0", 4, q4_0, 32),
    ("Q4_1", 4, q4_1, 32),
    ("int4 with a zero point", 4, zero_point, 64),
    ("NF4", 4, nf4, 64),
    ("NF4", 4, nested_nf4, 64),
    ("FP8 (E4M3)", 8, fp8, 128),
    ("FP8 (E4M3)", 8, lambda groups: nearest(groups, FP8_LEVELS), 0),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize(("scheme", "bits", "trip", "group"), CASES)
def test_the_scheme_is_named(scheme: str, bits: int, trip: Callable[[Array], Array], group: int, dtype: str) -> None:
    """The scheme, its bits and the size of its groups, for each stored type; noise of the same size is drift."""
    rng = np.random.default_rng(group + bits)
    form = FORMATS[dtype]
    e = decode(encode(embedding(rng, 300, 128).reshape(-1), form), form).astype("f8").reshape(300, 128)
    u = trip(e.reshape(-1, group or 128)).reshape(e.shape)
    found = relate_tables(table(e, dtype), table(u, dtype))
    assert (found.kind, found.figures) == (Kinship.DRIFT, {"scheme": scheme, "bits": bits, "group": group})
    scales = {0: "no scale", 128: "one scale for each row"}.get(group, f"one scale for each {group} numbers")
    article = "a" if scheme.startswith("Q") else "an"
    assert f"after {article} {scheme} round trip, with {scales}." in sentence(found)
    assert found.residual is not None
    noisy = e + found.residual * e.std() * rng.standard_normal(e.shape)
    assert relate_tables(table(e, dtype), table(noisy, dtype)).figures == {}


@pytest.mark.parametrize("rank", [1, 8, 16])
def test_a_merged_adapter_has_its_rank_and_its_share(rank: int) -> None:
    """A LoRA of rank r that was merged into the head is of rank r, and explains the difference but for the rounding."""
    rng = np.random.default_rng(rank)
    e = embedding(rng, 600, 128)
    change = rng.standard_normal((600, rank)) @ rng.standard_normal((rank, 128)) * e.std() / np.sqrt(rank) / 4
    form = FORMATS["BF16"]
    e = decode(encode(e.reshape(-1), form), form).astype("f8").reshape(e.shape)
    found = relate_tables(table(e, "BF16"), table(e + change, "BF16"))
    assert found.kind is Kinship.LOW_RANK and found.figures["rank"] == rank
    stored = decode(encode((e + change).reshape(-1), form), form).astype("f8").reshape(e.shape) - e
    sizes = np.linalg.svd(stored, compute_uv=False) ** 2
    assert found.figures["explained"] == pytest.approx(sizes[:rank].sum() / sizes.sum(), abs=1e-4)
    assert "of the energy of the difference" in sentence(found) and "100" not in sentence(found)
