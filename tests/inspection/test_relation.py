"""Every state that two tensors can be in, against pairs built to be in it and against its neighbours."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import permutations
from math import sqrt

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from tests.loops import case
from tests.patience import examples
from tieconv.checkpoint.relation import State
from tieconv.checkpoint.relation.proved import (
    TYPES_NEED_NUMPY,
    Compared,
    Empty,
    Identical,
    Near,
    OtherBytes,
    OtherSample,
    OtherShape,
    RowFigures,
    Unread,
)
from tieconv.checkpoint.weight_file import BITS, ByteRange, TensorRecord
from tieconv.errors import RefusedError
from tieconv.inspection import duplicates, equality, view_reader
from tieconv.inspection.duplicates import PairWork
from tieconv.inspection.equality import HINT, relate, relate_sampled

from .stored import FLOAT_DTYPES, INFINITY, MANTISSA, Array, Memory, bits_of, normal, values_of

PAIRS = list(permutations(FLOAT_DTYPES, 2))


def relation(left: tuple[str, Array], right: tuple[str, Array]) -> Compared:
    """Relate two (dtype, bits); the detail must be finite JSON."""
    memory = Memory()
    evidence = relate(memory, memory.store("a", *left), memory.store("b", *right))
    json.dumps(evidence.to_dict(), allow_nan=False)
    return evidence


def matrix(dtype: str, rows: int = 12, columns: int = 32, seed: int = 0) -> Array:
    return bits_of(normal(seed, (rows, columns)), dtype)


def bump(bits: Array, by: int = 1) -> Array:
    """The magnitude of one element in row 3 moved by whole ulps."""
    changed = bits.copy()
    changed[3, 5] += bits.dtype.type(by)
    return changed


class TestIdentical:
    @pytest.mark.parametrize("dtype", [*FLOAT_DTYPES, "U8", "I64", "F8_E4M3", "BOOL", "SOMETHING_NEW"])
    def test_same_bytes_of_any_type(self, dtype: str) -> None:
        data = np.random.default_rng(1).integers(0, 256, (4, 16), dtype="u1")
        if dtype in BITS:
            data = data.view(f"<u{BITS[dtype] // 8}")
        assert relation((dtype, data), (dtype, data.copy())) == Identical()

    @pytest.mark.parametrize(
        "bits", [[0x7FC0, 0x7F81, 0xFF80, 0x8000], np.empty((0, 8)), 0x3F80], ids=["NaN", "empty", "scalar"]
    )
    def test_equal_bits_of_any_form(self, bits: object) -> None:
        numbers = np.array(bits, "<u2")
        assert relation(("BF16", numbers), ("BF16", numbers)).state is State.IDENTICAL

    def test_same_bytes_of_another_type_are_not(self) -> None:
        bits = matrix("F16")
        assert relation(("F16", bits), ("BF16", bits)).state is State.DISTINCT
        assert relation(("I16", bits), ("U16", bits)).state is State.DISTINCT

    def test_a_square_symmetric_matrix_is_identical_before_it_is_transposed(self) -> None:
        bits = matrix("F32", 9, 9)
        symmetric = np.triu(bits) + np.triu(bits, 1).T
        assert relation(("F32", symmetric), ("F32", symmetric.T)).state is State.IDENTICAL

    @settings(deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 40), st.data())
    def test_never_claimed_falsely(self, seed: int, rows: int, columns: int, data: st.DataObject) -> None:
        rng = np.random.default_rng(seed)
        left = rng.integers(0, 2**16, (rows, columns), dtype="<u2")
        right = left.copy()
        index = data.draw(st.integers(0, left.size - 1))
        right.ravel()[index] ^= np.uint16(1 << data.draw(st.integers(0, 15)))
        dtype = data.draw(st.sampled_from(["F16", "BF16", "I16"]))
        assert relation((dtype, left), (dtype, right)).state is not State.IDENTICAL


class TestTransposed:
    def test_by_the_bits_of_every_element(self) -> None:
        for shape in [(7, 5), (6, 6), (1, 9), (300, 2), (130, 1100), (2, 3000)]:
            for dtype in [*FLOAT_DTYPES, "U8", "I32", "C64"]:
                with case(shape, dtype):
                    width = BITS[dtype] // 8
                    bits = (
                        np.random.default_rng(2)
                        .integers(0, 256, (*shape, width), dtype="u1")
                        .view(f"<u{width}")[..., 0]
                    )
                    expected = State.TRANSPOSED
                    assert relation((dtype, bits), (dtype, bits.T)).state is expected
                    changed = bits.T.copy()
                    changed[-1, shape[0] // 2] ^= 1
                    assert relation((dtype, bits), (dtype, changed)).state is not expected

    @settings(deadline=None)
    @given(st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32), st.data())
    def test_one_changed_element_refutes_it(self, rows: int, columns: int, seed: int, data: st.DataObject) -> None:
        bits = np.random.default_rng(seed).integers(0, 2**16, (rows, columns), dtype="<u2")
        turned = bits.T.copy()
        same = np.array_equal(bits, turned)
        expected = State.IDENTICAL if same else State.TRANSPOSED
        assert relation(("I16", bits), ("I16", turned)).state is expected
        turned[data.draw(st.integers(0, columns - 1)), data.draw(st.integers(0, rows - 1))] ^= 1
        state = relation(("I16", bits), ("I16", turned)).state
        assert state is (State.IDENTICAL if np.array_equal(bits, turned) else State.DISTINCT)

    @pytest.mark.parametrize("shape", [(2100, 2300), (2300, 2100)])
    def test_tiles_larger_than_one_buffer(self, shape: tuple[int, int]) -> None:
        bits = np.random.default_rng(3).integers(0, 2**16, shape, dtype="<u2")
        assert relation(("BF16", bits), ("BF16", bits.T)).state is State.TRANSPOSED
        changed = bits.T.copy()
        changed[shape[1] - 1, shape[0] - 2] ^= 1
        assert relation(("BF16", bits), ("BF16", changed)).state is State.DISTINCT

    def test_not_for_more_dimensions_or_part_of_a_byte(self) -> None:
        bits = matrix("F16", 4, 6)
        assert relation(("F16", bits[None]), ("F16", bits.T[None])).state is State.DISTINCT
        memory = Memory()
        a = memory.store("a", "F4", b"\x12\x34\x56", (2, 3))
        assert relate(memory, a, memory.store("b", "F4", b"\x14\x25\x36", (3, 2))).state is State.DISTINCT


class TestCast:
    @pytest.mark.parametrize(("wide", "narrow"), PAIRS)
    @pytest.mark.parametrize("swap", [False, True])
    def test_rounded_and_lossless_for_every_pair_of_types(self, wide: str, narrow: str, swap: bool) -> None:
        if BITS[wide] < BITS[narrow]:
            wide, narrow = narrow, wide
        exact = matrix(wide)
        rounded = bits_of(values_of(exact, wide), narrow)
        sides = [(wide, exact), (narrow, rounded)]
        evidence = relation(*(sides[::-1] if swap else sides))
        names = {"exact": "b" if swap else "a", "narrow": "a" if swap else "b"}
        back = bits_of(values_of(rounded, narrow), wide)
        assert evidence.state is State.CAST
        assert evidence.to_dict()["lossless"] == np.array_equal(back, exact)
        if not np.array_equal(back, exact):
            assert evidence.to_dict() == {**names, "lossless": False}
        widened = relation((narrow, rounded), (wide, back))
        assert (widened.state, widened.to_dict()["lossless"]) == (State.CAST, True)

    @pytest.mark.parametrize(("wide", "narrow"), [pair for pair in PAIRS if BITS[pair[0]] > BITS[pair[1]]])
    def test_one_ulp_off_is_near(self, wide: str, narrow: str) -> None:
        exact = matrix(wide)
        rounded = bump(bits_of(values_of(exact, wide), narrow))
        evidence = relation((wide, exact), (narrow, rounded))
        assert evidence.state is State.NEAR
        assert evidence.to_dict()["max_ulp"] is None

    def test_lossless_by_nan_payload(self) -> None:
        wide = matrix("F32")
        narrow = bits_of(values_of(wide, "F32"), "BF16")
        wide = narrow.astype("<u4") << 16
        wide[0, 0], narrow[0, 0] = 0x7FC1_0000, 0x7FC1
        assert relation(("F32", wide), ("BF16", narrow)).to_dict()["lossless"] is True
        narrow[0, 0] = 0x7FC0
        evidence = relation(("F32", wide), ("BF16", narrow))
        assert (evidence.state, evidence.to_dict()["lossless"]) == (State.CAST, False)

    @pytest.mark.parametrize("dtype", ["F16", "BF16"])
    def test_subnormal_overflowing_and_infinite_values_round_too(self, dtype: str) -> None:
        tiny = 2.0 ** (-24 if dtype == "F16" else -133)
        values = np.array([[tiny, tiny / 2, tiny * 0.51, -tiny * 1.5, 1e38, -3.4e38, np.inf, 65520.0]])
        exact = bits_of(values, "F32")
        rounded = bits_of(values_of(exact, "F32"), dtype)
        assert relation(("F32", exact), (dtype, rounded)).state is State.CAST

    def test_lossy_anywhere_is_lossy(self) -> None:
        wide = bits_of(normal(0, (1, 64)), "BF16").astype("<u4").repeat(3000, axis=0) << 16
        narrow = (wide >> 16).astype("<u2")
        wide[0, 0] += 1
        assert relation(("F32", wide), ("BF16", narrow)).to_dict()["lossless"] is False

    @pytest.mark.parametrize("side", [0, 1])
    def test_nan_on_one_side_only_is_no_cast(self, side: int) -> None:
        narrow = matrix("BF16")
        wide = narrow.astype("<u4") << 16
        (wide if side else narrow)[0, 0] = 0x7FC0_0000 if side else 0x7FC0
        evidence = relation(("F32", wide), ("BF16", narrow))
        assert (evidence.state, evidence.to_dict()["nan_rows"]) == (State.NEAR, 1)

    def test_a_rounding_through_float32_is_not_a_cast(self) -> None:
        values = np.array([[1 + 2.0**-8 + 2.0**-40, 3.0, -7.5, 0.1]])
        twice = bits_of(values_of(bits_of(values, "F32"), "F32"), "BF16")
        assert relation(("F64", bits_of(values, "F64")), ("BF16", twice)).state is State.NEAR

    def test_a_zero_of_the_other_sign_is_near(self) -> None:
        wide, narrow = matrix("F32"), bits_of(values_of(matrix("F32"), "F32"), "BF16")
        wide = narrow.astype("<u4") << 16
        wide[0, 0], narrow[0, 0] = 0, 0x8000
        evidence = relation(("F32", wide), ("BF16", narrow))
        assert evidence.state is State.NEAR
        assert evidence.to_dict()["sign_of_zero_only"] is True


FACTORS = [2.0, 0.5, -1.0, -4.0, 2.0**-7, sqrt(32), 1 / sqrt(32), -sqrt(32), 0.3, 12.0, 3.1415926, 1.25]


class TestScaled:
    def test_factor_and_exactness(self) -> None:
        for factor in FACTORS:
            for dtype in FLOAT_DTYPES:
                with case(factor, dtype):
                    bits = matrix(dtype)
                    product = bits_of(values_of(bits, dtype) * factor, dtype)
                    evidence = relation((dtype, bits), (dtype, product))
                    assert evidence.state is State.SCALED
                    assert (evidence.to_dict()["exact"], evidence.to_dict()["max_ulp"]) == (True, 0)
                    assert evidence.to_dict()["power_of_two"] == (abs(np.frexp(factor)[0]) == 0.5)
                    again = bits_of(values_of(bits, dtype) * evidence.to_dict()["factor"], dtype)
                    assert np.array_equal(again, product)
                    if factor in FACTORS[:8]:
                        assert evidence.to_dict()["factor"] == factor

    @pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
    @pytest.mark.parametrize("width", [2048, 640, 3072])
    def test_a_rounded_root_of_the_width(self, dtype: str, width: int) -> None:
        factor = float(values_of(bits_of(np.array([sqrt(width)]), dtype), dtype)[0])
        bits = matrix(dtype, 3, width)
        evidence = relation((dtype, bits), (dtype, bits_of(values_of(bits, dtype) * factor, dtype)))
        assert (evidence.state, evidence.to_dict()["factor"], evidence.to_dict()["exact"]) == (
            State.SCALED,
            factor,
            True,
        )

    @pytest.mark.parametrize("dtype", FLOAT_DTYPES)
    def test_within_one_ulp_is_scaled_and_two_is_not(self, dtype: str) -> None:
        bits = matrix(dtype)
        product = bits_of(values_of(bits, dtype) * 0.75, dtype)
        evidence = relation((dtype, bits), (dtype, bump(product)))
        assert evidence.state is State.SCALED
        assert (evidence.to_dict()["exact"], evidence.to_dict()["max_ulp"]) == (False, 1)
        assert relation((dtype, bits), (dtype, bump(product, 4))).state is State.DISTINCT

    @pytest.mark.parametrize(("narrow", "wide"), [("BF16", "F32"), ("F32", "BF16"), ("F16", "F64"), ("F32", "F64")])
    def test_between_types(self, narrow: str, wide: str) -> None:
        bits = matrix(narrow)
        evidence = relation((narrow, bits), (wide, bits_of(values_of(bits, narrow) * -3, wide)))
        assert evidence.state is State.SCALED
        assert evidence.to_dict()["factor"] == pytest.approx(-3, rel=2.0**-9)
        assert evidence.to_dict()["exact"] is True

    def test_the_canonical_side_may_be_the_rounded_one(self) -> None:
        wide = matrix("F32")
        evidence = relation(("BF16", bits_of(values_of(wide, "F32") / 8, "BF16")), ("F32", wide))
        assert evidence.state is State.SCALED
        assert (evidence.to_dict()["factor"], evidence.to_dict()["rounded"], evidence.to_dict()["exact"]) == (
            8.0,
            "a",
            False,
        )

    @settings(max_examples=examples(60), deadline=None)
    @given(st.sampled_from(FLOAT_DTYPES), st.floats(-1e3, 1e3), st.integers(0, 2**32))
    @example("F64", 0.08232309501853864, 0)
    def test_any_factor(self, dtype: str, factor: float, seed: int) -> None:
        bits = matrix(dtype, 3, 40, seed)
        product = bits_of(values_of(bits, dtype) * factor, dtype)
        evidence = relation((dtype, bits), (dtype, product))
        if abs(factor) < 1e-3 or abs(factor - 1) < 0.05:
            assert not (evidence.state is State.SCALED and evidence.to_dict()["factor"] == 1)
        else:
            assert evidence.state is State.SCALED
            assert evidence.to_dict()["factor"] == pytest.approx(factor, rel=2.0 ** (1 - MANTISSA[dtype]))

    @pytest.mark.parametrize("dtype", FLOAT_DTYPES)
    def test_never_by_one(self, dtype: str) -> None:
        bits = matrix(dtype)
        moved = bits + np.random.default_rng(0).integers(0, 2, bits.shape, dtype=bits.dtype)
        assert relation((dtype, bits), (dtype, moved)).state is State.NEAR

    def test_never_where_one_would_do_for_the_rounded_side(self) -> None:
        narrow, wide = bits_of(np.full((4, 4), 0.5), "BF16"), bits_of(np.full((4, 4), 0.503), "F32")
        assert relation(("BF16", narrow), ("F32", wide)).state is State.NEAR
        assert relation(("F32", wide), ("BF16", narrow)).state is State.NEAR

    def test_never_by_one_outside_the_samples(self) -> None:
        bits = np.zeros((400, 100), "<u4")
        bits[101, 7] = 0x3FC0_0000
        changed = bits.copy()
        changed[101, 7] += 1
        assert relation(("F32", bits), ("F32", changed)).state is State.NEAR

    @pytest.mark.parametrize("factor", [2.0**-1030, 2.0**-1074, 2.0**1000, 3e-310])
    def test_factors_at_the_ends_of_the_range(self, factor: float) -> None:
        bits = matrix("F64")
        product = bits_of(values_of(bits, "F64") * factor, "F64")
        for evidence in (relation(("F64", bits), ("F64", product)), relation(("F64", product), ("F64", bits))):
            assert evidence.state in (State.SCALED, State.DISTINCT)

    def test_never_by_zero(self) -> None:
        bits = matrix("F32")
        assert relation(("F32", bits), ("F32", np.zeros_like(bits))).state is State.DISTINCT
        assert relation(("F32", np.zeros_like(bits)), ("F32", bits)).state is State.DISTINCT

    def test_zeros_infinities_and_nan_scale_to_themselves(self) -> None:
        values = normal(0, (8, 8))
        values[0, :3] = [0, np.inf, -np.inf]
        bits, product = bits_of(values, "BF16"), bits_of(values * 4, "BF16")
        bits[1, 0] = product[1, 0] = 0x7FC0
        evidence = relation(("BF16", bits), ("BF16", product))
        assert (evidence.state, evidence.to_dict()["factor"], evidence.to_dict()["exact"]) == (State.SCALED, 4.0, True)
        product[1, 0] = 0x3F80
        assert relation(("BF16", bits), ("BF16", product)).state is State.DISTINCT

    def test_values_outside_the_samples(self) -> None:
        values = np.zeros((400, 100))
        values[101, 7] = 1.5
        bits = bits_of(values, "F32")
        evidence = relation(("F32", bits), ("F32", bits_of(values * 2, "F32")))
        assert (evidence.state, evidence.to_dict()["factor"]) == (State.SCALED, 2.0)

    def test_one_row_that_is_not_scaled(self) -> None:
        values = normal(0, (400, 100))
        product = values * 2
        product[101] = values[101]
        evidence = relation(("F32", bits_of(values, "F32")), ("F32", bits_of(product, "F32")))
        assert evidence.state is State.DISTINCT


class TestDifference:
    @pytest.mark.parametrize("dtype", FLOAT_DTYPES)
    def test_one_row_by_three_ulps(self, dtype: str) -> None:
        bits = matrix(dtype)
        evidence = relation((dtype, bits), (dtype, bump(bits, 3)))
        distance = abs(values_of(bump(bits, 3), dtype) - values_of(bits, dtype))
        assert evidence.state is State.NEAR
        assert evidence.to_dict() == {
            "rows_differing": 1,
            "rows": 12,
            "row_ranges": [[3, 4]],
            "rows_listed_completely": True,
            "max_ulp": 3,
            "max_abs": pytest.approx(distance.max(), rel=1e-6),
            "relative_rms": pytest.approx(sqrt((distance**2).sum() / (values_of(bits, dtype) ** 2).sum()), rel=1e-5),
            "sign_of_zero_only": False,
            "nan_rows": 0,
        }

    @pytest.mark.parametrize("dtype", FLOAT_DTYPES)
    def test_unrelated_tensors(self, dtype: str) -> None:
        left, right = matrix(dtype), matrix(dtype, seed=1)
        a, b = values_of(left, dtype), values_of(right, dtype)
        evidence = relation((dtype, left), (dtype, right))
        assert evidence.state is State.DISTINCT
        assert evidence.to_dict()["rows_differing"] == 12
        assert evidence.to_dict()["max_abs"] == pytest.approx(abs(b - a).max(), rel=1e-6)
        assert evidence.to_dict()["relative_rms"] == pytest.approx(sqrt(((b - a) ** 2).sum() / (a**2).sum()), rel=1e-5)
        cosine = (a * b).sum() / sqrt((a**2).sum() * (b**2).sum())
        assert evidence.to_dict()["cosine"] == pytest.approx(cosine, abs=1e-6)

    @pytest.mark.parametrize("rows", [6, 7])
    def test_half_the_rows_is_the_limit(self, rows: int) -> None:
        bits = matrix("F32")
        changed = bits.copy()
        changed[:rows] = matrix("F32", seed=1)[:rows]
        evidence = relation(("F32", bits), ("F32", changed))
        assert evidence.state is (State.NEAR if rows == 6 else State.DISTINCT)
        assert evidence.to_dict()["row_ranges"] == [[0, rows]]

    @pytest.mark.parametrize(("size", "state"), [(0.009, State.NEAR), (0.011, State.DISTINCT)])
    def test_one_percent_of_rms_is_the_limit(self, size: float, state: State) -> None:
        values = np.where(normal(0, (10, 64)) > 0, 1.0, -1.0)
        noise = np.where(normal(1, (10, 64)) > 0, size, -size)
        evidence = relation(("F32", bits_of(values, "F32")), ("F32", bits_of(values + noise, "F32")))
        assert evidence.state is state
        assert evidence.to_dict()["relative_rms"] == pytest.approx(size, rel=1e-3)

    @pytest.mark.parametrize("dtype", FLOAT_DTYPES)
    def test_only_the_sign_of_zero(self, dtype: str) -> None:
        bits = np.zeros((4, 4), f"<u{BITS[dtype] // 8}")
        zeros_changed = bits.copy()
        zeros_changed[:, 1] = 1 << (BITS[dtype] - 1)
        evidence = relation((dtype, bits), (dtype, zeros_changed))
        assert (evidence.state, evidence.to_dict()["sign_of_zero_only"]) == (State.NEAR, True)
        assert (evidence.to_dict()["rows_differing"], evidence.to_dict()["max_ulp"], evidence.to_dict()["max_abs"]) == (
            4,
            0,
            0.0,
        )
        zeros_changed[2, 2] = 1
        assert relation((dtype, bits), (dtype, zeros_changed)).to_dict()["sign_of_zero_only"] is False

    def test_nan_facing_a_number(self) -> None:
        bits = matrix("BF16")
        changed = bits.copy()
        changed[2, 2] = changed[2, 3] = changed[5, 0] = 0x7FC0
        evidence = relation(("BF16", bits), ("BF16", changed))
        assert evidence.state is State.NEAR
        assert evidence.to_dict()["nan_rows"] == evidence.to_dict()["rows_differing"] == 2
        assert [evidence.to_dict()[key] for key in ("max_abs", "max_ulp", "relative_rms")] == [None] * 3

    def test_nan_facing_another_nan_is_no_distance(self) -> None:
        bits = matrix("F32")
        bits[2, 2] = 0x7FC0_0000
        changed = bits.copy()
        changed[2, 2] = 0x7FC0_0001
        evidence = relation(("F32", bits), ("F32", changed))
        assert (evidence.state, evidence.to_dict()["rows_differing"], evidence.to_dict()["nan_rows"]) == (
            State.NEAR,
            1,
            0,
        )
        assert (evidence.to_dict()["max_ulp"], evidence.to_dict()["max_abs"]) == (0, 0.0)
        assert evidence.to_dict()["sign_of_zero_only"] is False

    def test_infinity_facing_a_number(self) -> None:
        bits = matrix("F32")
        bits[:, 7] = INFINITY["F32"]
        changed = bits.copy()
        changed[4, 4] = INFINITY["F32"]
        evidence = relation(("F32", bits), ("F32", changed))
        assert (evidence.state, evidence.to_dict()["max_abs"], evidence.to_dict()["nan_rows"]) == (State.NEAR, None, 0)
        changed[4, 4] = bits[4, 4] + 1
        assert relation(("F32", bits), ("F32", changed)).to_dict()["max_ulp"] == 1

    @pytest.mark.parametrize("scale", [1e-30, 5e-23, 1e30])
    def test_extreme_magnitudes_keep_their_figures(self, scale: float) -> None:
        left, right = normal(0, (8, 16), scale), normal(1, (8, 16), scale)
        evidence = relation(("BF16", bits_of(left, "BF16")), ("BF16", bits_of(right, "BF16")))
        assert evidence.to_dict()["relative_rms"] == pytest.approx(
            sqrt(((left - right) ** 2).sum() / (left**2).sum()), rel=1e-2
        )

    def test_differences_too_small_to_square_are_not_near(self) -> None:
        left, right = normal(0, (8, 16), 1e-200), normal(1, (8, 16), 1e-200)
        evidence = relation(("F64", bits_of(left, "F64")), ("F64", bits_of(right, "F64")))
        assert (evidence.state, evidence.to_dict()["relative_rms"]) == (State.DISTINCT, None)

    def test_only_the_first_ranges_are_listed(self) -> None:
        bits = matrix("F32", 40, 8)
        changed = bits.copy()
        changed[::2] ^= 1
        evidence = relation(("F32", bits), ("F32", changed))
        assert evidence.to_dict()["row_ranges"] == [[row, row + 1] for row in range(0, 16, 2)]
        assert (evidence.to_dict()["rows_differing"], evidence.to_dict()["rows_listed_completely"]) == (20, False)

    @given(st.sets(st.integers(0, 299), max_size=150), st.sampled_from([1, 3, 300, 700]))
    @settings(max_examples=30, deadline=None)
    def test_ranges_are_the_runs_of_differing_rows(self, rows: set[int], width: int) -> None:
        bits = np.arange(300 * width, dtype="<u4").reshape(300, width) + 0x3F80_0000
        changed = bits.copy()
        changed[sorted(rows), -1] += np.uint32(1)
        if not rows:
            return
        evidence = relation(("F32", bits), ("F32", changed))
        flags = [row in rows for row in range(301)]
        starts = [row for row in range(300) if flags[row] and not (row and flags[row - 1])]
        ends = [row + 1 for row in range(300) if flags[row] and not flags[row + 1]]
        runs = [list(run) for run in zip(starts, ends, strict=True)]
        assert evidence.state is State.NEAR
        assert evidence.to_dict()["row_ranges"] == runs[:8]
        assert evidence.to_dict()["rows_listed_completely"] == (len(runs) <= 8)
        assert evidence.to_dict()["rows_differing"] == len(rows)

    def test_rows_wider_than_a_piece(self) -> None:
        bits = np.arange(3 * 150_000, dtype="<u4").reshape(3, 150_000) + 0x3F80_0000
        changed = bits.copy()
        changed[1, [0, 70_000, 149_999]] ^= 1
        evidence = relation(("F32", bits), ("F32", changed))
        assert (evidence.to_dict()["rows"], evidence.to_dict()["rows_differing"]) == (3, 1)
        assert evidence.to_dict()["row_ranges"] == [[1, 2]]

    def test_vectors_scalars_and_more_dimensions(self) -> None:
        vector = matrix("F32", 1, 10)[0]
        changed = vector.copy()
        changed[9] += 5
        assert relation(("F32", vector), ("F32", changed)).to_dict()["row_ranges"] == [[9, 10]]
        cube = matrix("F32", 6, 4).reshape(3, 2, 4)
        turned = cube.copy()
        turned[2, 1, 1] += 5
        assert relation(("F32", cube), ("F32", turned)).to_dict()["row_ranges"] == [[2, 3]]
        left, right = np.array(0x3F80_0000, "<u4"), np.array(0x3F80_0001, "<u4")
        assert relation(("F32", left), ("F32", right)).to_dict()["rows"] == 1


class TestShapesAndTypes:
    def test_padded_rows(self) -> None:
        bits = matrix("BF16")
        padded = np.concatenate([bits, np.zeros((8, 32), "<u2")])
        evidence = relation(("BF16", bits), ("BF16", padded))
        assert evidence == OtherShape((20, 32), (12, 32), rows_equal=12, extra_rows=8)
        padded[7, 31] ^= 1
        evidence = relation(("BF16", padded), ("BF16", bits))
        assert (evidence.to_dict()["rows_equal"], evidence.to_dict()["extra_rows"]) == (7, -8)

    def test_other_widths_ranks_and_types(self) -> None:
        bits = matrix("BF16")
        for dtype, reshaped in (("BF16", bits[:, :-1]), ("BF16", bits.ravel()), ("F16", bits[:5])):
            evidence = relation(("BF16", bits), (dtype, reshaped))
            assert evidence == OtherShape(reshaped.shape, (12, 32))

    def test_placeholder(self) -> None:
        evidence = relation(("BF16", matrix("BF16")), ("BF16", np.empty((0,), "<u2")))
        assert evidence == Empty()
        evidence = relation(("BF16", np.empty((0, 4), "<u2")), ("BF16", np.ones((2, 4), "<u2")))
        assert evidence.state is State.DISTINCT

    @pytest.mark.parametrize("dtype", ["I16", "U16", "SOMETHING_NEW"])
    def test_no_number_from_what_is_no_float(self, dtype: str) -> None:
        bits = matrix("F16")
        evidence = relation((dtype, bits), (dtype, bump(bits)))
        assert evidence.state is State.DISTINCT
        assert set(evidence.to_dict()) == {"reason"}

    def test_no_number_from_quantised_codes(self) -> None:
        codes = matrix("F16").view("u1")
        for dtype in ("U8", "I8", "F8_E4M3"):
            evidence = relation((dtype, codes), (dtype, codes + np.uint8(1)))
            assert set(evidence.to_dict()) == {"reason"}

    def test_a_record_whose_bytes_do_not_fit_is_not_computed(self) -> None:
        memory = Memory()
        a = memory.store("a", "F32", bytes(30), (2, 4))
        evidence = relate(memory, a, memory.store("b", "F32", bytes(31), (2, 4)))
        assert set(evidence.to_dict()) == {"reason"}

    def test_empty_tensors_of_two_types(self) -> None:
        evidence = relation(("F16", np.empty((0, 4), "<u2")), ("F32", np.empty((0, 4), "<u4")))
        assert set(evidence.to_dict()) == {"reason"}


def test_a_claim_reads_every_byte_and_a_refutation_few() -> None:
    memory = Memory()
    bits = np.random.default_rng(5).integers(0x3F00, 0x4000, (1024, 512), dtype="<u2")

    def read_for(compared: TensorRecord) -> tuple[State, int]:
        reader = memory.counted()
        return relate(reader, canonical, compared).state, reader.bytes_read

    canonical = memory.store("a", "BF16", bits)
    size = canonical.nbytes
    state, count = read_for(memory.store("b", "BF16", bits.T))
    assert (state, 2 * size <= count <= 2 * size + 4096) == (State.TRANSPOSED, True)
    state, count = read_for(memory.store("b", "F32", bits.astype("<u4") << 16))
    assert (state, 3 * size <= count <= 3 * size + 65536) == (State.CAST, True)
    state, count = read_for(memory.store("b", "I16", bits[::-1]))
    assert (state, count < 65536) == (State.DISTINCT, True)
    state, count = read_for(memory.store("b", "BF16", np.roll(bits.T, 1)))
    assert (state, count < 65536) == (State.DISTINCT, True)
    state, count = read_for(memory.store("b", "BF16", np.roll(bits, 1)))
    assert (state, count <= 2 * size + 65536) == (State.DISTINCT, True)


@pytest.fixture
def without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where numpy is not installed, with rows that are read in three parts."""
    monkeypatch.setattr(equality, "_has_numpy", lambda: False)
    monkeypatch.setattr(view_reader, "BLOCK", 48)


@pytest.mark.usefixtures("without_numpy")
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({(3, 5): 1.5}, "1 of 12 rows differ, the first of them by at most 0.5; numpy measures the rest"),
        ({(3, 0): 1.25, (3, 31): 3}, "1 of 12 rows differ, the first of them by at most 2; numpy measures the rest"),
        ({(0, 2): 2, (11, 9): 9}, "2 of 12 rows differ, the first of them by at most 1; numpy measures the rest"),
        ({(7, 7): float("nan")}, "1 of 12 rows differ; numpy measures the rest"),
        ({(7, 7): float("inf"), (8, 8): 2}, "2 of 12 rows differ; numpy measures the rest"),
    ],
)
def test_rows_that_differ_without_numpy(dtype: str, changes: dict[tuple[int, int], float], reason: str) -> None:
    """They are counted by their bytes, and the first of them is measured."""
    values = np.ones((12, 32))
    changed = values.copy()
    for spot, number in changes.items():
        changed[spot] = number
    assert relation((dtype, bits_of(values, dtype)), (dtype, bits_of(changed, dtype))) == OtherBytes(reason)


@pytest.mark.usefixtures("without_numpy")
def test_what_needs_no_numpy_and_what_does() -> None:
    """A zero of another sign is counted; two types are not compared."""
    values = np.zeros((3, 4))
    changed = values.copy()
    changed[1, 1:3] = changed[2, 0] = -0.0
    related = relation(("F32", bits_of(values, "F32")), ("F32", bits_of(changed, "F32")))
    assert related == Near(RowFigures(2, 3, (), False, 0, 0.0, 0.0, True, 0))
    assert relation(("F32", matrix("F32")), ("F16", matrix("F16"))) == Unread(reason=TYPES_NEED_NUMPY)


def sampled(left: tuple[str, Array], right: tuple[str, Array], *, known: bool = False) -> Compared:
    """Relate two (dtype, bits) by a sample; with ``known`` their files are known to be equal."""
    memory = Memory()
    first, second = memory.store("a", *left), memory.store("b", *right)
    if known:
        memory.content_id = lambda _: "one"  # type: ignore[attr-defined]
        second = replace(second, range=replace(first.range, file="copy"))
    return relate_sampled(memory, first, second)


def test_what_a_sample_proves() -> None:
    """That tensors differ, with the bytes that do; and nothing about what it did not read."""
    table, middle = matrix("F32", 64, 64), ((4096, 8192),)
    assert sampled(("F32", table), ("F32", table)) == Unread(
        sampled=True, ranges_equal=middle, reason=f"the sampled bytes are equal: {HINT}"
    )
    changed = table.copy()
    changed[20, 1] += 1
    assert sampled(("F32", table), ("F32", changed)) == OtherSample(middle)
    changed = table.copy()
    changed[0, 0] += 1
    assert sampled(("F32", table), ("F32", changed)).state is State.UNREAD
    assert sampled(("F32", table), ("F32", table), known=True) == Identical(by="file hash")
    small = matrix("F16", 4, 8)
    assert sampled(("F16", small), ("F16", bump(small))) == OtherSample(((0, 64),))
    assert sampled(("F32", table), ("F32", np.zeros((0, 64), "<u4"))) == Empty()
    assert sampled(("F32", table), ("I32", table)) == Unread(reason=f"the types differ: {HINT}")
    wide = matrix("F32", 8, 4)
    assert sampled(("F32", wide), ("F32", wide.T.copy())) == Unread(reason=f"one may be the other transposed: {HINT}")
    assert sampled(("F32", wide), ("F32", matrix("F32", 9, 4))) == OtherShape((9, 4), (8, 4))
    nothing = np.zeros((0, 4), "<u4")
    assert sampled(("F32", nothing), ("F32", nothing)) == Unread(reason=f"samples cannot prove a relation here: {HINT}")


def test_the_pairs_of_a_bucket_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many pairs as are allowed, and as many bytes, are compared; one more is refused."""
    records = [TensorRecord(f"t{at}", "U8", (10,), ByteRange("m", 10 * at, 10 * at + 10)) for at in range(3)]
    monkeypatch.setattr(duplicates, "_TIMES", 2)
    for pairs, free, enough in ((4, 20, 4), (9, 20, 4), (9, 19, 3), (3, 20, 3)):
        monkeypatch.setattr(duplicates, "MOST_PAIRS", pairs)
        monkeypatch.setattr(duplicates, "_FREE", free)
        work = PairWork([[record] for record in records])
        for _ in range(enough):
            work.spend(records[0], records[1])
        with pytest.raises(RefusedError, match="m has 3 different tensors with the same ends as t0") as refusal:
            work.spend(records[0], records[1])
        assert refusal.value.code == "duplicates.pairs"


def test_the_pairs_of_two_types_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one type do not count."""
    kinds = ["F16", "F16", "BF16", "F16", "BF16"]
    classes = [[TensorRecord(f"t{at}", kind, (1,), ByteRange("m", at, at))] for at, kind in enumerate(kinds)]
    monkeypatch.setattr(duplicates, "MOST_CROSS_PAIRS", 6)
    pairs = [(first[0].name, second[0].name) for first, second in duplicates.cross_pairs(classes)]
    assert pairs == [("t0", "t2"), ("t0", "t4"), ("t1", "t2"), ("t1", "t4"), ("t2", "t3"), ("t3", "t4")]
    monkeypatch.setattr(duplicates, "MOST_CROSS_PAIRS", 5)
    with pytest.raises(RefusedError):
        list(duplicates.cross_pairs(classes))
