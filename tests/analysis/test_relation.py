"""Each class of relation is recovered from constructed tables, and a quantised head is named by its scheme."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tests.analysis.constructed import CLASSES, Array, embedding, make, orthogonal, table
from tests.inspection.stored import Memory
from tests.loops import case
from tieconv.analysis.relation import relate_tables
from tieconv.analysis.relation_maps import sample
from tieconv.analysis.relation_section import sentence
from tieconv.analysis.tables import open_table
from tieconv.checkpoint.results.analysis import Kinship
from tieconv.inspection.numeric.bits import FORMATS, decode, encode

MEASURED = Path(__file__).parents[2] / "docs" / "measured" / "relations.json"
QUICK, FULL = 8, 100


def confusion(each: int) -> dict[str, dict[str, int]]:
    """How often a constructed class (outer) was called which (inner), over ``each`` cases a class."""
    found: dict[str, dict[str, int]] = {}
    for place, truth in enumerate(CLASSES):
        answers = Counter[str]()
        for seed in range(each):
            case = make(truth, np.random.default_rng([seed, place]))
            answers[str(relate_tables(case.embed, case.head).kind)] += 1
        found[str(truth)] = dict(sorted(answers.items()))
    return found


def test_every_class_is_recovered() -> None:
    """Over the quick sample every case is called by its class."""
    assert confusion(QUICK) == {str(kind): {str(kind): QUICK} for kind in CLASSES}


@pytest.mark.slow
def test_confusion_matrix() -> None:
    """At full length, over the seeds that the committed matrix is of, and the matrix is what is measured."""
    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    assert document["each"] == FULL
    assert confusion(FULL) == document["confusion"]


def test_the_committed_matrix_is_large_and_clean() -> None:
    """At least 200 cases, and at most one in a hundred of a class is called otherwise."""
    document = json.loads(MEASURED.read_text(encoding="utf-8"))
    rows = document["confusion"]
    assert set(rows) == set(map(str, CLASSES))
    assert sum(sum(row.values()) for row in rows.values()) >= 200
    assert all(row[name] >= 0.99 * sum(row.values()) for name, row in rows.items())


def test_differing_rows_are_the_ones_that_were_changed() -> None:
    """Exactly the changed rows are marked."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((200, 16))
    other = values.copy()
    other[[3, 77, 199]] += 1
    related = relate_tables(table(values, "F32"), table(other, "F32"))
    assert related.kind is Kinship.ROWS_DIFFER
    assert np.flatnonzero(related.moments.unequal).tolist() == [3, 77, 199]


def test_parameters_of_the_maps_are_recovered() -> None:
    """Factor, gains and shift are those that made the head, to within rounding."""
    rng = np.random.default_rng(1)
    e = embedding(rng, 600, 24)
    gains, shift = np.exp(rng.normal(0, 0.3, 24)), rng.standard_normal(24) * e.std()
    scaled = relate_tables(table(e, "F32"), table(e * 3.25, "F32"))
    assert scaled.fit is not None and scaled.fit.gains[0] == pytest.approx(3.25, rel=1e-6)
    bent = relate_tables(table(e, "F32"), table(e * gains, "F32"))
    assert bent.fit is not None and np.allclose(bent.fit.gains, gains, rtol=1e-6)
    moved = relate_tables(table(e, "F32"), table(e + shift, "F32"))
    assert moved.fit is not None and np.allclose(moved.fit.shift, shift, rtol=1e-5, atol=1e-7)


def test_a_shift_does_not_hide_a_scale() -> None:
    """A scale and a diagonal with one vector added to all rows keep their class, and say that they are shifted."""
    rng = np.random.default_rng(2)
    e = embedding(rng, 500, 16)
    shift = rng.standard_normal(16) * e.std()
    scalar = relate_tables(table(e, "BF16"), table(2 * e + shift, "BF16"))
    diagonal = relate_tables(table(e, "BF16"), table(e * np.exp(rng.normal(0, 0.4, 16)) + shift, "BF16"))
    assert (scalar.kind, diagonal.kind) == (Kinship.SCALAR, Kinship.DIAGONAL)
    assert scalar.figures["shifted"] and diagonal.figures["shifted"]


def test_a_float32_copy_of_bfloat16_values_keeps_its_tolerance() -> None:
    """A fold that was computed in bfloat16 and stored as float32 is still a diagonal."""
    rng = np.random.default_rng(3)
    e = embedding(rng, 500, 16)
    first, second = table(e, "BF16"), table(e * np.exp(rng.normal(0, 0.4, 16)), "BF16")
    wide = [table(rounded.values(0, 500), "F32") for rounded in (first, second)]
    assert relate_tables(wide[0], wide[1]).kind is Kinship.DIAGONAL


def test_adjusted_r2_has_no_floor() -> None:
    """For unrelated tables plain R² is about d/V and adjusted R² about 0, however few rows there are."""
    rng = np.random.default_rng(4)
    for rows in (300, 1000, 3000):
        linear = relate_tables(*(table(rng.standard_normal((rows, 64)), "F32") for _ in range(2))).linear
        assert linear is not None
        assert linear.r2 == pytest.approx(64 / rows, rel=0.15)
        assert abs(linear.adjusted) < 0.02


def test_retrieval_tells_drift_from_nothing() -> None:
    """P@1 is the share of rows whose nearest row of the head by centred cosine is their own; chance gives 1/V."""
    rng = np.random.default_rng(7)
    e = rng.standard_normal((500, 32))
    near = relate_tables(table(e, "F32"), table(e + 0.8 * rng.standard_normal(e.shape) + 3, "F32"))
    none = relate_tables(table(e, "F32"), table(rng.standard_normal(e.shape), "F32"))
    assert near.kind is Kinship.DRIFT and near.retrieval["as stored"] > 0.5
    assert none.kind is Kinship.INDEPENDENT and max(none.retrieval.values()) < 0.05
    head = e + 0.8 * np.random.default_rng(8).standard_normal(e.shape)
    related = relate_tables(table(e, "F64"), table(head, "F64"))
    units = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (e - e.mean(0), head - head.mean(0))]
    rows = sample(related.moments)
    own = float((np.argmax(units[0][rows] @ units[1].T, axis=1) == rows).mean())
    assert len(rows) == related.asked > 100 and related.retrieval["as stored"] == pytest.approx(own)


def test_the_residual_is_what_the_map_leaves() -> None:
    """‖U − Û‖ / ‖U‖ of a table with noise of a known size."""
    rng = np.random.default_rng(9)
    e = embedding(rng, 800, 16)
    noise = rng.standard_normal(e.shape)
    head = e + 0.1 * noise * np.linalg.norm(e) / np.linalg.norm(noise)
    related = relate_tables(table(e, "F64"), table(head, "F64"))
    assert related.kind is Kinship.DRIFT
    assert related.residual == pytest.approx(np.linalg.norm(head - e) / np.linalg.norm(head), rel=1e-9)


def test_too_few_rows_are_not_judged() -> None:
    """Where any table is a linear map of any other nothing is claimed, and below 32 rows nothing but equality."""
    rng = np.random.default_rng(5)
    e = rng.standard_normal((60, 40))
    related = relate_tables(table(e, "F32"), table(e @ orthogonal(rng, 40), "F32"))
    assert related.linear is None and related.kind is Kinship.UNKNOWN and related.figures["reason"]
    assert relate_tables(table(e[:20], "F32"), table(2 * e[:20], "F32")).kind is Kinship.UNKNOWN
    assert relate_tables(table(e[:20], "F32"), table(e[:20], "F32")).kind is Kinship.BIT_EQUAL


@pytest.mark.parametrize(
    ("rows", "changed", "kind"),
    [(31, 15, Kinship.UNKNOWN), (32, 16, Kinship.ROWS_DIFFER), (32, 17, Kinship.PARTLY_EQUAL)],
)
def test_the_most_rows_that_may_differ(rows: int, changed: int, kind: Kinship) -> None:
    """Half of 32 rows or more."""
    rng = np.random.default_rng(5)
    e = embedding(rng, rows, 8)
    u = e.copy()
    u[:changed] += rng.standard_normal((changed, 8))
    assert relate_tables(table(e, "F32"), table(u, "F32")).kind is kind


@pytest.mark.parametrize("value", [0.0, 0.3])
@pytest.mark.parametrize("side", ["embedding", "head"])
def test_a_table_of_one_row_is_no_map_of_another(value: float, side: str) -> None:
    """Zeros, or one row all over, are 0 times anything and a vector: no gauge, no scalar, and nothing to re-tie."""
    e = np.random.default_rng(3).standard_normal((200, 16))
    tables = table(e, "F32"), table(np.full(e.shape, value), "F32")
    related = relate_tables(*(tables if side == "head" else tables[::-1]))
    assert related.kind is Kinship.UNKNOWN
    assert related.figures["reason"] == f"all rows of the {side} are {'equal' if value else 'zeros'}"


def test_nan_rows_are_left_out_and_counted() -> None:
    """A NaN in one row spoils neither the fit of the others nor the class."""
    rng = np.random.default_rng(6)
    e = embedding(rng, 300, 16)
    head = e * 2.5
    head[7, 3] = np.nan
    related = relate_tables(table(e, "F32"), table(head, "F32"))
    assert related.kind is Kinship.SCALAR
    assert related.moments.rows - related.moments.count == 1


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 40), st.integers(0, 4))
def test_equality_is_exactly_equality(seed: int, rows: int, changes: int) -> None:
    """A table is bit-equal to another exactly where no bit differs, whatever the sizes."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 16, (rows, 5), "u2").astype("<u2")
    other = bits.copy()
    for _ in range(changes):
        other[rng.integers(rows), rng.integers(5)] ^= 1 << rng.integers(16)
    memory = Memory()
    one, two = (open_table(memory, memory.store(name, "BF16", v)) for name, v in (("e", bits), ("u", other)))
    related = relate_tables(one, two)
    assert (related.kind is Kinship.BIT_EQUAL) == np.array_equal(bits, other)
    assert np.array_equal(related.moments.unequal, (bits != other).any(axis=1))


def narrow(values: Array, kind: str) -> Array:
    """The values once rounded to ``kind``."""
    return table(values, kind).values(0, len(values))


@pytest.mark.parametrize("kind", ["BF16", "F16"])
@pytest.mark.parametrize("side", ["embedding", "head"])
def test_a_float32_table_that_was_once_rounded_is_a_cast(kind: str, side: str) -> None:
    """Both are stored as float32, one of them holds the other's values in fewer bits: every element is compared."""
    e = narrow(embedding(np.random.default_rng(0), 400, 32), "F32")
    pair = [e, narrow(e, kind)] if side == "head" else [narrow(e, kind), e]
    found = relate_tables(*(table(values, "F32") for values in pair))
    assert (found.kind, found.moments.cast, found.figures["rows_differing"]) == (Kinship.CAST, kind, 400)
    assert sentence(found) == f"The tables are equal after the wider one is rounded to {kind}."
    pair[0][311, 7] *= 1.5
    assert relate_tables(*(table(values, "F32") for values in pair)).kind is not Kinship.CAST


def test_what_rounding_leaves_is_no_vector() -> None:
    """Noise of the size of a rounding: no map is told, though each leaves as little."""
    rng = np.random.default_rng(4)
    e = narrow(embedding(rng, 400, 32), "BF16")
    found = relate_tables(table(e, "BF16"), table(e * (1 + 2e-3 * rng.standard_normal(e.shape)), "BF16"))
    assert found.kind is Kinship.DRIFT and found.within_rounding
    assert sentence(found).endswith("which rounding to the stored type explains.")


def in_codes(values: Array, group: int) -> Array:
    """Quantised to 8 bits, one scale for each ``group`` of numbers, and turned back."""
    flat = values.reshape(-1, group)
    step = np.abs(flat).max(axis=1, keepdims=True) / 127
    step[step == 0] = 1
    return (np.rint(flat / step) * step).reshape(values.shape)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
@pytest.mark.parametrize("group", [128, 64, 32])
def test_a_head_in_codes_is_told_from_drift(dtype: str, group: int) -> None:
    """Found with the size of its groups; a change of the same size that follows no codes is drift."""
    rng = np.random.default_rng(group)
    e = narrow(embedding(rng, 300, 128), dtype)
    e[17] = 0
    found = relate_tables(table(e, dtype), table(in_codes(e, group), dtype))
    assert (found.kind, found.figures) == (Kinship.DRIFT, {"scheme": "int8", "bits": 8, "group": group})
    each = "row" if group == 128 else f"{group} numbers"
    assert f"after an int8 round trip, with one scale for each {each}. The difference is" in sentence(found)
    other = e + found.residual * e.std() * rng.standard_normal(e.shape)  # type: ignore[operator]
    assert relate_tables(table(e, dtype), table(other, dtype)).figures == {}


def test_one_number_off_the_codes_is_drift() -> None:
    """The last element of the last row, half a step from where its code puts it."""
    e = narrow(embedding(np.random.default_rng(1), 300, 128), "F32")
    u = in_codes(e, 128)
    u[-1, -1] += np.abs(e[-1]).max() / 254
    assert relate_tables(table(e, "F32"), table(u, "F32")).figures == {}
    u = in_codes(e, 128)
    u[-1, -1] += 2 * np.abs(e[-1]).max() / 127  # a code, and not one beside the embedding's number
    assert relate_tables(table(e, "F32"), table(u, "F32")).figures == {}


def test_small_changes_are_not_taken_for_codes() -> None:
    """Noise relative to the number, or to the row, of the sizes between which codes lie."""
    for seed in range(40):
        with case(seed):
            rng = np.random.default_rng(seed)
            e = narrow(embedding(rng, 64, 64), "BF16")
            noise = 10 ** rng.uniform(-3.5, -1.5) * rng.standard_normal(e.shape)
            u = e * (1 + noise) if seed % 2 else e + np.abs(e).max(axis=1, keepdims=True) * noise
            assert "scheme" not in relate_tables(table(e, "BF16"), table(u, "BF16")).figures


def test_rows_of_zeros_in_both_are_no_evidence() -> None:
    """Most rows padding: a folded norm is still one, and unrelated rest is neither the same, nor moved, nor a map."""
    rng = np.random.default_rng(7)
    rest, other, pad = rng.standard_normal((80, 16)), rng.standard_normal((80, 16)), np.zeros((120, 16))
    padded = table(np.concatenate([rest, pad]), "F32")
    assert relate_tables(padded, table(np.concatenate([2 * rest, pad]), "F32")).kind is Kinship.SCALAR
    assert relate_tables(padded, table(np.concatenate([other, pad]), "F32")).kind is Kinship.INDEPENDENT
    for more in (80, 88):  # as many rows, or more
        elsewhere = np.concatenate([pad, rng.standard_normal((more, 16))])
        assert relate_tables(padded, table(elsewhere, "F32")).kind is Kinship.INDEPENDENT
    few = np.concatenate([rest[:3], np.zeros((197, 16))])  # and where nothing finer can be told, this much
    assert relate_tables(table(few, "F32"), table(0 * few, "F32")).kind is Kinship.ROWS_DIFFER


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_the_rounding_of_subnormal_numbers_is_no_map(dtype: str) -> None:
    """Where a type has few numbers a multiple is coarse: still a scalar."""
    values = np.random.default_rng(7).standard_normal((200, 16)) * (1e-40 if dtype == "F32" else 2e-39)
    once = table(values, dtype)
    assert relate_tables(once, table(1.5 * once.values(0, 200), dtype)).kind is Kinship.SCALAR


def test_the_sentence_counts_what_it_says_of_rows() -> None:
    """*Each row*, *every row* and the verb of one row are said only of tables of which they are true."""
    rng = np.random.default_rng(7)
    e = rng.standard_normal((200, 16))

    def told(head: Array) -> str:
        return sentence(relate_tables(table(e, "F32"), table(head, "F32")))

    kept = told(np.concatenate([e[:99], rng.standard_normal((101, 16))]))
    assert "% of the rows are still nearest to the same row" in kept and "Each row" not in kept
    assert "Each row is still nearest to the same row of the other table." in told(
        e + 0.2 * rng.standard_normal(e.shape)
    )
    moved = e[rng.permutation(120)]
    most = told(np.concatenate([moved, rng.standard_normal((30, 16))]))
    assert most == "120 of 150 rows of the smaller table are in the embedding under another row number."
    assert told(moved).startswith("Every row of the smaller table is in the embedding")
    assert told(np.concatenate([e[:1] + 1, e[1:]])) == "1 of 200 rows differs. The others are byte-identical."


@pytest.mark.parametrize(("size", "side"), [(1e-200, 0), (1e-200, 1), (1e-170, 1)])
def test_numbers_that_cannot_be_squared(size: float, side: int) -> None:
    """Nothing is said of a map between tables of which float64 holds no square; rows alike are not their reason."""
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((64, 8)), rng.standard_normal((64, 8))]
    values[side] *= size
    found = relate_tables(*(table(one, "F64") for one in values))
    assert found.kind is Kinship.UNKNOWN
    assert found.figures["reason"] == f"the numbers of the {('embedding', 'head')[side]} are too small to be squared"


def test_rows_of_zeros_of_either_sign_hide_no_order() -> None:
    """A permuted head whose rows of zeros are negative ones is a permutation of the others all the same."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal((64, 8))
    values[:24] = 0
    head = values[np.r_[:24, 24 + rng.permutation(40)]]
    head[:24] = -0.0
    assert relate_tables(table(values, "F64"), table(head, "F64")).kind is Kinship.ROW_PERMUTATION


def test_equal_rows_and_columns_are_told() -> None:
    """Where 40 % of the rows or half of the columns are equal, no sentence says that nothing is."""
    rng = np.random.default_rng(7)
    e = rng.standard_normal((400, 32))
    rows, columns = rng.standard_normal((400, 32)), rng.standard_normal((400, 32))
    rows[:160] = e[:160]
    columns[:, :8] = e[:, :8]
    by_rows = relate_tables(table(e, "BF16"), table(rows, "BF16"))
    assert by_rows.kind is Kinship.PARTLY_EQUAL
    assert "160 of 400 rows (40%)" in sentence(by_rows) and "independent" not in sentence(by_rows)
    by_columns = relate_tables(table(e, "BF16"), table(columns, "BF16"))
    assert "8 of 32 columns (25%)" in sentence(by_columns) and "independent" not in sentence(by_columns)
    columns[:, :16] = e[:, :16]
    assert "16 of 32 columns (50%)" in sentence(relate_tables(table(e, "BF16"), table(columns, "BF16")))
    one = rng.standard_normal((400, 32))
    one[5] = e[5]
    alone = relate_tables(table(e, "BF16"), table(one, "BF16"))
    assert alone.kind is Kinship.INDEPENDENT and "1 of 400 rows" in sentence(alone)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_a_low_rank_difference_is_named(dtype: str) -> None:
    """An adapter merged into the head, with its rank; a full one of the same size is drift."""
    rng = np.random.default_rng(8)
    e = embedding(rng, 900, 64)
    moved = rng.standard_normal((900, 8)) @ rng.standard_normal((8, 64)) * e.std() / 10
    low = relate_tables(table(e, dtype), table(e + moved, dtype))
    assert (low.kind, low.figures["rank"]) == (Kinship.LOW_RANK, 8)
    assert "rank 8" in sentence(low)
    full = relate_tables(table(e, dtype), table(e + rng.standard_normal((900, 64)) * e.std() / 10, dtype))
    assert full.kind is Kinship.DRIFT


def test_a_factor_for_each_row_is_named() -> None:
    """Rows brought to one length, and rows of either sign."""
    rng = np.random.default_rng(9)
    e = embedding(rng, 900, 64)
    unit = relate_tables(table(e, "BF16"), table(e / np.linalg.norm(e, axis=1, keepdims=True), "BF16"))
    assert unit.kind is Kinship.ROW_SCALED and "each row scaled" in sentence(unit)
    signed = relate_tables(table(e, "F32"), table(e * rng.choice([-1.0, 2.0], (900, 1)), "F32"))
    assert signed.kind is Kinship.ROW_SCALED
    assert (signed.figures["factor_min"], signed.figures["factor_max"]) == pytest.approx((-1.0, 2.0))


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
