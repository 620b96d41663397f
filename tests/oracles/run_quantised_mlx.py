"""Load each job's model with mlx-lm, and report what its embedding returns and its head computes.

The interpreter needs mlx-lm and numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

sys.path.insert(0, str(Path(__file__).parent))
import observe  # type: ignore[import-not-found]

mx.set_default_device(mx.cpu)


def answer(job: dict[str, Any]) -> Any:
    """Return the observation of the loaded model: the rows that it looks up, and the products with unit vectors."""
    model, config = load_model(Path(job["folder"]))
    rows, width = config["vocab_size"], config["hidden_size"]
    embedding, units = model.model.embed_tokens, mx.eye(width)
    head = getattr(model, "lm_head", None)
    products = embedding.as_linear(units) if head is None else head(units)
    looked_up = embedding(mx.arange(rows))
    values = [np.array(table.astype(mx.float32)) for table in (looked_up, products.T)]
    return observe.from_tables(job, *values, head is None)


if __name__ == "__main__":
    observe.serve(answer)
