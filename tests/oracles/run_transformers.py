"""Load each job's model with transformers, or with `safetensors.torch.load_model`, and report its parameters.

The interpreter needs torch, transformers and numpy. A job of the grid in `cells.py` is judged by `observe.py`. A job of
`tests/consumers/grid.py` lists the names that it stores: the outcome then says which of them a parameter holds.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import observe as observations

Job = dict[str, Any]


def stored(folder: Path) -> dict[str, Any]:
    """Return the tensors of the directory's one weight file."""
    import torch
    from safetensors.torch import load_file

    if (folder / "model.safetensors").exists():
        return load_file(folder / "model.safetensors")
    return torch.load(folder / "pytorch_model.bin", weights_only=True)


def load(loader: str, job: Job) -> Any:
    """Return the loaded model. Raises what the loader raises."""
    import torch
    import transformers

    kind = getattr(transformers, job["class"])
    folder = Path(job["folder"])
    torch.manual_seed(7)
    if loader == "transformers":
        return kind.from_pretrained(folder, **({} if "layout" in job else {"torch_dtype": torch.float32}))
    from safetensors.torch import load_model

    model = kind(kind.config_class.from_pretrained(folder))
    load_model(model, folder / "model.safetensors")
    return model


def answer(job: Job) -> dict[str, Any]:
    """Return the observation of a job of the grid: the tables and the bias of the loaded model."""
    import transformers

    if not hasattr(transformers, job["class"]):
        return {"id": job["id"], "outcome": "error", "dropped": False, "why": "this version has no such class"}
    return tables(load("transformers", job), job)


def tables(model: Any, job: Job) -> dict[str, Any]:
    """Return the observation of a loaded model: its embedding, its head, and the head's bias."""
    head, embedding = _head(model), model.get_input_embeddings()
    bias = _bias(model)
    if bias is None:
        bias = dict(model.named_parameters()).get(job["biases"][-1])
    values = [head.weight, embedding.weight, *([] if bias is None else [bias])]
    if any(value.is_meta for value in values):
        raise RuntimeError("a parameter was left on the meta device")
    one = head.weight is embedding.weight
    arrays = [value.detach().float().numpy() for value in values]
    parameters = dict(model.named_parameters(remove_duplicate=False))
    others = [parameters[name] for name in job["tables"] if name in parameters]
    found = exact(job, observations.from_tables(job, arrays[1], arrays[0], one, *arrays[2:]), arrays[1])
    if not all(_equal(other, embedding.weight) or _equal(other, head.weight) for other in others):
        return {**found, "outcome": "random", "why": "a table of the encoder or the decoder was not loaded"}
    return found


def exact(job: Job, found: dict[str, Any], embedding: Any) -> dict[str, Any]:
    """Return ``found``, or that the embedding's values were lost to a head that is stored in a narrower dtype."""
    from safetensors import safe_open

    if job["dtype"] != "mixed" or not job["stored"]["embedding"] or found["outcome"] != "tied":
        return found
    with safe_open(Path(job["folder"]) / "model.safetensors", "np") as file:
        if bool((file.get_tensor(job["embedding"]) == embedding).all()):
            return found
    return {**found, "outcome": "discarded", "why": "the embedding has the rounded values of the head"}


def observe(loader: str, job: Job) -> dict[str, Any]:
    """Return the outcome of the head, and the biases that were lost."""
    import transformers

    if not hasattr(transformers, job["class"]):
        return {"outcome": "error", "dropped": [], "why": "this version has no such class"}
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


def _head(model: Any) -> Any:
    """Return the output embedding of the model, or of the text model in it, which has the accessor in some releases."""
    head = model.get_output_embeddings()
    inner = getattr(model, "language_model", None)
    return head if head is not None or inner is None else inner.get_output_embeddings()


def _bias(model: Any) -> Any:
    """Return the bias that reaches the logits."""
    head = model.get_output_embeddings()
    found = getattr(head, "bias", None)
    return found if found is not None else getattr(model, "final_logits_bias", None)


def _dropped(bias: Any, job: Job, tensors: dict[str, Any]) -> list[str]:
    names = [name for name in job["biases"] if name in tensors and bool(tensors[name].any())]
    return [name for name in names if bias is None or not _equal(tensors[name], bias)]


def _equal(one: Any, two: Any) -> bool:
    import torch

    return one.shape == two.shape and torch.equal(one.detach(), two.detach())


def main() -> None:
    """Answer each job of stdin with a line."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)  # it fills uninitialised memory with NaN
    observations.serve_with_transformers(
        lambda job: answer(job) if "layout" in job else {"id": job["id"], **observe("transformers", job)}
    )


if __name__ == "__main__":
    main()
