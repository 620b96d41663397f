"""Dedup and convert of a model with quantised tables: all parts of a matrix stay together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import tieconv
from tests.inspection.quantised.stored_models import tensor
from tests.inspection.quantised.table_models import (
    AWQ,
    BNB,
    GPTQ,
    MLX_CONFIG,
    NAMED,
    awq,
    bitsandbytes,
    equal,
    gptq,
    mlx,
    model,
    packed,
)
from tieconv.checkpoint.quantised_matrix import PairState
from tieconv.reporters.text.diff_text import render

SCHEMES = ((packed, NAMED), (gptq, GPTQ), (awq, AWQ), (bitsandbytes, BNB), (mlx, MLX_CONFIG))


KEYS = ("quantization", "quantization_config")


def names(folder: Path) -> set[str]:
    return set(tieconv.inspect(folder).checkpoint.tensors)


@pytest.mark.parametrize(("make", "entries"), SCHEMES)
@pytest.mark.parametrize("tied", [True, False])
def test_dedup_never_drops_one_part(make: Any, entries: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    """Codes of the head that equal the embedding's stay, because their scales stay too."""
    source = model(tmp_path / "m", equal(make), entries, tied, "qq")
    plan = tieconv.plan_dedup(source)
    assert plan.plan.changes_nothing
    if make in (mlx, bitsandbytes) and tied:
        assert any("tieconv retie drops all parts together" in note for note in plan.plan.notes)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("make", "entries"), SCHEMES[:-1])
@pytest.mark.parametrize(("tied", "pair"), [(True, "q0"), (False, "qq"), (False, "fq"), (False, "qf")])
def test_convert_keeps_all_parts(make: Any, entries: dict[str, Any], tied: bool, pair: str, tmp_path: Path) -> None:
    """To torch and back, and into shards: the same names, the same relation, the same function."""
    source = model(tmp_path / "m", equal(make), entries, tied, pair)
    tieconv.plan_convert("torch", source).execute(tmp_path / "torch")
    tieconv.plan_convert("safetensors", tmp_path / "torch", max_shard_size=3000).execute(tmp_path / "back")
    for folder in (tmp_path / "torch", tmp_path / "back"):
        assert names(folder) == names(source)
        before, after = tieconv.inspect(source).quantised, tieconv.inspect(folder).quantised
        assert before is not None and after is not None and before.relation == after.relation
        assert [matrix.shape for matrix in before.matrices] == [matrix.shape for matrix in after.matrices]
        assert tieconv.diff(source, folder).same_function


@pytest.mark.parametrize("pair", ["q0", "qq"])
def test_no_program_reads_a_torch_file_with_codes_of_mlx(pair: str, tmp_path: Path) -> None:
    """`mlx_lm.convert -q` writes such models. Shards of safetensors stay the same function."""
    source = model(tmp_path / "m", equal(mlx), MLX_CONFIG, pair == "q0", pair)
    with pytest.raises(tieconv.RefusedError, match="mlx-lm reads safetensors files, not torch"):
        tieconv.plan_convert("torch", source)
    tieconv.plan_convert("safetensors", source, max_shard_size=3000).execute(tmp_path / "shards")
    assert tieconv.diff(source, tmp_path / "shards").same_function


def test_the_metadata_of_torchao_stays(tmp_path: Path) -> None:
    """torchao builds a tensor from its parts and the metadata. Shards keep it, and a torch file cannot."""
    source = model(tmp_path / "m", equal(packed), NAMED, False, "fq")
    (path,) = source.glob("*.safetensors")
    with safe_open(path, "np") as file:
        save_file({key: file.get_tensor(key) for key in file.keys()}, path, {"tensor_names": "[]"})  # noqa: SIM118
    with pytest.raises(tieconv.RefusedError, match="torchao builds these tensors from the metadata"):
        tieconv.plan_convert("torch", source)
    tieconv.plan_convert("safetensors", source, max_shard_size=3000).execute(tmp_path / "shards")
    assert all(
        file.metadata == {"tensor_names": "[]"} for file in tieconv.inspect(tmp_path / "shards").checkpoint.files
    )


def test_diff_after_untie_of_a_model_with_an_entry_for_each_module(tmp_path: Path) -> None:
    """mlx-lm writes entries for mixed bits. The entry of the new head repeats the embedding's, and changes nothing."""
    entry = {"group_size": 64, "bits": 4, "mode": "affine"}
    mixed = {key: MLX_CONFIG["quantization"] | {"model.embed_tokens": entry} for key in KEYS}
    source = model(tmp_path / "m", equal(mlx), mixed, True, "q0")
    tieconv.plan_untie(source).execute(tmp_path / "untied")
    assert tieconv.diff(source, tmp_path / "untied").same_function
    config = json.loads((tmp_path / "untied" / "config.json").read_text())
    assert all(config[key]["lm_head"] == entry for key in KEYS)
    (tmp_path / "untied" / "config.json").write_text(json.dumps(config | {KEYS[0]: config[KEYS[0]] | {"bits": 8}}))
    assert not tieconv.diff(source, tmp_path / "untied").same_function


class TestDiff:
    """`diff` compares the matrix, and its report lists the parts in one row."""

    def test_other_scales(self, tmp_path: Path) -> None:
        def other_scales(number: int) -> Any:
            return packed(number) | {"weight_scale": packed(number + 5)["weight_scale"]}

        source = model(tmp_path / "a", packed, NAMED, False, "fq")
        comparison = tieconv.diff(source, model(tmp_path / "b", other_scales, NAMED, False, "fq"))
        assert not comparison.same_function
        (matrix,) = comparison.matrices
        assert (matrix.name, matrix.parts) == ("lm_head.weight", ("lm_head.weight_scale",))
        assert matrix.relation is not None
        assert (matrix.relation.state, matrix.relation.differing) == (PairState.DIFFERENT, ("scales",))
        text = render(comparison)
        assert "lm_head.weight  compressed-tensors pack-quantized, 4 bits: different; differing parts: scales" in text
        assert "lm_head.weight_scale" not in text.partition("A and B differ")[0]

    def test_equal_after_dequantising(self, tmp_path: Path) -> None:
        """Codes counted from the other end, with scales of the other sign."""

        def exact(number: int) -> Any:
            scales = np.full((32, 1), 0.25, "<f2")
            return mlx(number) | {"scales": tensor(scales), "biases": tensor(-scales)}

        def exact_turned(number: int) -> Any:
            parts = exact(number)
            words, scales, biases = (parts[leaf][1] for leaf in ("weight", "scales", "biases"))
            return {"weight": tensor(~words), "scales": tensor(-scales), "biases": tensor(biases + 15 * scales)}

        source = model(tmp_path / "a", exact, MLX_CONFIG, True, "q0")
        comparison = tieconv.diff(source, model(tmp_path / "b", exact_turned, MLX_CONFIG, True, "q0"))
        (matrix,) = comparison.matrices
        assert matrix.relation is not None and matrix.relation.state is PairState.EQUAL_VALUES
        assert "equal after dequantising" in render(comparison)

    def test_a_float_matrix_and_its_codes(self, tmp_path: Path) -> None:
        source = model(tmp_path / "a", packed, NAMED, False, "ff")
        comparison = tieconv.diff(source, model(tmp_path / "b", packed, NAMED, False, "fq"))
        (matrix,) = comparison.matrices
        assert matrix.a is not None and matrix.b is not None and matrix.relation is not None
        assert (matrix.a.scheme, matrix.b.bits, matrix.relation.state) == ("F32", 4, PairState.DIFFERENT)
        assert "F32 in A, compressed-tensors pack-quantized, 4 bits in B: different" in render(comparison)

    def test_a_matrix_of_one_model(self, tmp_path: Path) -> None:
        source = model(tmp_path / "tied", packed, NAMED, True, "q0")
        tieconv.plan_untie(source).execute(tmp_path / "untied")
        comparison = tieconv.diff(source, tmp_path / "untied")
        (matrix,) = comparison.matrices
        assert matrix.relation is None and matrix.a is None
        assert "lm_head.weight  only in B: compressed-tensors pack-quantized, 4 bits in 3 parts" in render(comparison)
