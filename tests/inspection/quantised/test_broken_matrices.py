"""Every way in which the parts of a matrix can fail to fit is a fault, and the neighbour that fits is none."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tieconv
from tests.inspection.quantised.stored_models import Tensor, config, matrix, model, save, tensor, under
from tests.loops import case as in_case, fresh
from tieconv import Inspection, inspect
from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.errors import RefusedError

ROWS, COLUMNS = 64, 128
Parts = dict[str, Tensor]


def stored(dtype: str, *shape: int, fill: int = 1) -> Tensor:
    """A tensor of one number."""
    name = {"F8_E4M3": "u1", "BF16": "<u2"}.get(dtype)
    types = {"I32": "<i4", "U32": "<u4", "U8": "u1", "I8": "i1", "F16": "<f2", "F32": "<f4", "I64": "<i8"}
    return dtype, np.full(shape, fill, name or types[dtype])


def ct(bits: int = 4, symmetric: bool = True, **entries: object) -> dict[str, object]:
    weights = {"num_bits": bits, "group_size": 32, "symmetric": symmetric, "strategy": "group"}
    groups = {"g": {"targets": ["Linear"], "weights": weights}}
    return {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups, **entries}}


STATE = np.frombuffer(json.dumps({"blocksize": 64, "shape": [ROWS, COLUMNS]}).encode(), "u1")
WHOLE: dict[str, tuple[dict[str, object], Parts]] = {
    "compressed-tensors pack-quantized": (
        ct(symmetric=False),
        {
            "weight_packed": stored("I32", ROWS, COLUMNS // 8),
            "weight_scale": stored("BF16", ROWS, COLUMNS // 32),
            "weight_zero_point": stored("I32", ROWS // 8, COLUMNS // 32),
            "weight_shape": ("I64", np.array([ROWS, COLUMNS], "<i8")),
        },
    ),
    "compressed-tensors nvfp4-pack": (
        ct(),
        {
            "weight_packed": stored("U8", ROWS, COLUMNS // 2),
            "weight_scale": stored("F8_E4M3", ROWS, COLUMNS // 16),
            "weight_global_scale": stored("F32", 1),
        },
    ),
    "compressed-tensors mxfp4-pack": (
        ct(),
        {"weight_packed": stored("U8", ROWS, COLUMNS // 2), "weight_scale": stored("U8", ROWS, COLUMNS // 32)},
    ),
    "compressed-tensors int-quantized": (
        ct(8),
        {"weight": stored("I8", ROWS, COLUMNS), "weight_scale": stored("F32", ROWS, COLUMNS // 32)},
    ),
    "GPTQ v1": (
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}},
        {
            "qweight": stored("I32", COLUMNS // 8, ROWS),
            "qzeros": stored("I32", COLUMNS // 32, ROWS // 8),
            "scales": stored("F16", COLUMNS // 32, ROWS),
            "g_idx": ("I32", np.arange(COLUMNS, dtype="<i4") // 32),
        },
    ),
    "AWQ": (
        {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True}},
        {
            "qweight": stored("I32", COLUMNS, ROWS // 8),
            "qzeros": stored("I32", COLUMNS // 32, ROWS // 8),
            "scales": stored("F16", COLUMNS // 32, ROWS),
        },
    ),
    "bitsandbytes 4 bit": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {
            "weight": stored("U8", ROWS * COLUMNS // 2, 1),
            "weight.absmax": stored("F32", ROWS * COLUMNS // 64),
            "weight.quant_map": stored("F32", 16),
            "weight.quant_state.bitsandbytes__nf4": ("U8", STATE),
        },
    ),
    "bitsandbytes 8 bit": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}},
        {"weight": stored("I8", ROWS, COLUMNS), "SCB": stored("F32", ROWS)},
    ),
    "FP8 with weight_scale_inv": (
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [32, 32]}},
        {"weight": stored("F8_E4M3", ROWS, COLUMNS), "weight_scale_inv": stored("F32", ROWS // 32, COLUMNS // 32)},
    ),
    "MLX affine": (
        {"quantization": {"bits": 4, "group_size": 32}},
        {
            "weight": stored("U32", ROWS, COLUMNS // 8),
            "scales": stored("F16", ROWS, COLUMNS // 32),
            "biases": stored("F16", ROWS, COLUMNS // 32),
        },
    ),
    "MLX mxfp4": (
        {"quantization": {"bits": 4, "group_size": 32, "mode": "mxfp4"}},
        {"weight": stored("U32", ROWS, COLUMNS // 8), "scales": stored("U8", ROWS, COLUMNS // 32)},
    ),
    "torchao": (
        {"quantization_config": {"quant_method": "torchao"}},
        {"_weight_qdata": stored("I8", ROWS, COLUMNS), "_weight_scale": stored("F32", ROWS, 1)},
    ),
    "quanto": ({}, {"weight._data": stored("I8", ROWS, COLUMNS), "weight._scale": stored("F32", ROWS, 1)}),
    "HQQ": ({}, {"W_q": stored("U8", ROWS // 2, COLUMNS), "scale": stored("F16", ROWS, 1)}),
    "ModelOpt NVFP4": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        {
            "weight": stored("U8", ROWS, COLUMNS // 2),
            "weight_scale": stored("F8_E4M3", ROWS, COLUMNS // 16),
            "weight_scale_2": stored("F32"),
        },
    ),
    "ModelOpt FP8": (
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
        {"weight": stored("F8_E4M3", ROWS, COLUMNS), "weight_scale": stored("F32")},
    ),
}
CODED: dict[str, tuple[int | None, tuple[int, int] | None, bool | None]] = {
    "compressed-tensors pack-quantized": (4, (1, 32), False),
    "compressed-tensors nvfp4-pack": (4, (1, 16), True),
    "compressed-tensors mxfp4-pack": (4, (1, 32), True),
    "compressed-tensors int-quantized": (8, (1, 32), True),
    "GPTQ v1": (4, (1, 32), False),
    "AWQ": (4, (1, 32), False),
    "bitsandbytes 4 bit": (4, (1, 64), True),
    "bitsandbytes 8 bit": (8, (1, COLUMNS), True),
    "FP8 with weight_scale_inv": (8, (32, 32), True),
    "MLX affine": (4, (1, 32), False),
    "MLX mxfp4": (4, (1, 32), True),
    "torchao": (8, (1, COLUMNS), True),
    "quanto": (8, (1, COLUMNS), True),
    "HQQ": (None, None, None),
    "ModelOpt NVFP4": (4, (1, 16), True),
    "ModelOpt FP8": (8, (ROWS, COLUMNS), True),
}
"""Bits, block and symmetry of each whole matrix."""
CODES = {"weight_packed", "weight", "qweight", "_weight_qdata", "weight._data", "W_q"}
NEEDED = {
    "weight_scale": FaultKind.NO_SCALES,
    "weight_global_scale": FaultKind.NO_SCALES,
    "weight_scale_2": FaultKind.NO_SCALES,
    "scales": FaultKind.NO_SCALES,
    "scale": FaultKind.NO_SCALES,
    "weight.absmax": FaultKind.NO_SCALES,
    "weight.quant_map": FaultKind.NO_SCALES,
    "weight.quant_state.bitsandbytes__nf4": FaultKind.NO_SCALES,
    "SCB": FaultKind.NO_SCALES,
    "weight_scale_inv": FaultKind.NO_SCALES,
    "_weight_scale": FaultKind.NO_SCALES,
    "weight._scale": FaultKind.NO_SCALES,
    "weight_zero_point": FaultKind.NO_ZERO_POINTS,
    "qzeros": FaultKind.NO_ZERO_POINTS,
    "biases": FaultKind.NO_ZERO_POINTS,
}
OPTIONAL = {"weight_shape", "g_idx"}
EVERY_PART = [(scheme, leaf) for scheme, (_, parts) in WHOLE.items() for leaf in parts if leaf != "W_q"]
SHAPED = [
    (scheme, leaf)
    for scheme, leaf in EVERY_PART
    if scheme != "HQQ" and "quant_state" not in leaf and WHOLE[scheme][1][leaf][1].ndim
]


def described(folder: Path, entries: dict[str, object], parts: Parts) -> QuantisedMatrix:
    embedding = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}
    return matrix(inspect(save(folder, config(ROWS, COLUMNS, **entries), embedding | under("lm_head", parts))))


@pytest.mark.parametrize("scheme", WHOLE)
def test_whole(scheme: str, tmp_path: Path) -> None:
    result = described(tmp_path, *WHOLE[scheme])
    assert (result.scheme, result.faults) == (scheme, ())
    assert (result.bits, result.block, result.symmetric) == CODED[scheme]
    assert result.shape == ((ROWS, COLUMNS) if scheme != "HQQ" else None)
    assert {part.name.removeprefix("lm_head.") for part in result.parts} == WHOLE[scheme][1].keys()


def test_without_one_part(tmp_path: Path) -> None:
    for scheme, leaf in EVERY_PART:
        with in_case(scheme, leaf):
            folder = fresh(tmp_path)
            entries, parts = WHOLE[scheme]
            rest = {name: part for name, part in parts.items() if name != leaf}
            result = described(folder, entries, rest)
            kinds = {fault.kind for fault in result.faults}
            if leaf in OPTIONAL:
                assert not kinds
            elif leaf in CODES:
                assert kinds == {FaultKind.NO_CODES}
            else:
                assert kinds == {NEEDED[leaf]}
            assert leaf in OPTIONAL or not result.reads


def test_one_part_of_another_shape(tmp_path: Path) -> None:
    """A row too many in any part is a fault, and never a wrong value."""
    for scheme, leaf in SHAPED:
        with in_case(scheme, leaf):
            folder = fresh(tmp_path)
            entries, parts = WHOLE[scheme]
            dtype, numbers = parts[leaf]
            longer = dtype, np.concatenate([numbers, numbers[-1:]])
            result = described(folder, entries, parts | {leaf: longer})
            assert FaultKind.SHAPE in {fault.kind for fault in result.faults} or leaf == "weight_global_scale"


@pytest.mark.parametrize("scheme", [scheme for scheme in WHOLE if scheme not in ("HQQ", "bitsandbytes 4 bit")])
def test_codes_that_are_no_matrix(scheme: str, tmp_path: Path) -> None:
    """The scheme is recognised, and no value is read."""
    entries, parts = WHOLE[scheme]
    (leaf,) = CODES & parts.keys()
    dtype, numbers = parts[leaf]
    result = described(tmp_path, entries, parts | {leaf: (dtype, numbers.reshape(-1))})
    assert (result.scheme, result.reads) == (scheme, False)


def test_the_config_has_another_size(tmp_path: Path) -> None:
    for scheme in [scheme for scheme in WHOLE if scheme != "HQQ"]:
        for side in ["vocab_size", "hidden_size"]:
            with in_case(scheme, side):
                folder = fresh(tmp_path)
                entries, parts = WHOLE[scheme]
                result = described(folder, {**entries, side: 96}, parts)
                [fault] = result.faults
                assert fault.kind == FaultKind.SHAPE
                assert {name.removeprefix("lm_head.") for name in fault.tensors} == CODES & parts.keys()


@pytest.mark.parametrize("bits", [3, 5, 6])
def test_packings_with_and_without_gaps(bits: int, tmp_path: Path) -> None:
    """The width tells the packing. If both have one width, tieconv does not compare the values."""
    for packed, columns, known in ((12 * bits // 3, 128, True), (-(-8 * bits // 32), 8, False)):
        parts = {
            "weight_packed": stored("I32", ROWS, packed),
            "weight_scale": stored("BF16", ROWS, 1),
            "weight_shape": ("I64", np.array([ROWS, columns], "<i8")),
        }
        result = described(tmp_path / str(columns), {**ct(bits), "hidden_size": columns}, parts)
        assert not result.faults
        assert result.reads is known or packed != -(-columns // (32 // bits))


def reason(folder: Path, leaf: str, part: Tensor) -> str:
    """Why the values of a GPTQ head with this part are not compared."""
    entries, parts = WHOLE["GPTQ v1"]
    return _relation(folder, entries, parts | {leaf: part})


def test_types_that_no_scheme_has_are_not_read(tmp_path: Path) -> None:
    floats = stored("F32", COLUMNS // 8, ROWS)
    expected = "lm_head.qweight is of type F32, which the scheme does not have"
    assert reason(tmp_path, "qweight", floats) == expected


def test_a_zero_point_of_gptq_v1_that_overflows(tmp_path: Path) -> None:
    """A zero of 0 is stored as 15, and loaders read 0 or 16: no value is claimed."""
    assert "overflows" in reason(tmp_path, "qzeros", stored("I32", COLUMNS // 32, ROWS // 8, fill=-1))


def test_a_group_without_scales(tmp_path: Path) -> None:
    index = "I32", np.arange(COLUMNS, dtype="<i4")
    assert reason(tmp_path, "g_idx", index) == "its g_idx has a group without scales"


@pytest.mark.parametrize(
    ("leaf", "part", "expected"),
    [
        ("weight_g_idx", ("I32", np.zeros(COLUMNS + 1, "<i4")), "its weight_g_idx does not fit the scales"),
        ("weight_g_idx", ("I32", np.full(COLUMNS, 4, "<i4")), "its weight_g_idx does not fit the scales"),
        ("weight_g_idx", ("I32", np.full(COLUMNS, -1, "<i4")), "its weight_g_idx does not fit the scales"),
    ],
)
def test_groups_of_columns_that_do_not_exist(leaf: str, part: Tensor, expected: str, tmp_path: Path) -> None:
    entries, parts = WHOLE["compressed-tensors pack-quantized"]
    assert _relation(tmp_path, entries, parts | {leaf: part}) == expected


@pytest.mark.parametrize("scale", [stored("F32", 2), stored("F32", 1, fill=0)])
def test_a_global_scale_that_divides_nothing(scale: Tensor, tmp_path: Path) -> None:
    entries, parts = WHOLE["compressed-tensors nvfp4-pack"]
    reason = _relation(tmp_path, entries, parts | {"weight_global_scale": scale})
    assert reason == "its global scale is not one number other than 0"


def _relation(folder: Path, entries: dict[str, object], parts: Parts) -> str:
    embedding = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}
    tables = inspect(save(folder, config(ROWS, COLUMNS, **entries), embedding | under("lm_head", parts))).quantised
    assert tables is not None
    assert tables.relation is not None
    return tables.relation.reason


def test_parts_of_an_unknown_role(tmp_path: Path) -> None:
    """One part that no scheme explains: nothing is broken, missing, equal or a copy, and no verb abandons the head."""
    codes, half = np.zeros((32, 32), "|u1"), np.ones((32, 64), "<f2")
    heads: dict[str, tuple[str, dict[str, np.ndarray]]] = {
        "ModelOpt AWQ": ("modelopt", {"weight": codes, "weight_scale": half[:, :1], "pre_quant_scale": half[0]}),
        "ModelOpt AWQ, folded": ("modelopt", {"weight": codes, "weight_scale": half[:, :1], "weight_scale_2": half[0]}),
        "EETQ": ("eetq", {"weight": codes.astype("|i1"), "weight_scales": half[0]}),
        "VPTQ": ("vptq", {"centroids.weight": half, "indices": codes, "weight_scale": half[0], "weight_bias": half[0]}),
        "SpQR": ("spqr", {"dense_weights": codes, "row_offsets": codes, "col_vals": codes}),
        "MXFP4 of other names": ("mxfp4", {"weight_blocks": codes, "weight_scales": codes}),
        "HQQ's own file": ("hqq", {"W_q": codes, "meta.scale": half[0], "meta.zero": half[0], "meta.axis": half[0]}),
        "a float with codes": ("", {"weight": half, "outlier_rows": codes[0]}),
        "a float with the scale of its input": ("modelopt", {"weight": half, "pre_quant_scale": half[0]}),
    }
    for case, (method, parts) in heads.items():
        entries = {"quantization_config": {"quant_method": method}} if method else {}
        stored_parts = {leaf: tensor(part) for leaf, part in parts.items()}
        source = model(tmp_path / case, [stored_parts, stored_parts].__getitem__, entries, False, "fq")
        inspection = tieconv.inspect(source)
        assert inspection.quantised is not None, case
        (head,) = inspection.quantised.matrices
        assert (head.scheme, head.faults, head.reads) == ("", (), False), case
        assert inspection.quantised.relation is None or str(inspection.quantised.relation.state) == "unread", case
        assert [finding.rule for finding in inspection.findings if finding.level == "error"] == [], case
        for plan in (tieconv.plan_retie, tieconv.plan_untie, partial(tieconv.plan_set_tie, "true")):
            with pytest.raises(RefusedError):
                plan(source)


def test_what_lies_beside_a_float_embedding(tmp_path: Path) -> None:
    """A stray vector of floats hides no head that differs. What codes do is not known, and a warning says so."""
    tables = {"model.embed_tokens.weight": stored("F32", ROWS, COLUMNS)}
    both = tables | {"lm_head.weight": stored("F32", ROWS, COLUMNS, fill=2)}
    for name in ("model.embed_tokens.embed_scale", "lm_head.norm", "lm_head.weight.extra"):
        inspection = inspect(save(tmp_path / name, config(ROWS, COLUMNS, True), both | {name: stored("F32", COLUMNS)}))
        assert inspection.quantised is None
        assert "TIE001 error" in _rules(inspection), name
    codes = {"model.embed_tokens.outlier_rows": stored("U8", COLUMNS)}
    for case, tensors in {"tied": tables, "both": both, "lost": {}}.items():
        inspection = inspect(save(tmp_path / case, config(ROWS, COLUMNS, True), tensors | codes))
        assert _rules(inspection) == ["TIE012 warning"], case


def _rules(inspection: Inspection) -> list[str]:
    return [f"{finding.rule} {finding.level}" for finding in inspection.findings if finding.level != "note"]
