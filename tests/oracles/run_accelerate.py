"""Load each job's model with `accelerate.load_checkpoint_and_dispatch`, and report its parameters.

The interpreter needs accelerate, torch, transformers and numpy. The calls are those of the guide to big models: the
class is made without memory, its weights are tied, then accelerate loads the directory with ``device_map="auto"``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import observe
from run_transformers import Job, tables


def answer(job: Job) -> dict[str, Any]:
    """Return the observation of one job."""
    import transformers
    from accelerate import init_empty_weights, load_checkpoint_and_dispatch

    kind = getattr(transformers, job["class"])
    config = kind.config_class.from_pretrained(job["folder"])
    with init_empty_weights():
        model = kind(config)
    model.tie_weights()
    model = load_checkpoint_and_dispatch(model, job["folder"], device_map="auto")
    return tables(model, job)


if __name__ == "__main__":
    observe.serve_with_transformers(answer)
