"""Loads checkpoints with vLLM on CPU, in one process and without a server, and reports the loaded tables.

    PYTHON tests/oracles/run_vllm.py < jobs.jsonl

The evidence are the parameters that vLLM computes logits with: the embedding layer that the model looks tokens up in,
and the arguments of its logits processor. Parameters are NaN before the weights are loaded.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_CACHE_ROOT": os.environ.get("VLLM_CACHE_ROOT", tempfile.gettempdir()),
    "OMP_NUM_THREADS": "1",
}
sys.path.insert(0, str(Path(__file__).parent))

import observe
import torch
from layers import SeenError, caught, rows, starting_with_nan
from vllm.config import DeviceConfig, LoadConfig, ModelConfig, VllmConfig, set_current_vllm_config
from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
from vllm.model_executor.layers import logits_processor, vocab_parallel_embedding
from vllm.model_executor.model_loader import base_loader, get_model_loader
from vllm.model_executor.models import registry


def start() -> None:
    """Initialise the process groups, and let models start with NaN."""
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig(device="cpu"))):
        address = f"file://{tempfile.mkdtemp()}/group"
        init_distributed_environment(1, 0, distributed_init_method=address, local_rank=0, backend="gloo")
        ensure_model_parallel_initialized(1, 1)
    if not torch.accelerator.is_available():
        torch.accelerator.empty_cache = lambda: None  # vLLM's CPU worker replaces it too
    registry._run_in_subprocess = lambda inspect: inspect()  # another process would import vLLM for each class
    base_loader.initialize_model = starting_with_nan(base_loader.initialize_model)
    gc.freeze()  # vLLM collects garbage twice a model


def load(folder: str) -> tuple[Any, Any]:
    """Return vLLM's model of a directory and its config, with ``--dtype auto``."""
    model_config = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype="auto", seed=0)
    vllm_config = VllmConfig(
        model_config=model_config, load_config=LoadConfig(), device_config=DeviceConfig(device="cpu")
    )
    with set_current_vllm_config(vllm_config):
        loader = get_model_loader(vllm_config.load_config)
        return loader.load_model(vllm_config=vllm_config, model_config=vllm_config.model_config), vllm_config


def head_and_bias(model: Any, width: int, dtype: Any) -> tuple[Any, Any]:
    """Return the layer and the bias that the model gives to its logits processor."""
    with caught(logits_processor.LogitsProcessor) as seen, contextlib.suppress(SeenError):
        model.compute_logits(torch.zeros(1, width, dtype=dtype))
    positional, named = seen[0]
    layer = named.get("lm_head", positional[0] if positional else None)
    bias = named.get("embedding_bias", positional[2] if len(positional) > 2 else None)
    return layer, bias


def embedding_layer(model: Any) -> Any:
    """Return the layer that looks tokens up."""
    layers = [
        module
        for module in model.modules()
        if isinstance(module, vocab_parallel_embedding.VocabParallelEmbedding)
        and not isinstance(module, vocab_parallel_embedding.ParallelLMHead)
    ]
    lookups: list[Callable[[Any], Any]] = [
        getattr(model, name) for name in ("embed_input_ids", "get_input_embeddings") if hasattr(model, name)
    ]
    for lookup in lookups:
        with caught(vocab_parallel_embedding.VocabParallelEmbedding) as seen, contextlib.suppress(Exception):
            lookup(torch.tensor([1]))
        if seen:
            return seen.owners[0]
    return layers[0]


_NOT_SEEN = (
    "causal_conv1d_weight_pack", "MoE backend", "is supported only for CUDA", "fa_utils", "'triton'",
    "failed to be inspected", "compute_logits",
)  # fmt: skip
"""Words of failures that say nothing about a checkpoint: kernels for CPU, packages that are missing here (torchvision),
and models without logits."""


def look(job: observe.Job) -> observe.Observation:
    """Return what vLLM made of the checkpoint of a job."""
    try:
        return tables(job)
    except Exception as error:
        # pydantic puts a heading before the message.
        message = str(error).partition("Value error, ")[2] or str(error)
        answer = observe.failed(job, f"{type(error).__name__}: {message.strip().partition(chr(10))[0][:200]}")
        return {**answer, "outcome": "unmatched"} if any(words in message for words in _NOT_SEEN) else answer


def tables(job: observe.Job) -> observe.Observation:
    """Return what the loaded tables are."""
    model, config = load(job["folder"])
    with set_current_vllm_config(config), torch.no_grad():
        embedding = embedding_layer(model)
        text = config.model_config.hf_text_config
        head, bias = head_and_bias(model, getattr(text, "hidden_size", 0), config.model_config.dtype)
    one = head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr()
    return observe.from_tables(
        job,
        rows(embedding.weight, embedding.org_vocab_size),
        rows(head.weight, head.org_vocab_size),
        one,
        None if bias is None else rows(bias, head.org_vocab_size),
    )


if __name__ == "__main__":
    start()
    observe.serve(look)
