"""Observe mlx-lm: load each checkpoint as `mlx_lm.load` does, and run the prompt.

mlx-lm loads strictly: a parameter without a stored tensor is an error, so no parameter can keep random values. The
evidence is the logits. If they are not those of the stored tables, or if the small model cannot run the prompt, the
evidence is the loaded parameters and whether the head changes the logits. This script needs mlx-lm and numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.utils import load_model

sys.path.insert(0, str(Path(__file__).parent))
import observe  # type: ignore[import-not-found]

mx.set_default_device(mx.cpu)
_HEADS = ("lm_head", "embed_out")
"""Names of the output layer in mlx-lm's classes; a class without one uses the embedding."""
_EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embeddings", "embed_in", "tok_embeddings", "embedding")


def mlx_lm(job: dict[str, Any]) -> Any:
    """Return what mlx-lm does with a checkpoint."""
    folder = Path(job["folder"])
    model, _ = load_model(folder)
    if not any(job["head"] in mx.load(str(path)) for path in folder.glob("model*.safetensors")):
        job["stored"]["head"] = "absent"  # the head lies in a file that mlx-lm does not read
    try:
        logits = _logits(model, job["prompt"])
    except Exception:  # a model of two layers has fewer layers than one period of some classes
        return _by_tables(job, model, None)
    if not observe._references(job):
        return _by_tables(job, model, logits)
    seen = observe.from_logits(job, logits)
    return seen if seen["outcome"] in ("tied", "untied", "same") else _by_tables(job, model, logits)


def _logits(model: Any, prompt: list[int]) -> Any:
    logits = model(mx.array([prompt]))
    if isinstance(logits, tuple):
        logits = logits[0]
    return np.array(logits[0, -1].astype(mx.float32))


def _by_tables(job: dict[str, Any], model: Any, logits: Any) -> Any:
    """Return the observation of the loaded parameters; a head that does not change the logits is not used."""
    parameters = dict(tree_flatten(model.parameters()))
    names = [name for name in parameters if _layer(name) in _HEADS]
    embedding = next(table for name, table in parameters.items() if _layer(name) in _EMBEDDINGS)
    head = next((name for name in names if logits is None or _used(model, name, job, logits)), None)
    tables = [np.array(table.astype(mx.float32)) for table in (embedding, parameters[head] if head else embedding)]
    bias = parameters.get(f"{head.removesuffix('weight')}bias") if head else None
    values = None if bias is None else np.array(bias.astype(mx.float32))
    return observe.from_tables(job, *tables, head is None, values)


def _layer(name: str) -> str:
    """Return the layer of which ``name`` is the weight; empty for other parameters."""
    return name.split(".")[-2] if name.endswith(".weight") else ""


def _used(model: Any, name: str, job: dict[str, Any], logits: Any) -> bool:
    """Return whether the logits change with the head."""
    stored = dict(tree_flatten(model.parameters()))[name]
    model.update(tree_unflatten([(name, mx.zeros_like(stored))]))
    changed = not np.allclose(_logits(model, job["prompt"]), logits)
    model.update(tree_unflatten([(name, stored)]))
    return changed


if __name__ == "__main__":
    observe.serve(mlx_lm)
