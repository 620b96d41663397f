"""Loads checkpoints with SGLang on CPU, in one process and without a server, and reports the loaded tables.

    PYTHON tests/oracles/run_sglang.py < jobs.jsonl

The evidence are the parameters that SGLang computes logits with: the embedding layer that the model looks tokens up in,
and the head that it gives to its logits processor. Parameters are NaN before the weights are loaded.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any
from unittest import mock

os.environ |= {"HF_HUB_OFFLINE": "1", "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
sys.path.insert(0, str(Path(__file__).parent))

import observe
import sglang_kernels  # noqa: F401
import torch
from layers import SeenError, caught, rows, starting_with_nan
from sglang.srt.configs.device_config import DeviceConfig
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import dp_attention, logits_processor, vocab_parallel_embedding
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.model_loader import loader
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import ServerArgs


def start() -> None:
    """Initialise the process groups, and let models start with NaN."""
    server = ServerArgs(model_path="dummy", device="cpu")
    publish(server, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    initialize_moe_config()
    address = f"file://{tempfile.mkdtemp()}/group"
    parallel_state.init_distributed_environment(1, 0, distributed_init_method=address, local_rank=0, backend="gloo")
    parallel_state.initialize_model_parallel()
    dp_attention.initialize_dp_attention(server)
    loader._initialize_model = starting_with_nan(loader._initialize_model)
    gc.freeze()


def load(folder: str) -> tuple[Any, Any]:
    """Return SGLang's model of a directory and its config, with ``--dtype auto``."""
    config = ModelConfig(model_path=folder)
    dp_attention.init_dp_gathered_buffer(config)
    made = loader.get_model_loader(load_config=LoadConfig(), model_config=config)
    return made.load_model(model_config=config, device_config=DeviceConfig("cpu", 0)), config


def head_layer(model: Any) -> Any:
    """Return the layer that the model gives to its logits processor.

    The body of the model is replaced by zeros: only the call of the logits processor matters.
    """
    owner = next(module for module in model.modules() if _processor(module) is not None)
    hidden = torch.zeros(1, 1)
    for child in owner.children():
        if not isinstance(child, logits_processor.LogitsProcessor):
            child.forward = lambda *_, **__: hidden
    with caught(logits_processor.LogitsProcessor) as seen, contextlib.suppress(SeenError):
        owner.forward(torch.tensor([1]), torch.tensor([0]), mock.MagicMock())
    positional, named = seen[0]
    return named.get("lm_head", positional[2] if len(positional) > 2 else None)


def _processor(module: Any) -> Any:
    kinds = (child for child in module.children() if isinstance(child, logits_processor.LogitsProcessor))
    return next(kinds, None)


def embedding_layer(model: Any) -> Any:
    """Return the layer that looks tokens up."""
    with caught(vocab_parallel_embedding.VocabParallelEmbedding) as seen, contextlib.suppress(Exception):
        owner = next(module for module in model.modules() if _processor(module) is not None)
        body = next(child for child in owner.children() if any(True for _ in child.children()))
        body.forward(torch.tensor([1]), torch.tensor([0]), mock.MagicMock())
    if seen:
        return seen.owners[0]
    head = vocab_parallel_embedding.ParallelLMHead
    kinds = (vocab_parallel_embedding.VocabParallelEmbedding, torch.nn.Embedding)
    return next(module for module in model.modules() if isinstance(module, kinds) and not isinstance(module, head))


_NOT_SEEN = ("No module named", "_OpNamespace", "sgl_kernel", "triton", "_cpu'")
"""Words of failures that say nothing about a checkpoint: kernels, packages and settings that are missing here."""


def look(job: observe.Job) -> observe.Observation:
    """Return what SGLang made of the checkpoint of a job."""
    try:
        return tables(job)
    except Exception as error:
        traceback.print_exc()
        answer = observe.failed(job, error)
        unseen = any(words in str(error) for words in _NOT_SEEN) or _not_imported(job["class"], str(error))
        return {**answer, "outcome": "unmatched"} if unseen else answer


def _not_imported(name: str, message: str) -> bool:
    """Return whether SGLang has a class that could not be imported here."""
    files = (path.read_text(encoding="utf-8") for path in Path(loader.__file__).parents[1].glob("models/*.py"))
    return "no SGlang implementation" in message and any(f"class {name}(" in text for text in files)


def tables(job: observe.Job) -> observe.Observation:
    """Return what the loaded tables are."""
    model, config = load(job["folder"])
    with torch.no_grad():
        embedding = embedding_layer(model)
        head = head_layer(model)
    one = head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr()
    size = config.hf_text_config.vocab_size
    # The logits processor multiplies by the weight alone: no class adds the bias of its head.
    return observe.from_tables(job, rows(embedding.weight, size), rows(head.weight, size), one)


if __name__ == "__main__":
    start()
    observe.serve(look)
