"""Where each parameter's values come from, in whatever transformers this interpreter has.

    python tests/families/older_loader.py < jobs.jsonl

A job names the class, the directory and names as the file and as the model in memory have them; the tensor of place n
in the file holds the number n / 8 throughout. The answer is a letter for each: the place, ``r`` for random numbers,
``m`` for no values at all; or ``e`` where the loader refuses the file, ``x`` where it does not get that far.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

REFUSAL = "The state dictionary of the model you are trying to load is corrupted"


def answer(job: dict[str, Any]) -> str:
    """The letters of one job."""
    import torch
    import transformers

    try:
        kind = getattr(transformers, job["class"])
        model = kind.from_pretrained(job["folder"], torch_dtype=torch.float32)
    except Exception as error:  # the classes fail in their own ways
        return "e" if str(error).startswith(REFUSAL) else "x"
    return "".join(letter(tensor, len(job["names"])) for tensor in held(model, job))


def held(model: Any, job: dict[str, Any]) -> list[Any]:
    """The tensor of each of the job's names; ``None`` where the model has none of that name."""
    found = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return [found.get(memory, found.get(name)) for memory, name in zip(job["memory"], job["names"], strict=True)]


def letter(tensor: Any, places: int) -> str:
    """Where the values of one tensor come from."""
    if tensor is None or tensor.is_meta:
        return "m"
    values = tensor.detach().flatten() * 8
    number = float(values[-1])
    one = bool((values == values[len(values) // 2]).all()) and number in range(1, places + 1)
    return str(int(number)) if one else "r"


def main() -> None:
    """Answer each job of stdin with a line."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    for line in sys.stdin:
        print(answer(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
