"""Tiny Llamas whose embedding and head are float, quantised or absent, in each scheme."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.inspection.quantised.stored_models import EMBED, HEAD, Tensor, config, save, tensor, under

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
