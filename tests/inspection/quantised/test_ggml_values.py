"""The values of ggml's block types are those of the gguf package, for any bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from fixtures.gguf_bytes import ARCHITECTURE
from tests.inspection.quantised.stored_models import tables
from tests.inspection.stored import Memory
from tests.lazy import gguf
from tieconv import inspect
from tieconv.checkpoint.finding import Level
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.quantised_matrix import PairState
from tieconv.inspection.quantised.block_schemes import COMPUTED, StoredModule, recognise_ggml_blocks as recognise
from tieconv.inspection.quantised.row_decoders import QuantisedRows
from tieconv.inspection.quantised.survey_quantised import relate_tables

HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
}  # fmt: skip
"""Where each block has a float16."""


def module(record: object, role: str = "head") -> StoredModule:
    return StoredModule("output", role, {"weight": record}, lambda stored: None)  # type: ignore[dict-item]


@pytest.mark.parametrize("kind", sorted(COMPUTED))
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_any_block(kind: str, seed: int) -> None:
    number = gguf.GGMLQuantizationType[kind]
    elements, width = gguf.GGML_QUANT_SIZES[number]
    generator = np.random.default_rng(seed)
    rows, columns = 3, 512
    blocks = generator.integers(0, 256, (rows * columns // elements, width), dtype="u1")
    for offset in HALVES[kind]:
        scales = generator.uniform(-2, 2, len(blocks)).astype("<f2")
        blocks[:, offset : offset + 2] = scales.view("u1").reshape(-1, 2)
    if kind == "MXFP4":
        blocks[:, 0] = generator.integers(100, 150, len(blocks))
    raw = blocks.reshape(rows, -1)
    memory = Memory()
    record = memory.store("output.weight", kind, raw.tobytes(), (rows, columns))
    matrix = recognise(module(record))
    assert matrix is not None
    computed = QuantisedRows(matrix, {"output.weight": record}, memory).block(0, rows).values
    reference = gguf.quants.dequantize(raw, number)
    np.testing.assert_allclose(computed, reference, rtol=2**-22, atol=np.abs(reference).max() * 2**-22)


def write(path: Path, tensors: dict[str, tuple[np.ndarray[Any, Any], str]]) -> Path:
    """A GGUF file of quantised and float matrices."""
    writer = gguf.GGUFWriter(str(path), ARCHITECTURE)
    for name, (array, kind) in tensors.items():
        raw = array if kind == "F32" else gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(name, raw, raw_dtype=None if kind == "F32" else gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


VALUES = np.random.default_rng(0).standard_normal((64, 64)).astype("f4")
FILES: list[tuple[str, str, PairState]] = [
    ("Q8_0", "Q8_0", PairState.EQUAL),
    ("F32", "Q8_0", PairState.COPY),
    ("Q4_0", "F32", PairState.COPY),
    ("Q4_0", "Q8_0", PairState.DIFFERENT),
]


@pytest.mark.parametrize(("embedding", "head", "state"), FILES)
def test_a_file(embedding: str, head: str, state: PairState, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", {"token_embd.weight": (VALUES, embedding), "output.weight": (VALUES, head)})
    inspection = inspect(path)
    relation = tables(inspection).relation
    assert relation is not None
    assert relation.state is state
    quantised = [kind for kind in (embedding, head) if kind != "F32"]
    assert [entry.scheme for entry in tables(inspection).matrices] == [f"ggml {kind}" for kind in quantised]
    assert {entry.shape for entry in tables(inspection).matrices} == {(64, 64)}
    assert [finding for finding in inspection.findings if finding.level is Level.ERROR] == []


def test_a_tied_file(tmp_path: Path) -> None:
    inspection = inspect(write(tmp_path / "m.gguf", {"token_embd.weight": (VALUES, "Q4_0")}))
    assert tables(inspection).relation is None
    assert inspection.config.verdict == "tied"
    assert inspection.config.effect.endswith("The head computes with its type, Q4_0.")


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"])
def test_what_the_package_quantises_is_a_copy(kind: str) -> None:
    values = np.random.default_rng(0).standard_normal((64, 256)).astype("<f4")
    memory = Memory()
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    head = memory.store("output.weight", kind, raw.tobytes(), values.shape)
    embedding = memory.store("token_embd.weight", "F32", values)
    tensors = {"output.weight": head, "token_embd.weight": embedding}
    matrix = recognise(module(head))
    assert matrix is not None
    relation = relate_tables(embedding, matrix, tensors, memory, Depth.CANDIDATES)
    assert relation.state is PairState.COPY
