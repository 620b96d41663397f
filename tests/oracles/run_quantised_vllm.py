"""Load each job's model with vLLM on CPU, and report what its embedding returns and its head computes.

The interpreter needs the CPU build of vLLM. Parameters are NaN before the weights are loaded.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import observe  # type: ignore[import-not-found]
import run_vllm
import torch
from vllm.config import set_current_vllm_config

_NOT_SEEN = ("Failed to find a kernel", "module 'triton'", "'layers.0.")
"""Words of failures that say nothing about the tables: a GPU is missing, or the float layer between them."""


def answer(job: dict[str, Any]) -> Any:
    """Return the observation of the loaded model: the rows that it looks up, and the products with unit vectors."""
    model, config = run_vllm.load(job["folder"])
    text, dtype = config.model_config.hf_text_config, config.model_config.dtype
    with set_current_vllm_config(config), torch.no_grad():
        layer, _ = run_vllm.head_and_bias(model, text.hidden_size, dtype)
        looked_up = model.embed_input_ids(torch.arange(text.vocab_size))
        products = layer.quant_method.apply(layer, torch.eye(text.hidden_size, dtype=dtype))
    tables = [table.float().numpy() for table in (looked_up, products.T[: text.vocab_size])]
    return observe.from_tables(job, *tables, None)


def look(job: dict[str, Any]) -> Any:
    """Return the observation; a failure on the way is an error of the job, with its message."""
    try:
        return answer(job)
    except Exception as error:
        message = str(error).partition("Value error, ")[2] or str(error)
        seen = observe.failed(job, f"{type(error).__name__}: {message.strip().partition(chr(10))[0][:200]}")
        return {**seen, "outcome": "not run"} if any(words in message for words in _NOT_SEEN) else seen


if __name__ == "__main__":
    run_vllm.start()
    observe.serve(look)
