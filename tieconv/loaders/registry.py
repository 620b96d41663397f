"""The loaders, in the order of the documentation."""

from __future__ import annotations

from tieconv.loaders import llama_cpp, mlx_lm, onnxruntime_genai, tensorrt_llm, tgi, vllm
from tieconv.loaders import safetensors_load_model as safetensors
from tieconv.loaders.interface import Consumer
from tieconv.loaders.transformers import release4 as transformers4
from tieconv.loaders.transformers import release5 as transformers5

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
