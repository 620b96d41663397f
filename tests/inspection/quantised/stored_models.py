"""Model directories with tensors of any type, and tiny Llamas with quantised tables in each scheme."""

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


ROWS, WIDTH = 32, 64
Parts = dict[str, Tensor]


def packed(seed: int) -> Parts:
    random = np.random.default_rng(seed)
    words = random.integers(-(2**31), 2**31, (ROWS, WIDTH // 8)).astype("<i4")
    scales = random.uniform(0.1, 1, (ROWS, 2)).astype("<f4")
    shape = np.array([ROWS, WIDTH], "<i8")
    return {"weight_packed": tensor(words), "weight_scale": tensor(scales), "weight_shape": tensor(shape)}


def gptq(seed: int) -> Parts:
    random = np.random.default_rng(seed)
    return {
        "qweight": tensor(random.integers(-(2**31), 2**31, (WIDTH // 8, ROWS)).astype("<i4")),
        "qzeros": tensor(np.full((2, ROWS // 8), 0x77777777, "<i4")),
        "scales": tensor(random.uniform(0.1, 1, (2, ROWS)).astype("<f2")),
        "g_idx": tensor((np.arange(WIDTH) // 32).astype("<i4")),
    }


def awq(seed: int) -> Parts:
    random = np.random.default_rng(seed)
    return {
        "qweight": tensor(random.integers(-(2**31), 2**31, (WIDTH, ROWS // 8)).astype("<i4")),
        "qzeros": tensor(random.integers(-(2**31), 2**31, (2, ROWS // 8)).astype("<i4")),
        "scales": tensor(random.uniform(0.1, 1, (2, ROWS)).astype("<f2")),
    }


def fp8(seed: int) -> Parts:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 0x70, (ROWS, WIDTH)).astype("u1")
    return {"weight": ("F8_E4M3", codes), "weight_scale": tensor(random.uniform(0.1, 1, (ROWS, 1)).astype("<f4"))}


def mlx(seed: int) -> Parts:
    random = np.random.default_rng(seed)
    return {
        "weight": tensor(random.integers(0, 2**32, (ROWS, WIDTH // 8)).astype("<u4")),
        "scales": tensor(random.uniform(0.1, 1, (ROWS, 1)).astype("<f2")),
        "biases": tensor(random.uniform(0.1, 1, (ROWS, 1)).astype("<f2")),
    }


def compressed(*targets: str) -> dict[str, Any]:
    weights = {"num_bits": 4, "group_size": 32, "symmetric": True, "strategy": "group", "type": "int"}
    group = {"targets": list(targets), "weights": weights}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": []}
    return {"quantization_config": {**settings, "config_groups": {"g": group}}}


def in_floats(*targets: str) -> dict[str, Any]:
    group = {
        "targets": list(targets),
        "weights": {"num_bits": 8, "symmetric": True, "strategy": "channel", "type": "float"},
    }
    settings = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": []}
    return {"quantization_config": {**settings, "config_groups": {"g": group}}}


def in_groups(method: str, **entries: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 32, "sym": True, **entries}}


NAMED = compressed("re:.*lm_head$", "re:.*embed_tokens$")
BY_CLASS = compressed("Linear", "Embedding")
GPTQ, AWQ = in_groups("gptq", lm_head=True), in_groups("awq", lm_head=True)
UNLISTED, UNLISTED_GPTQ = in_groups("awq"), in_groups("gptq")
MLX_CONFIG = {"quantization": {"group_size": 64, "bits": 4, "mode": "affine"}}
MLX_SIZES: dict[str, Any] = {
    **MLX_CONFIG,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "mlp_bias": False,
    "attention_bias": False,
    "rope_theta": 10000.0,
    "num_key_value_heads": 2,
}
"""The same with what mlx-lm's class of Helium needs."""


def model(folder: Path, make: Any, entries: dict[str, Any], tied: bool, pair: str, *, kind: str = "Llama") -> Path:
    tensors: dict[str, Tensor] = {"model.norm.weight": tensor(np.ones(WIDTH, "<f4"))}
    for number, (module, form) in enumerate(zip((EMBED, HEAD), pair, strict=True)):
        values = np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype("<f4")
        parts = {"q": make(number), "f": {"weight": tensor(values)}, "0": {}}[form]
        tensors |= under(module, parts)
    settings = config(ROWS, WIDTH, tied, **entries) | {"architectures": [f"{kind}ForCausalLM"]}
    sizes = {"intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1, "rms_norm_eps": 1e-6}
    return save(folder, settings | sizes | {"model_type": kind.lower()}, tensors)


def bitsandbytes(seed: int) -> Parts:
    random = np.random.default_rng(seed)
    state = json.dumps({"blocksize": 64, "dtype": "float32", "quant_type": "nf4", "shape": [ROWS, WIDTH]}).encode()
    return {
        "weight": tensor(random.integers(0, 256, (ROWS * WIDTH // 2, 1)).astype("|u1")),
        "weight.absmax": tensor(random.uniform(0.1, 1, ROWS).astype("<f4")),
        "weight.quant_map": tensor(np.linspace(-1, 1, 16).astype("<f4")),
        "weight.quant_state.bitsandbytes__nf4": tensor(np.frombuffer(state, "|u1")),
    }


BNB = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": ["none"]}}


def equal(make: Any) -> Any:
    """A maker that gives both tables the same parts."""
    return lambda number: make(0)
