"""ModelOpt's NVFP4 and FP8: the parts, the values by a formula, and the file that lists the modules it leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tieconv
from tests.inspection.quantised.stored_models import EMBED, HEAD, Tensor, config, matrix, save, tensor, under, values
from tieconv.checkpoint.quantised_matrix import FaultKind, PairState, Verdict
from tieconv.loaders.registry import consumer
from tieconv.loaders.release_tables import quantised_cells

ROWS, WIDTH = 32, 64
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
EMBEDDING = {f"{EMBED}.weight": tensor(np.ones((ROWS, WIDTH), "<f4"))}


def nvfp4(seed: int = 0) -> dict[str, Tensor]:
    random = np.random.default_rng(seed)
    return {
        "weight": tensor(random.integers(0, 256, (ROWS, WIDTH // 2)).astype("|u1")),
        "weight_scale": ("F8_E4M3", np.full((ROWS, WIDTH // 16), 0x40, "|u1")),  # 2.0
        "weight_scale_2": tensor(np.array(0.25, "<f4")),
        "input_scale": tensor(np.array(1, "<f4")),
    }


def fp8(seed: int = 0) -> dict[str, Tensor]:
    codes = np.random.default_rng(seed).integers(0, 0x70, (ROWS, WIDTH)).astype("|u1")
    scales = {"weight_scale": tensor(np.array(0.5, "<f4")), "input_scale": tensor(np.array(1, "<f4"))}
    return {"weight": ("F8_E4M3", codes), **scales}


def described(
    folder: Path, algorithm: str, excluded: list[str], tensors: dict[str, Tensor], tied: bool = False
) -> Path:
    """A model with ModelOpt's own file beside the config."""
    save(folder, config(ROWS, WIDTH, tied), tensors)
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": "FP8", "exclude_modules": excluded}
    text = json.dumps({"producer": {"name": "modelopt"}, "quantization": quantization})
    (folder / "hf_quant_config.json").write_text(text)
    return folder


def test_nvfp4_is_one_matrix(tmp_path: Path) -> None:
    folder = described(tmp_path, "NVFP4", [], EMBEDDING | under(HEAD, nvfp4()))
    head = matrix(tieconv.inspect(folder))
    assert (head.scheme, head.bits, head.block, head.shape) == ("ModelOpt NVFP4", 4, (1, 16), (ROWS, WIDTH))
    assert [part.role for part in head.parts] == ["codes", "scales", "global_scale", "input_scale"]
    codes = nvfp4()["weight"][1]
    expected = np.stack([E2M1[codes & 15], E2M1[codes >> 4]], -1).reshape(ROWS, WIDTH) * 2.0 * 0.25
    np.testing.assert_array_equal(values(folder), expected)


def test_fp8_is_not_one_of_compressed_tensors(tmp_path: Path) -> None:
    """The parts look alike, but no loader's answer for compressed-tensors applies."""
    inspection = tieconv.inspect(described(tmp_path, "FP8", [], under(EMBED, fp8()), tied=True))
    assert matrix(inspection, "embedding").scheme == "ModelOpt FP8"
    assert {str(consumer(*loader).predict(inspection).outcome) for loader in quantised_cells()} == {"unknown"}


@pytest.mark.parametrize(
    ("excluded", "verdict"),
    [
        (["lm_head"], Verdict.LEFT_OUT),
        (["model.layers.0*", "lm*"], Verdict.LEFT_OUT),
        (["model.layers.0*"], Verdict.QUANTISED),
    ],
)
def test_which_modules_are_left_out(excluded: list[str], verdict: Verdict, tmp_path: Path) -> None:
    inspection = tieconv.inspect(described(tmp_path, "NVFP4", excluded, EMBEDDING, tied=True))
    assert inspection.quantisation is not None
    assert (inspection.quantisation.method, inspection.quantisation.head.verdict) == ("modelopt", verdict)
    assert inspection.quantisation.path == "hf_quant_config.json.quantization"


def test_the_config_may_hold_it_too(tmp_path: Path) -> None:
    entries: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}
    stored = EMBEDDING | under(HEAD, nvfp4())
    inspection = tieconv.inspect(save(tmp_path, config(ROWS, WIDTH, quantization_config=entries), stored))
    assert matrix(inspection).config.verdict is Verdict.LEFT_OUT
    assert "QNT008" in [finding.rule for finding in inspection.findings]


def test_equal_parts(tmp_path: Path) -> None:
    """Equality is proved part by part, and no verb edits ModelOpt's file."""
    folder = described(tmp_path / "m", "NVFP4", [], under(EMBED, nvfp4()) | under(HEAD, nvfp4()))
    inspection = tieconv.inspect(folder)
    assert inspection.quantised is not None and inspection.quantised.relation is not None
    assert inspection.quantised.relation.state is PairState.EQUAL
    with pytest.raises(tieconv.RefusedError) as caught:
        tieconv.plan_retie(folder)
    assert caught.value.code == "quantised.config"


def test_a_missing_scale(tmp_path: Path) -> None:
    parts = {leaf: part for leaf, part in nvfp4().items() if leaf != "weight_scale_2"}
    head = matrix(tieconv.inspect(described(tmp_path, "NVFP4", [], EMBEDDING | under(HEAD, parts))))
    assert [fault.kind for fault in head.faults] == [FaultKind.NO_SCALES]
