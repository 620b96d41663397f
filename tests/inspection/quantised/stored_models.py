"""Model directories with tensors of any type, and the float64 values that tieconv computes from them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv import inspect
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import QuantisedMatrix, QuantisedTables
from tieconv.sources.local import open_files

Array = npt.NDArray[Any]
Tensor = tuple[str, Array]
"""A type of safetensors, and the numbers or the bits."""

DATA = Path(__file__).parent / "data"
EMBED, HEAD = "model.embed_tokens", "lm_head"
PLAIN = {"<f4": "F32", "<f2": "F16", "<f8": "F64", "|i1": "I8", "|u1": "U8", "<i4": "I32", "<u4": "U32", "<i8": "I64"}


def tensor(numbers: Array) -> Tensor:
    """The numbers with the type of the same name."""
    return PLAIN[numbers.dtype.str], numbers


def bf16(values: Array) -> Tensor:
    """The values cut to BF16."""
    return "BF16", (values.astype("<f4").view("<u4") >> 16).astype("<u2")


def config(rows: int, columns: int, tied: bool = False, **entries: object) -> dict[str, object]:
    """The config of a Llama with this embedding."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": rows,
        "hidden_size": columns,
        "tie_word_embeddings": tied,
        **entries,
    }


def save(folder: Path, config: Mapping[str, object], tensors: Mapping[str, Tensor]) -> Path:
    """Write a model directory."""
    folder.mkdir(parents=True, exist_ok=True)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, numbers) in tensors.items():
        raw = np.ascontiguousarray(numbers).tobytes()
        header[name] = {"dtype": dtype, "shape": list(numbers.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    return folder


def tables(inspection: Inspection) -> QuantisedTables:
    """The quantised tables of an inspection that has some."""
    assert inspection.quantised is not None
    return inspection.quantised


def matrix(inspection: Inspection, role: str = "head") -> QuantisedMatrix:
    """The quantised matrix in a role."""
    described = tables(inspection).of(role)
    assert described is not None
    return described


def values(folder: Path, role: str = "head") -> Array:
    """The dequantised matrix, [V, H]."""
    from tieconv.inspection.quantised.row_decoders import QuantisedRows, row_blocks

    inspection = inspect(folder)
    with open_files(str(folder)) as files:
        described = matrix(inspection, role)
        rows = QuantisedRows(described, inspection.checkpoint.tensors, files)
        blocks = [rows.block(start, stop).values for start, stop in row_blocks(described.shape or (0, 0))]
    return np.concatenate(blocks) / rows.divisor


def under(module: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts under the name of a module."""
    return {f"{module}.{leaf}": stored for leaf, stored in parts.items()}
