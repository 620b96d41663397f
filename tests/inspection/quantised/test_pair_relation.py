"""Each proved relation of a quantised head, a calibrated copy, and the neighbours that it must not be taken for."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.inspection.quantised.stored_models import (
    EMBED,
    HEAD,
    Array,
    Tensor,
    bf16,
    config,
    matrix,
    save,
    tables,
    tensor,
    under,
)
from tests.inspection.quantised.test_formulas import ct_config, packed
from tieconv import inspect
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.quantised_matrix import PairRelation, PairState

ROWS, COLUMNS, GROUP = 40, 64, 32
CT = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": [],
    "config_groups": {
        "g": {
            "targets": ["Linear", "Embedding"],
            "weights": {"num_bits": 8, "group_size": GROUP, "strategy": "group", "symmetric": True},
        }
    },
}


def weights(seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((ROWS, COLUMNS)).astype("<f4")


def int8(values: Array, limit: int = 127) -> dict[str, Tensor]:
    """Rounding to nearest, with a scale for each group."""
    groups = values.reshape(len(values), -1, GROUP)
    scales = np.abs(groups).max(-1, keepdims=True) / limit
    codes = np.round(groups / scales).astype("i1").reshape(values.shape)
    return {"weight": tensor(codes), "weight_scale": tensor(scales[..., 0].astype("<f4"))}


def float_embedding(values: Array) -> dict[str, Tensor]:
    return {f"{EMBED}.weight": tensor(values)}


def related(folder: Path, tensors: dict[str, Tensor], tied: bool = False, **options: object) -> PairRelation:
    relation = tables(inspected(folder, tensors, tied, **options)).relation
    assert relation is not None
    return relation


def inspected(folder: Path, tensors: dict[str, Tensor], tied: bool = False, **options: object) -> Inspection:
    depth = str(options.get("depth", "candidates"))
    return inspect(save(folder, config(ROWS, COLUMNS, tied, quantization_config=CT), tensors), depth=depth)


class TestTwoQuantisedMatrices:
    def test_equal_needs_every_byte_of_every_part(self, tmp_path: Path) -> None:
        parts = int8(weights())
        relation = related(tmp_path, under(EMBED, parts) | under(HEAD, parts))
        assert relation.state is PairState.EQUAL
        assert relation.bytes_wasted == ROWS * COLUMNS + ROWS * COLUMNS // GROUP * 4

    def test_one_bit_of_one_scale(self, tmp_path: Path) -> None:
        parts = int8(weights())
        scales = parts["weight_scale"][1].copy()
        scales.view("<u4")[-1, -1] ^= 1
        relation = related(tmp_path, under(EMBED, parts) | under(HEAD, parts | {"weight_scale": tensor(scales)}))
        assert relation.state is PairState.DIFFERENT
        assert relation.differing == ("scales",)
        assert relation.figures is not None
        assert relation.figures.rows_differing == 1

    def test_one_code(self, tmp_path: Path) -> None:
        parts = int8(weights())
        codes = parts["weight"][1].copy()
        codes[ROWS // 2, 3] ^= 1
        inspection = inspected(
            tmp_path, under(EMBED, parts) | under(HEAD, parts | {"weight": tensor(codes)}), tied=True
        )
        relation = tables(inspection).relation
        assert relation is not None
        assert (relation.state, relation.differing) == (PairState.DIFFERENT, ("codes",))
        assert inspection.ties[0].consistent is False

    def test_equal_values_in_other_parts(self, tmp_path: Path) -> None:
        parts = int8(weights(), limit=31)
        doubled = {
            "weight": tensor(parts["weight"][1] * np.int8(2)),
            "weight_scale": tensor(parts["weight_scale"][1] / 2),
        }
        relation = related(tmp_path, under(EMBED, parts) | under(HEAD, doubled))
        assert (relation.state, relation.differing) == (PairState.EQUAL_VALUES, ("codes", "scales"))
        assert relation.bytes_wasted == 0

    def test_equal_codes_and_other_scales_are_not_a_copy_of_the_embedding(self, tmp_path: Path) -> None:
        """Under one name the codes are byte-identical; the matrices are not."""
        parts = int8(weights())
        other_scales = parts | {"weight_scale": tensor(parts["weight_scale"][1] * np.float32(3))}
        inspection = inspected(tmp_path, under(EMBED, parts) | under(HEAD, other_scales), tied=True)
        (tie,) = inspection.ties
        assert [member.state for member in tie.members] == [State.CANONICAL, State.DISTINCT]
        assert tie.bytes_wasted == 0
        assert "TIE002" not in [finding.rule for finding in inspection.findings]
        assert inspection.bytes_unique == inspection.bytes_stored

    def test_two_schemes(self, tmp_path: Path) -> None:
        rows = int8(weights()) | {"weight_scale": tensor(np.ones((ROWS, 1), "<f4"))}
        relation = related(tmp_path, under(EMBED, int8(weights())) | under(HEAD, rows))
        assert (relation.state, relation.differing) == (PairState.DIFFERENT, ("scheme",))

    def test_headers_prove_nothing(self, tmp_path: Path) -> None:
        parts = int8(weights())
        relation = related(tmp_path, under(EMBED, parts) | under(HEAD, parts), depth="header")
        assert relation.state is PairState.UNREAD


class TestACopyOfTheFloatEmbedding:
    @pytest.mark.parametrize("store", [tensor, bf16])
    def test_rounding_to_nearest(self, tmp_path: Path, store: object) -> None:
        assert callable(store)
        relation = related(tmp_path, {f"{EMBED}.weight": store(weights())} | under(HEAD, int8(weights())))
        assert relation.state is PairState.COPY
        assert relation.figures is not None
        assert relation.figures.of_bound is not None
        assert relation.figures.of_bound <= 1

    def test_the_embedding_may_be_the_quantised_one(self, tmp_path: Path) -> None:
        tensors = under(EMBED, int8(weights())) | {f"{HEAD}.weight": tensor(weights())}
        assert related(tmp_path, tensors).state is PairState.COPY

    def test_one_code_that_is_a_step_off(self, tmp_path: Path) -> None:
        """The largest error decides, not the mean: one step at one element is no rounding."""
        parts = int8(weights())
        codes = parts["weight"][1].copy()
        codes[7, 7] += 1 if codes[7, 7] < 127 else -1
        relation = related(tmp_path, float_embedding(weights()) | under(HEAD, parts | {"weight": tensor(codes)}))
        assert relation.state is PairState.CALIBRATED_COPY
        assert relation.figures is not None
        assert relation.figures.of_bound is not None
        assert relation.figures.of_bound > 1

    @pytest.mark.parametrize(("share", "state"), [(0.1, PairState.CALIBRATED_COPY), (0.7, PairState.DIFFERENT)])
    def test_errors_of_a_step(self, tmp_path: Path, share: float, state: PairState) -> None:
        """One code in ten may be a step off, as calibration leaves them; most codes may not."""
        parts = int8(weights(), limit=100)
        moved = np.random.default_rng(1).uniform(size=(ROWS, COLUMNS)) < share
        codes = parts["weight"][1] + moved.astype("i1")
        relation = related(tmp_path, float_embedding(weights()) | under(HEAD, parts | {"weight": tensor(codes)}))
        assert relation.state is state

    def test_an_unrelated_matrix(self, tmp_path: Path) -> None:
        relation = related(tmp_path, float_embedding(weights()) | under(HEAD, int8(weights(seed=1))))
        assert relation.state is PairState.DIFFERENT
        assert relation.figures is not None
        assert relation.figures.relative_rms is not None
        assert relation.figures.relative_rms > 1

    def test_a_matrix_that_is_not_a_number(self, tmp_path: Path) -> None:
        values = weights()
        values[3, 3] = np.nan
        relation = related(tmp_path, float_embedding(values) | under(HEAD, int8(weights())))
        assert (relation.state, relation.reason) == (PairState.UNREAD, "a value is not a number")

    def test_another_shape(self, tmp_path: Path) -> None:
        relation = related(tmp_path, float_embedding(weights()[:-1]) | under(HEAD, int8(weights())))
        assert relation.state is PairState.DIFFERENT
        assert relation.reason == "the embedding is 39×64 and the head 40×64"


class TestClaims:
    def test_a_tied_model_with_codes_claims_no_tie(self, tmp_path: Path) -> None:
        packed = {
            "weight_packed": tensor(np.ones((ROWS, COLUMNS // 4), "<i4")),
            "weight_scale": tensor(np.ones((ROWS, 2), "<f4")),
        }
        inspection = inspected(tmp_path, float_embedding(weights()) | under(HEAD, packed), tied=True)
        assert inspection.config.effect.startswith("Unknown: ")
        assert inspection.head.output_head is not None
        assert inspection.head.output_head.tied_to is None
        (tie,) = inspection.ties
        assert tie.members[1].state is State.UNREAD
        assert tie.consistent is None

    def test_a_scheme_that_tieconv_does_not_know(self, tmp_path: Path) -> None:
        tensors = float_embedding(weights()) | under(
            HEAD, {"weight": tensor(weights()), "SCB": tensor(np.ones(3, "<f4"))}
        )
        inspection = inspected(tmp_path, tensors, tied=True)
        assert matrix(inspection).scheme == ""
        assert inspection.config.effect == "Unknown: tieconv does not know how the output head is quantised."

    def test_a_broken_matrix(self, tmp_path: Path) -> None:
        parts = int8(weights())
        del parts["weight_scale"]
        inspection = inspected(tmp_path, float_embedding(weights()) | under(HEAD, parts))
        assert inspection.config.effect == "Unknown: the quantised output head is broken."
        assert "QNT002" in [finding.rule for finding in inspection.findings]

    def test_an_embedding_in_parts_alone(self, tmp_path: Path) -> None:
        inspection = inspected(tmp_path, under(EMBED, int8(weights())), tied=True)
        assert tables(inspection).relation is None
        assert "some loaders do not tie quantised matrices" in inspection.config.effect


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """The comparison keeps some blocks of rows, however many rows there are."""
    values = np.random.default_rng(0).standard_normal((200_000, 64)).astype("<f4")
    tensors = {f"{EMBED}.weight": tensor(values)} | under(HEAD, int8(values))
    folder = save(tmp_path, config(200_000, 64, quantization_config=CT), tensors)
    inspect(folder, depth="header")
    tracemalloc.start()
    relation = tables(inspect(folder)).relation
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert relation is not None
    assert relation.state is PairState.COPY
    assert peak < 48 << 20  # the float matrix alone has 51 MB, and its float64 values 102 MB


TALL, WIDE, GROUP_SIZE = 96, 128, 32


def gptq(weights: Array, inputs: Array, bits: int) -> tuple[Array, Array]:
    """The codes and the scales of Frantar et al.: each column's error moves into the columns after it."""
    hessian = inputs.T @ inputs / len(inputs)
    hessian += 0.01 * np.diag(hessian).mean() * np.eye(WIDE)
    factor = np.linalg.cholesky(np.linalg.inv(hessian)).T
    left, half = weights.copy(), 1 << (bits - 1)
    codes, scales = np.empty(weights.shape, int), np.empty((TALL, WIDE // GROUP_SIZE), "f4")
    for column in range(WIDE):
        group = column // GROUP_SIZE
        if column % GROUP_SIZE == 0:
            scales[:, group] = np.abs(left[:, column : column + GROUP_SIZE]).max(1) / (half - 0.5)
        codes[:, column] = np.clip(np.round(left[:, column] / scales[:, group]), -half, half - 1)
        error = (left[:, column] - codes[:, column] * scales[:, group]) / factor[column, column]
        left[:, column:] -= error[:, None] * factor[column, column:]
    return codes + half, scales


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99])
def test_gptq(bits: int, share: float, tmp_path: Path) -> None:
    """``share`` of the inputs' variance is common to all columns."""
    draw = np.random.default_rng(bits)
    weights = draw.standard_normal((TALL, WIDE))
    common = draw.standard_normal((1000, 16)) @ draw.standard_normal((16, WIDE)) / 4
    inputs = share**0.5 * common + (1 - share) ** 0.5 * draw.standard_normal((1000, WIDE))
    codes, scales = gptq(weights, inputs, bits)
    parts = {"weight_packed": tensor(packed(codes, bits).view("<i4")), "weight_scale": tensor(scales)}
    parts["weight_shape"] = tensor(np.array([TALL, WIDE], "<i8"))
    tensors = {"model.embed_tokens.weight": tensor(weights.astype("<f4"))} | under("lm_head", parts)
    entries = ct_config(bits, GROUP_SIZE, True)
    relation = tables(inspect(save(tmp_path, config(TALL, WIDE, quantization_config=entries), tensors))).relation
    assert relation is not None
    assert relation.state is PairState.CALIBRATED_COPY
    assert relation.figures is not None
    assert relation.figures.rms_steps is not None
    assert 0.29 < relation.figures.rms_steps < 0.41
