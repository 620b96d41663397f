"""The values of each scheme are those of its own package. ``fixtures/quantised_matrices.py`` wrote the data."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inspection.quantised.stored_models import DATA, Array, Tensor, matrix, save, tables, values
from tests.loops import case, fresh
from tieconv import check, inspect
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.quantised_matrix import PairState, Verdict

FILES = sorted(DATA.glob("*.safetensors"))
BF16 = {"ct_packed_4", "ct_packed_8_rows", "ct_fp8"}
"""The package computes these in BF16, so its values are ours rounded to BF16."""


def header(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        document: dict[str, Any] = json.loads(file.read(length))
    return document


def expected(path: Path) -> Array:
    entry = header(path)["expected"]
    start, end = entry["data_offsets"]
    data = path.read_bytes()
    offset = 8 + struct.unpack("<Q", data[:8])[0]
    return np.frombuffer(data[offset + start : offset + end], "<f4").reshape(entry["shape"])


@pytest.fixture(params=FILES, ids=[path.stem for path in FILES])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    path: Path = request.param
    shutil.copy(path, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(header(path)["__metadata__"]["config"], "utf-8")
    return path, tmp_path


def rounded(values: Array) -> Array:
    """Values rounded to BF16, ties to even."""
    bits = values.astype("<f4").view("<u4")
    bits = bits + 0x7FFF + (bits >> 16 & 1)
    return (bits & 0xFFFF0000).astype("<u4").view("<f4")


def test_every_value_is_the_package_s(stored: tuple[Path, Path]) -> None:
    path, folder = stored
    computed, reference = values(folder), expected(path)
    if path.stem in BF16:
        np.testing.assert_array_equal(rounded(computed), reference)
    elif path.stem == "ct_nvfp4":  # compressed-tensors divides in BF16
        np.testing.assert_allclose(computed, reference, rtol=2**-7)
    else:
        np.testing.assert_allclose(computed, reference, rtol=2**-22, atol=2**-21)


def test_the_head_is_one_matrix_and_a_copy_of_the_embedding(stored: tuple[Path, Path]) -> None:
    inspection = inspect(stored[1])
    described = matrix(inspection)
    assert described.shape == (24, 64)
    assert described.nbytes == sum(part.nbytes for part in described.parts)
    assert {part.name for part in described.parts} >= {
        name for name in inspection.checkpoint.tensors if name.startswith("lm_head") and "weight_format" not in name
    }
    relation = tables(inspection).relation
    assert relation is not None
    assert relation.state is PairState.COPY
    assert relation.figures is not None
    assert relation.figures.of_bound is not None
    assert 0.5 < relation.figures.of_bound <= 1
    assert inspection.head.output_head is not None
    assert inspection.head.output_head.tied_to is None


def test_a_healthy_model_has_no_finding(stored: tuple[Path, Path]) -> None:
    report = check(stored[1])
    assert [finding.rule for model in report.models for finding in model.findings] == []


def test_the_config_s_word_is_read(stored: tuple[Path, Path]) -> None:
    decided = matrix(inspect(stored[1])).config
    silent = stored[0].stem.startswith("mlx")
    assert decided.verdict is (Verdict.UNDECIDED if silent else Verdict.QUANTISED)


def renamed(path: Path, module: str) -> dict[str, Tensor]:
    """The parts of the head under the name of another module."""
    entries, data = header(path), path.read_bytes()
    offset = 8 + struct.unpack("<Q", data[:8])[0]
    tensors: dict[str, Tensor] = {}
    for name, entry in entries.items():
        if name.startswith("lm_head"):
            start, end = (offset + byte for byte in entry["data_offsets"])
            width = (end - start) // max(int(np.prod(entry["shape"])), 1)
            numbers = np.frombuffer(data[start:end], f"<u{width}").reshape(entry["shape"])
            tensors[name.replace("lm_head", module)] = entry["dtype"], numbers
    return tensors


STATES = ("tied, the embedding quantised", "untied, both quantised", "the body alone quantised")


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_healthy_states_have_no_error(path: Path, tmp_path: Path) -> None:
    """The recipes of quantisers leave more states than a float embedding with a quantised head."""
    for state in STATES:
        with case(state):
            folder = fresh(tmp_path)
            text = header(path)["__metadata__"]["config"].replace("re:.*lm_head$", "re:.*(lm_head|embed_tokens)$")
            if state == STATES[2]:
                text = text.replace("re:.*(lm_head|embed_tokens)$", "re:.*up_proj$").replace('["none"]', '["lm_head"]')
            entries = json.loads(text) | {"tie_word_embeddings": state != STATES[1]}
            tensors = renamed(path, "model.embed_tokens")
            if state == STATES[1]:
                tensors |= renamed(path, "lm_head")
            if state == STATES[2]:
                values = np.ones((24, 64), "<f4")
                tensors = {"model.embed_tokens.weight": ("F32", values), "model.norm.weight": ("F32", values[0])}
                tensors |= renamed(path, "model.layers.0.mlp.up_proj")
            inspection = inspect(save(folder, entries, tensors))
            scales_are_lost = state == STATES[0] and path.stem.startswith("ct_fp8")  # measured in transformers 5.23
            errors = [finding.rule for finding in inspection.findings if finding.level is Level.ERROR]
            assert errors == ["QNT010"] * scales_are_lost
            if state == STATES[2]:
                assert inspection.quantised is None
                return
            assert matrix(inspection, "embedding").faults == ()
            relation = tables(inspection).relation
            assert relation is None or relation.state is PairState.EQUAL
            assert (relation is None) is (state == STATES[0])


def test_the_data_names_its_package() -> None:
    packages = {header(path)["__metadata__"]["package"].split(" ")[0] for path in FILES}
    assert packages == {
        "compressed-tensors", "bitsandbytes", "mlx", "torchao", "optimum-quanto", "transformers",
    }  # fmt: skip
