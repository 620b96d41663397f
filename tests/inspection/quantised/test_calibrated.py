"""A head that GPTQ calibrated is recognised as a copy: its error is more than rounding leaves, but not much."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.inspection.quantised.stored_models import Array, config, save, tables, tensor, under
from tests.inspection.quantised.test_formulas import ct_config, packed
from tieconv import inspect
from tieconv.checkpoint.quantised_matrix import PairState

ROWS, COLUMNS, GROUP = 96, 128, 32


def gptq(weights: Array, inputs: Array, bits: int) -> tuple[Array, Array]:
    """The codes and the scales of Frantar et al.: each column's error moves into the columns after it."""
    hessian = inputs.T @ inputs / len(inputs)
    hessian += 0.01 * np.diag(hessian).mean() * np.eye(COLUMNS)
    factor = np.linalg.cholesky(np.linalg.inv(hessian)).T
    left, half = weights.copy(), 1 << (bits - 1)
    codes, scales = np.empty(weights.shape, int), np.empty((ROWS, COLUMNS // GROUP), "f4")
    for column in range(COLUMNS):
        group = column // GROUP
        if column % GROUP == 0:
            scales[:, group] = np.abs(left[:, column : column + GROUP]).max(1) / (half - 0.5)
        codes[:, column] = np.clip(np.round(left[:, column] / scales[:, group]), -half, half - 1)
        error = (left[:, column] - codes[:, column] * scales[:, group]) / factor[column, column]
        left[:, column:] -= error[:, None] * factor[column, column:]
    return codes + half, scales


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.99])
def test_gptq(bits: int, share: float, tmp_path: Path) -> None:
    """``share`` of the inputs' variance is common to all columns."""
    draw = np.random.default_rng(bits)
    weights = draw.standard_normal((ROWS, COLUMNS))
    common = draw.standard_normal((1000, 16)) @ draw.standard_normal((16, COLUMNS)) / 4
    inputs = share**0.5 * common + (1 - share) ** 0.5 * draw.standard_normal((1000, COLUMNS))
    codes, scales = gptq(weights, inputs, bits)
    parts = {"weight_packed": tensor(packed(codes, bits).view("<i4")), "weight_scale": tensor(scales)}
    parts["weight_shape"] = tensor(np.array([ROWS, COLUMNS], "<i8"))
    tensors = {"model.embed_tokens.weight": tensor(weights.astype("<f4"))} | under("lm_head", parts)
    entries = ct_config(bits, GROUP, True)
    relation = tables(inspect(save(tmp_path, config(ROWS, COLUMNS, quantization_config=entries), tensors))).relation
    assert relation is not None
    assert relation.state is PairState.CALIBRATED_COPY
    assert relation.figures is not None
    assert relation.figures.rms_steps is not None
    assert 0.29 < relation.figures.rms_steps < 0.41
