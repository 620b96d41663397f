"""A folded norm: unfolded where it is proved byte for byte, refused where anything would have to be rounded."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings, strategies as st

from tests.analysis.constructed import table
from tests.patience import examples
from tieconv.analysis.norm_fold import unfold
from tieconv.analysis.relation import DIGITS, simplest
from tieconv.analysis.subject import Final, Subject
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.write_plan import NormFold
from tieconv.errors import RefusedError
from tieconv.execute.arithmetic import floats, rounded

NORM, SHIFT = "model.norm.weight", "model.norm.bias"
Array = np.ndarray[Any, Any]


def through(values: Array, dtype: str) -> Array:
    """The values as ``dtype`` holds them."""
    return floats(rounded(np.asarray(values, float), dtype), dtype).reshape(np.shape(values))


def subject(e: Array, u: Array, final: Final, dtype: str = "BF16", kinds: tuple[str, str] | None = None) -> Any:
    """What `unfold` looks at: two tables, the last norm, and the records of its tensors."""
    one, other = kinds or (dtype, dtype)
    embed, head = table(e, one, name="embed"), table(u, other, name="head")
    width = len(final.gains)
    norms = {
        name: TensorRecord(name, kind, (width,), ByteRange("m", 8 * place, 8 * place + 1))
        for place, (name, kind) in enumerate(((NORM, final.dtype), (SHIFT, final.shift_dtype or "F32")))
    }
    checkpoint = SimpleNamespace(source="m", tensors=norms)
    return Subject(SimpleNamespace(checkpoint=checkpoint), embed, head, final, None, None)  # type: ignore[arg-type]


def norm(gains: Array, dtype: str = "BF16", shift: Array | None = None, one_plus: bool = False) -> Final:
    key = "one_plus" if one_plus else "scale"
    name = SHIFT if shift is not None else ""
    return Final(np.asarray(gains, float), shift, 1.0, 0.0, NORM, key, name, dtype, dtype if name else "")


def held(fold: NormFold, final: Final, name: str = NORM) -> Array:
    return floats(fold.values[name], final.dtype if name == NORM else final.shift_dtype)


@settings(max_examples=examples(150), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from(["F16", "BF16", "F32"]),
    norm_dtype=st.sampled_from(["F16", "BF16", "F32"]),
    one_plus=st.booleans(),
)
@example(11815083, "BF16", "F32", False)  # a power of two in the head: below it values are closer
def test_what_was_folded_comes_back(seed: int, dtype: str, norm_dtype: str, one_plus: bool) -> None:
    """U = round(E·diag(γ)) with γ of any type of norm, left at one: a γ that makes every byte of U again."""
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(40, 200)), int(rng.integers(1, 9))
    e = through(rng.standard_normal((rows, width)) * 0.1, dtype)
    gains = through(rng.uniform(-0.9, 3, width) if one_plus else rng.standard_normal(width) * 2, norm_dtype)
    gains = gains + 1 if one_plus else gains
    assume((gains.astype("f4") == gains).all())
    u = through(e * gains, dtype)
    final = norm(np.ones(width), norm_dtype, one_plus=one_plus)
    fold = unfold(subject(e, u, final, dtype))
    found = held(fold, final) + final.offset
    assert rounded(e * found, dtype) == rounded(u, dtype)
    assert fold.rounded == np.count_nonzero(e * found != u) and fold.elements == e.size
    if norm_dtype == dtype == "BF16" and not one_plus and rows >= 100:
        assert np.array_equal(found, gains)


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-8, 8), dtype=st.sampled_from(["F16", "BF16", "F32"]))
def test_a_power_of_two_goes_into_any_norm(seed: int, power: int, dtype: str) -> None:
    """Whatever the norm holds, its product is exact, and what the head had lost of it is counted."""
    rng = np.random.default_rng(seed)
    e, gains = through(rng.standard_normal((60, 6)), dtype), through(rng.uniform(4, 8, 6), dtype)
    fold = unfold(subject(e, through(e * 2.0**power, dtype), norm(gains, dtype), dtype))
    assert np.array_equal(held(fold, norm(gains, dtype)), gains * 2.0**power)
    assert fold.rounded == np.count_nonzero(through(e * 2.0**power, dtype) != e * 2.0**power)


def pair(seed: int = 0, dtype: str = "BF16", width: int = 6) -> tuple[Array, Array]:
    """E, and factors that the type holds."""
    rng = np.random.default_rng(seed)
    return through(rng.standard_normal((200, width)), dtype), through(rng.uniform(0.5, 2, width), dtype)


def test_one_wrong_element_is_enough() -> None:
    """One element of U one place off its product, at any row: refused."""
    e, gains = pair()
    u = through(e * gains, "BF16")
    for row in (0, 57, 199):
        bits = np.frombuffer(rounded(u, "BF16"), "<u2").copy()
        bits[row * e.shape[1] + 2] ^= 1
        with pytest.raises(RefusedError, match=r"column 2|1 of 6 columns"):
            unfold(subject(e, floats(bits.tobytes(), "BF16").reshape(u.shape), norm(np.ones(6))))


def test_a_product_rounded_twice_is_known() -> None:
    """Who multiplies in float32 rounds to that first: an element near a tie then differs from one rounding."""
    e = through(np.linspace(1, 2, 128, endpoint=False)[:, None], "BF16")
    gains = np.array([(2**24 + 2**16 + 1) // 3 * 2.0**-23])  # times 1.5: just above the middle of two bfloat16
    u = through(through(e * gains, "F32"), "BF16")
    assert np.count_nonzero(u != through(e * gains, "BF16")) == 1
    final = norm(np.ones(1), "F32")
    found = held(unfold(subject(e, u, final)), final)
    assert rounded(u, "BF16") in {rounded(e * found, "BF16"), rounded(through(e * found, "F32"), "BF16")}


def test_a_product_that_the_norm_cannot_hold_is_refused() -> None:
    """γ and g of eight digits each: γ·g needs sixteen, which BF16 rounds and F32 holds."""
    e, gains = pair()
    _, weights = pair(1)
    u = through(e * gains, "BF16")
    with pytest.raises(RefusedError, match="can hold exactly"):
        unfold(subject(e, u, norm(weights, "BF16")))
    fold = unfold(subject(e, u, norm(weights, "F32")))
    found = held(fold, norm(weights, "F32")) / weights
    assert rounded(e * found, "BF16") == rounded(u, "BF16")


def test_a_shift_takes_the_factors_too_or_refuses() -> None:
    """γ·x̂ + β: β·g must be held as it is."""
    e, gains = pair()
    u = through(e * gains, "BF16")
    plain = norm(np.ones(6), "BF16", shift=np.array([0, 1, -2, 0.5, 4, 0]))
    fold = unfold(subject(e, u, plain))
    assert plain.shift is not None
    assert np.array_equal(held(fold, plain, SHIFT), plain.shift * gains)
    with pytest.raises(RefusedError, match="can hold exactly"):
        unfold(subject(e, u, norm(np.ones(6), "BF16", shift=through(np.linspace(1.01, 1.99, 6), "BF16"))))


def test_what_is_doubtful_is_refused() -> None:
    """Independent tables, a common shift, NaN, two types, F64, other rows, no norm, a norm whose bytes are shared."""
    e, gains = pair()
    u, one = through(e * gains, "BF16"), norm(np.ones(6))
    spoilt = u.copy()
    spoilt[3, 3] = np.nan
    cases = [
        subject(e, through(np.random.default_rng(9).standard_normal(e.shape), "BF16"), one),
        subject(e, through(u + 0.5, "BF16"), one),
        subject(e, spoilt, one),
        subject(e, u, one, kinds=("BF16", "F32")),
        subject(e, u, one, "F64"),
        subject(e, u[:-5], one),
        subject(e, u, Final(np.ones(6), None, 1.0, 0.0, "", "")),
        Subject(None, table(e, "BF16"), table(u, "BF16"), None, None, None),  # type: ignore[arg-type]
    ]
    cases[-1] = Subject(cases[0].evidence, cases[-1].embed, cases[-1].head, None, None, None)
    shared = subject(e, u, one)
    twin = TensorRecord("twin", "BF16", (6,), shared.evidence.checkpoint.tensors[NORM].range)
    shared.evidence.checkpoint.tensors["twin"] = twin
    for case in (*cases, shared):
        with pytest.raises(RefusedError) as caught:
            unfold(case)
        assert caught.value.code == "retie.fold" and caught.value.hint


def test_columns_of_zeros() -> None:
    """A dead column leaves its factor at one; a head that is zero where the embedding is not makes the weight zero."""
    e, gains = pair()
    e[:, 1] = 0
    gains[4] = 0
    fold = unfold(subject(e, through(e * gains, "BF16"), norm(np.ones(6))))
    found = held(fold, norm(np.ones(6)))
    assert found[1] == 1 and found[4] == 0 and np.array_equal(found[[0, 2, 3, 5]], gains[[0, 2, 3, 5]])


def digits(value: float) -> int:
    """Significant binary digits."""
    odd = Fraction(value).numerator
    return (abs(odd) // (odd & -odd)).bit_length() if odd else 0


@settings(max_examples=examples(300), deadline=None)
@given(
    ends=st.tuples(*[st.floats(-1e6, 1e6, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-6)] * 2),
    inner=st.floats(-1e6, 1e6, width=32),
)
def test_simplest(ends: tuple[float, float], inner: float) -> None:
    """It lies in the interval, and no float32 in it has fewer digits."""
    low, high = min(ends), max(ends)
    (found,) = simplest(np.array([low]), np.array([high]))
    within = low <= inner <= high
    if np.isnan(found):
        assert not within
        return
    assert low <= found <= high and digits(found) <= DIGITS
    if within and inner:
        assert digits(found) <= digits(inner)
