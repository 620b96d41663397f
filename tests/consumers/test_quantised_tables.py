"""Quantised embeddings and heads: each loader's answer is the one that was measured, and every other is unknown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.inspection.quantised.stored_models import EMBED, HEAD, Tensor, config, save, tensor, under
from tieconv import inspect
from tieconv.loaders.evidence.quantised_cells import CELLS, LLAMA_CPP, MLX, TRANSFORMERS, VLLM, VLLM_028
from tieconv.loaders.registry import consumer

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


def in_groups(method: str, **entries: Any) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method, "bits": 4, "group_size": 32, "sym": True, **entries}}


def in_floats(*targets: str) -> dict[str, Any]:
    group = {
        "targets": list(targets),
        "weights": {"num_bits": 8, "symmetric": True, "strategy": "channel", "type": "float"},
    }
    settings = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": []}
    return {"quantization_config": {**settings, "config_groups": {"g": group}}}


NAMED = compressed("re:.*lm_head$", "re:.*embed_tokens$")
BY_CLASS = compressed("Linear", "Embedding")
GPTQ, AWQ = in_groups("gptq", lm_head=True), in_groups("awq", lm_head=True)
UNLISTED = in_groups("awq")
MLX_CONFIG = {"quantization": {"group_size": 64, "bits": 4, "mode": "affine"}}
LOADERS = (TRANSFORMERS, VLLM_028, VLLM, LLAMA_CPP, MLX)

# Scheme, config, flag, tables (embedding, head), and the outcomes in the order of LOADERS: tied, untied, random,
# discarded, error or ? for unknown. From the table of measured facts, not from the module.
CASES: tuple[tuple[Any, dict[str, Any], bool, str, str], ...] = (
    (packed, NAMED, True, "fq", "e r u u ?"),
    (packed, NAMED, True, "q0", "e e e t ?"),
    (packed, NAMED, True, "qq", "e e e u ?"),
    (packed, NAMED, True, "qf", "e e ? u ?"),
    (packed, NAMED, False, "fq", "u u u u ?"),
    (packed, NAMED, False, "qq", "e e e u ?"),
    (packed, BY_CLASS, True, "fq", "e d e u ?"),
    (packed, BY_CLASS, False, "fq", "u e e u ?"),
    (fp8, in_floats("re:.*lm_head$", "re:.*embed_tokens$"), True, "q0", "r ? ? t ?"),
    (fp8, in_floats("re:.*embed_tokens$"), True, "q0", "e ? ? t ?"),
    (fp8, in_floats("re:.*lm_head$", "re:.*embed_tokens$"), False, "q0", "e ? ? t ?"),
    (fp8, in_floats("re:.*embed_tokens$"), False, "q0", "r ? ? t ?"),
    (fp8, in_floats("re:.*lm_head$"), False, "fq", "u ? ? u ?"),
    (gptq, GPTQ, True, "fq", "d r u u ?"),
    (gptq, GPTQ, True, "q0", "r e e t ?"),
    (gptq, GPTQ, False, "fq", "r ? u u ?"),
    (gptq, GPTQ, False, "qq", "r e e u ?"),
    (awq, AWQ, True, "fq", "? ? u e e"),
    (awq, AWQ, False, "fq", "? ? u e u"),
    (awq, UNLISTED, True, "fq", "? ? e e e"),
    (mlx, MLX_CONFIG, True, "q0", "? ? ? ? t"),
    (mlx, MLX_CONFIG, True, "fq", "? ? ? ? e"),
    (mlx, MLX_CONFIG, True, "qf", "? ? ? ? d"),
    (mlx, MLX_CONFIG, False, "qq", "? ? ? ? u"),
    (mlx, MLX_CONFIG, False, "q0", "? ? ? ? e"),
)
WORDS = {"t": "tied", "u": "untied", "r": "random", "d": "discarded", "e": "error", "?": "unknown"}


def model(folder: Path, make: Any, entries: dict[str, Any], tied: bool, pair: str, *, kind: str = "Llama") -> Path:
    tensors: dict[str, Tensor] = {"model.norm.weight": tensor(np.ones(WIDTH, "<f4"))}
    for number, (module, form) in enumerate(zip((EMBED, HEAD), pair, strict=True)):
        values = np.random.default_rng(number).standard_normal((ROWS, WIDTH)).astype("<f4")
        parts = {"q": make(number), "f": {"weight": tensor(values)}, "0": {}}[form]
        tensors |= under(module, parts)
    settings = config(ROWS, WIDTH, tied, **entries) | {"architectures": [f"{kind}ForCausalLM"]}
    return save(folder, settings | {"model_type": kind.lower()}, tensors)


@pytest.mark.parametrize(
    ("make", "entries", "tied", "pair", "outcomes"),
    CASES,
    ids=[
        f"{make.__name__}-{number}-{'tied' if tied else 'untied'}-{pair}"
        for number, (make, _, tied, pair, _) in enumerate(CASES)
    ],
)
def test_measured(make: Any, entries: dict[str, Any], tied: bool, pair: str, outcomes: str, tmp_path: Path) -> None:
    """The outcome of each loader for one combination."""
    inspection = inspect(model(tmp_path, make, entries, tied, pair))
    predicted = [consumer(*loader).predict(inspection) for loader in LOADERS]
    assert [str(each.outcome) for each in predicted] == [WORDS[letter] for letter in outcomes.split()]
    stored = {part.name for matrix in inspection.quantised.matrices for part in matrix.parts}
    assert all(set(each.tensors) == stored for each in predicted if str(each.outcome) != "error" and each.tensors)


def test_what_was_not_measured_is_unknown(tmp_path: Path) -> None:
    """Two schemes, another class in vLLM, an older release: no claim is made."""
    mixed = model(tmp_path / "mixed", packed, NAMED, False, "qf")
    assert str(consumer(*VLLM).predict(inspect(mixed)).outcome) == "unknown"
    other = inspect(model(tmp_path / "other", packed, NAMED, True, "q0", kind="Mistral"))
    assert str(consumer(*VLLM).predict(other).outcome) == "unknown"
    assert str(consumer("transformers", "4.57").predict(other).outcome) == "unknown"
    assert str(consumer(*TRANSFORMERS).predict(other).outcome) == "error"


def test_a_broken_matrix_has_no_answer(tmp_path: Path) -> None:
    """Codes without scales: nothing is said about what a loader makes of them."""

    def without_scales(seed: int) -> Parts:
        return {name: part for name, part in packed(seed).items() if name != "weight_scale"}

    inspection = inspect(model(tmp_path, without_scales, NAMED, False, "fq"))
    predicted = consumer(*TRANSFORMERS).predict(inspection)
    assert str(predicted.outcome) == "unknown" and "broken" in predicted.detail


def test_every_cell_can_be_the_answer() -> None:
    """No cell is hidden behind an earlier one with the same conditions."""
    for cells in CELLS.values():
        conditions = [
            (
                cell.schemes,
                cell.tied,
                cell.tables,
                cell.named,
                cell.left_out,
                cell.classes,
                cell.bits,
                cell.head_listed,
                cell.symmetric,
            )
            for cell in cells
        ]
        assert len(set(conditions)) == len(conditions)
