"""The list of planted faults: what, in which model, and why parity cannot see a few of them.

python -m tests.onnx.planted.catalogue --write [DIR]    measure again, and write docs/pages/planted.json
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tieconv
from tests.onnx import faults
from tests.onnx.exported import ROWS, build
from tests.onnx.planted import arithmetic as ar, masks, tokens
from tests.onnx.planted.once import torch_once
from tests.onnx.planted.rows_file import measure_rows

FILE = Path(__file__).parents[3] / "docs" / "pages" / "planted.json"
LAST = ROWS - 1

FAULTS: dict[str, tuple[faults.Fault, tuple[str, ...]]] = {
    "mask blind to trailing padding": (masks.blind_to_trailing, ("bert", "t5", "bart")),
    "mask blind to leading padding": (masks.blind_to_leading, ("llama", "gpt2", "bert")),
    "hole in the mask filled": (masks.filled, ("qwen3", "gemma2", "bart")),
    "row b reads the mask of row min(b, 3)": (masks.one_row(3), ("llama", "bert", "t5")),
    "tokens from 33 on see later tokens": (masks.leak_from(33), ("llama", "gpt2", "qwen2")),
    "positions from 40 on are one too high": (masks.places_shifted_from(40), ("llama", "gpt2", "gemma2")),
    "positions above 100 are 100": (masks.places_capped(100), ("llama", "opt")),
    "sliding window of 48 ignored": (masks.window(48, 1 << 20), ("mistral-48",)),
    "sliding window of 49 instead of 48": (masks.window(48, 49), ("mistral-48",)),
    "sliding window of 47 instead of 48": (masks.window(48, 47), ("mistral-48",)),
    "lookup of one id gives the next row": (tokens.shifted(700), ("llama", "t5", "qwen3")),
    "ids clipped at V - 2": (tokens.clipped(LAST - 1), ("bert", "gemma2", "bart")),
    "one id's row set to zero behind the lookup": (tokens.acted_on(700), ("llama", "gpt2", "mixtral")),
    "one id's row times 1.001 behind the lookup": (tokens.acted_on(5, 1.001), ("gemma2", "bert")),
    "attention scale 0.6 instead of 0.5946": (ar.number(8**-0.25, 0.6), ("llama", "bert", "bart")),
    "attention scale 0.354 instead of 0.35355": (ar.number(8**-0.5, 0.354), ("gemma2",)),
    "embedding scale 5.66 instead of 5.65685": (ar.number(32**0.5, 5.66), ("gemma2", "bart")),
    "head scale 0.177 instead of 0.17678": (ar.number(32**-0.5, 0.177), ("t5",)),
    "attention soft cap 50 left out": (ar.operator("Tanh", "Identity", 0), ("gemma2",)),
    "logit soft cap 31 instead of 30": (ar.number(30.0, 31.0), ("gemma2",)),
    "RMS norm eps 2e-6 instead of 1e-6": (ar.number(1e-6, 2e-6), ("llama", "qwen2", "t5")),
    "RMS norm eps 1e-6 instead of 1e-5": (ar.number(1e-5, 1e-6), ("mixtral", "cohere")),
    "LayerNorm eps 1e-6 instead of 1e-5": (ar.attribute("LayerNormalization", "epsilon", 1e-6), ("gpt2", "bart")),
    "GELU constant 0.0447 instead of 0.044715": (ar.number(0.044715, 0.0447), ("gpt2",)),
    "GELU: tanh instead of erf": (ar.attribute("Gelu", "approximate", "tanh"), ("bart",)),
    "GELU: erf instead of tanh": (ar.attribute("Gelu", "approximate", "none"), ("gemma2",)),
    "SiLU: hard sigmoid": (ar.operator("Sigmoid", "HardSigmoid"), ("llama", "mixtral")),
    "ReLU left out of one layer": (ar.operator("Relu", "Identity", 1), ("t5",)),
    "softmax over the wrong axis": (ar.attribute("Softmax", "axis", 2), ("llama",)),
    "distances of T5 bucketed with 4 instead of 16": (ar.number(16.0, 4.0), ("t5",)),
    "embedding multiplier 12.05 instead of 12": (ar.number(12.0, 12.05), ("granite",)),
    "residual multiplier 0.221 instead of 0.22": (ar.number(0.22, 0.221), ("granite",)),
    "logits divided by 8.01 instead of 8": (ar.number(8.0, 8.01), ("granite",)),
    "logits times 0.0626 instead of 0.0625": (ar.number(0.0625, 0.0626), ("cohere",)),
    "residual connection dropped": (ar.residual_dropped(0), ("llama", "bart")),
    "two layers' projections swapped": (ar.two_swapped("val_74", "val_415"), ("granite",)),
    "query and key projections swapped": (ar.two_swapped("val_69", "val_77"), ("bert",)),
    "token types dropped": (ar.types_dropped, ("bert",)),
    "one expert chosen instead of two": (ar.fewer_experts, ("mixtral",)),
    "cached keys of two layers swapped": (ar.cache_of("keys"), ("mixtral", "qwen3")),
    "cached values of two layers swapped": (ar.cache_of("values"), ("llama", "opt")),
    "cached keys rounded to fp16": (ar.cache_rounded, ("llama", "gemma2")),
    "logits rounded to fp16": (ar.logits_rounded, ("qwen2", "t5")),
    "last bit of one element of a matrix": (ar.weight("val_73", ar.last_bit), ("llama", "mixtral")),
    "one element of a position table": (ar.weight("position_embeddings", ar.bit), ("bert",)),
    "two rows of a position table swapped": (ar.weight("wpe", ar.rows_swapped), ("gpt2",)),
    "tokens from 130 on see later tokens": (masks.leak_from(130), ("llama",)),
    "last bit of one element of a bias": (ar.weight("c_fc.bias", ar.last_bit), ("gpt2",)),
    "every position one higher": (masks.places_shifted_from(0), ("llama", "qwen2")),
    "positions from 120 on are one too high": (masks.places_shifted_from(120), ("llama", "opt")),
}
"""Each fault with the models that it is planted in, in float32."""

UNSEEN = {
    "tokens from 130 on see later tokens": "the model has 128 positions, so no run reaches the fault",
    "last bit of one element of a bias": "the change is below the rounding of float32, and the bytes of small "
    "vectors are not required",
    "every position one higher": "rotary embeddings see distances only, so the function is the same",
}
"""Why parity cannot see a fault."""

NAMED = {
    "attention scale 0.6 instead of 0.5946": "is 0.6, but the model has 0.594604",
    "attention scale 0.354 instead of 0.35355": "is 0.354, but the model has 0.353553",
    "embedding scale 5.66 instead of 5.65685": "is 5.66, but the model has 5.65685",
    "head scale 0.177 instead of 0.17678": "is 0.177, but the model has 0.176777",
    "RMS norm eps 2e-6 instead of 1e-6": "has epsilon 2e-06, but the model's class has 1e-06",
    "RMS norm eps 1e-6 instead of 1e-5": "has epsilon 1e-06, but the model's class has 1e-05",
    "LayerNorm eps 1e-6 instead of 1e-5": "has epsilon 1e-06, but the model's class has 1e-05",
    "GELU constant 0.0447 instead of 0.044715": "is 0.0447, but the model has 0.044715",
    "embedding multiplier 12.05 instead of 12": "is 12.05, but the model has 12",
    "residual multiplier 0.221 instead of 0.22": "is 0.221, but the model has 0.22",
    "logits divided by 8.01 instead of 8": "is 8.01, but the model has 8",
    "logits times 0.0626 instead of 0.0625": "is 0.0626, but the model has 0.0625",
}
"""What the report says of each fault that is one wrong constant. For no other fault may it name a constant."""

FAST = (
    ("mask blind to trailing padding", "bert"), ("one element of a position table", "bert"),
    ("sliding window of 49 instead of 48", "mistral-48"), ("cached keys rounded to fp16", "llama"),
)  # fmt: skip
"""The rows that the ordinary tests measure again."""


def pairs() -> Iterator[tuple[str, str]]:
    """Every fault with every model that it is planted in, model by model."""
    every = [(label, name) for label, (_, names) in FAULTS.items() for name in names]
    return iter(sorted(every, key=lambda pair: (pair[1], list(FAULTS).index(pair[0]))))


def fault_row(label: str, name: str, graph: Path, model: Path, folder: Path) -> dict[str, Any]:
    """What parity says about a graph with the fault, with the least that it feeds."""
    planted = faults.plant(graph, FAULTS[label][0], folder / f"planted-{name}.onnx")
    report = tieconv.parity(planted, model, provider="cpu", budget="1s")  # only what every budget feeds
    values = {gate.name: gate.value for gate in report.gates}
    ratio = values.get("case_ratio")
    return {
        "fault": label,
        "model": name,
        "verdict": str(report.verdict),
        "failed": [gate.name for gate in report.gates if not gate.passed],
        "case_ratio": None if ratio is None else float(f"{ratio:.2e}"),
        "cause": report.reason,
        **({"unseen": UNSEEN[label]} if str(report.verdict) == "passed" else {}),
    }


def measure(folder: Path) -> Iterator[dict[str, Any]]:
    """Every row. The torch side of each model runs once."""
    with torch_once():
        for label, name in pairs():
            made = build(name, "float32", folder)
            yield fault_row(label, name, made.graph, made.model, folder)


if __name__ == "__main__":
    measure_rows(FILE, measure)
