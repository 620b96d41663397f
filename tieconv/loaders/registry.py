"""All loaders, in the order of the documentation."""

from __future__ import annotations

from tieconv.loaders import safetensors_load_model as safetensors
from tieconv.loaders.engines import (
    accelerate,
    ctranslate2,
    llama_cpp,
    mlx_lm,
    onnxruntime_genai,
    sglang,
    tensorrt_llm,
    tgi,
    vllm,
)
from tieconv.loaders.interface import Consumer
from tieconv.loaders.transformers import releases as transformers

CONSUMERS: tuple[Consumer, ...] = (
    *transformers.CONSUMERS,
    *safetensors.CONSUMERS,
    *accelerate.CONSUMERS,
    *vllm.CONSUMERS,
    *sglang.CONSUMERS,
    *llama_cpp.CONSUMERS,
    *mlx_lm.CONSUMERS,
    *tgi.CONSUMERS,
    *tensorrt_llm.CONSUMERS,
    *onnxruntime_genai.CONSUMERS,
    *ctranslate2.CONSUMERS,
)


def consumer(loader: str, release: str) -> Consumer:
    """Return the consumer with this name and version. Raises `KeyError`."""
    return {(entry.name, entry.version): entry for entry in CONSUMERS}[loader, release]
