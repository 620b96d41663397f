"""Load each job's model with transformers, and report what its embedding returns and its head computes.

The interpreter needs torch, transformers, numpy and the package of the quantiser.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import observe as observations


def answer(job: dict[str, Any]) -> dict[str, Any]:
    """Return the observation of the loaded model: the rows that it looks up, and the products with unit vectors."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(job["folder"]).eval()
    rows, width = model.config.vocab_size, model.config.hidden_size
    with torch.no_grad():
        model(torch.tensor([job["prompt"]]))  # compressed-tensors decompresses in the first forward pass
        embedding = model.get_input_embeddings()(torch.arange(rows)).float().numpy()
        layer = model.get_output_embeddings()
        weight = getattr(layer, "weight", None)
        halves = weight is not None and weight.dtype in (torch.float16, torch.bfloat16)
        units = torch.eye(width, dtype=weight.dtype if halves else torch.float32)
        head = layer(units).T.float().numpy()
    return observations.from_tables(job, embedding, head, None)


if __name__ == "__main__":
    observations.serve_with_transformers(answer)
