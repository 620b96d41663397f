"""The loaders, in the order of the documentation."""

from __future__ import annotations

from tieconv.consumers import (
    llama_cpp,
    mlx_lm,
    onnxruntime_genai,
    safetensors,
    tensorrt_llm,
    tgi,
    transformers4,
    transformers5,
    vllm,
)
from tieconv.consumers.interface import Consumer

CONSUMERS: tuple[Consumer, ...] = (
    *transformers4.CONSUMERS,
    *transformers5.CONSUMERS,
    *safetensors.CONSUMERS,
    *vllm.CONSUMERS,
    *llama_cpp.CONSUMERS,
    *mlx_lm.CONSUMERS,
    *tgi.CONSUMERS,
    *tensorrt_llm.CONSUMERS,
    *onnxruntime_genai.CONSUMERS,
)
