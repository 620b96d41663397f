"""Names under which quantisers store a matrix as codes and scales."""

from __future__ import annotations

from collections.abc import Collection

LEAVES = (
    "qweight",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "scales",
    "qzeros",
    "weight.absmax",
    "weight.quant_map",
    "SCB",
)
"""Suffixes after a module's name in GPTQ, AWQ, compressed-tensors, FP8 and bitsandbytes checkpoints."""


def quantised_twin(name: str, stored: Collection[str]) -> str | None:
    """Return the stored tensor that shows that the matrix ``name`` is quantised, else ``None``."""
    module = name.removesuffix(".weight")
    return next((f"{module}.{leaf}" for leaf in LEAVES if f"{module}.{leaf}" in stored), None)
