"""What a loader really does with a directory. Needs torch and the loader alone, so that any interpreter can run it.

    python tests/consumers/loader.py LOADER < jobs.jsonl     (LOADER: transformers or safetensors)

A job names the class, the directory, the names of the embedding, the head, the tied tables and the biases; ``whole``,
where it is given, is a directory with all the tensors in one file. The answer is one of tied, untied, random,
discarded, error, and which stored biases no parameter holds.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

Job = dict[str, Any]


def stored(folder: Path) -> dict[str, Any]:
    """The tensors of the directory's one weight file."""
    import torch
    from safetensors.torch import load_file

    if (folder / "model.safetensors").exists():
        return load_file(folder / "model.safetensors")
    return torch.load(folder / "pytorch_model.bin", weights_only=True)


def load(loader: str, job: Job) -> Any:
    """The loaded model; raises where the loader refuses."""
    import torch
    import transformers

    kind = getattr(transformers, job["class"])
    folder = Path(job["folder"])
    torch.manual_seed(7)
    if loader == "transformers":
        return kind.from_pretrained(folder, torch_dtype=torch.float32)
    from safetensors.torch import load_model

    model = kind(kind.config_class.from_pretrained(folder))
    load_model(model, folder / "model.safetensors")
    return model


def observe(loader: str, job: Job) -> dict[str, Any]:
    """What became of the head, and the biases that were lost."""
    import transformers

    if not hasattr(transformers, job["class"]):
        return {"outcome": "unknown", "dropped": [], "why": "this version has no such class"}
    try:
        model = load(loader, job)
    except Exception as error:
        first = str(error).strip().splitlines()
        return {"outcome": "error", "dropped": [], "why": f"{type(error).__name__}: {first[0][:120] if first else ''}"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _look(model, job, stored(Path(job.get("whole", job["folder"]))))


def _look(model: Any, job: Job, tensors: dict[str, Any]) -> dict[str, Any]:
    inner = model.get_submodule(job.get("inner", ""))  # which has the accessors
    parameters = {"head": inner.get_output_embeddings().weight, "embedding": inner.get_input_embeddings().weight}
    for name in job["tables"]:
        found = dict(model.named_parameters(remove_duplicate=False)).get(name)
        if found is not None:
            parameters[name] = found
    bias = _bias(inner)
    if bias is None and job["biases"]:  # a parameter beside the head
        bias = dict(model.named_parameters()).get(job["biases"][-1])
    if any(value.is_meta for value in (*parameters.values(), *([] if bias is None else [bias]))):
        return {"outcome": "error", "dropped": [], "why": "left on the meta device"}
    tables = job.get("stored", job["tables"])
    names = [name for name in (job["embedding"], job["head"], *tables) if name in tensors]
    held = [[name for name in names if _equal(tensors[name], value)] for value in parameters.values()]
    unused = [name for name in names if not any(name in holders for holders in held)]
    tied = parameters["head"] is parameters["embedding"]
    if not all(held):
        outcome = "random"
    elif unused:
        outcome = "discarded"
    else:
        outcome = "tied" if tied else "untied"
    return {"outcome": outcome, "dropped": _dropped(bias, job, tensors)}


def _bias(model: Any) -> Any:
    """The bias that reaches the logits."""
    found = getattr(model.get_output_embeddings(), "bias", None)
    return found if found is not None else getattr(model, "final_logits_bias", None)


def _dropped(bias: Any, job: Job, tensors: dict[str, Any]) -> list[str]:
    names = [name for name in job["biases"] if name in tensors and bool(tensors[name].any())]
    return [name for name in names if bias is None or not _equal(tensors[name], bias)]


def _equal(one: Any, two: Any) -> bool:
    import torch

    return one.shape == two.shape and torch.equal(one.detach(), two.detach())


def main() -> None:
    """Answer each job of stdin with a line."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps({"id": job["id"], **observe(sys.argv[1], job)}), flush=True)


if __name__ == "__main__":
    main()
