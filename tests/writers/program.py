"""What a writer's script is made of: its cases, and an answer to each job. It needs the standard library and numpy.

A job asks for the list of cases, to write a case, or to run a model that the judge names. The logits of a prompt come
back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.oracles.observe import serve as answer_each

PROMPT = (1, 5, 9, 7, 3, 4)
SOURCE = "source"
"""The checkpoint of a graph, beside the folder of the graph."""
EDITABLE = ("safetensors", "torch")
Facts = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A checkpoint that the program writes.

    ``write`` gets an empty folder and returns facts: whether the program's model is tied (absent: it has no head), and
    the names of its embedding and head. ``read`` returns logits of the folder or file; ``None``: the program has no
    reader for it. ``reads`` are the formats of the reader. ``named`` are the rules that rightly report this file,
    or ``refused``.
    ``file`` is the file of the folder that tieconv gets. ``words`` are options that tieconv needs. A plan may say that
    ``loader`` refuses its result. ``parity`` are the options that hold a graph against its checkpoint, or empty.
    """

    name: str
    write: Callable[[Path], Facts]
    read: Callable[[Path], Any] | None
    reads: tuple[str, ...] = EDITABLE
    named: tuple[str, ...] = ()
    file: str = ""
    words: tuple[str, ...] = ()
    loader: str = ""
    parity: str = ""


def serve(cases: Iterable[Case]) -> None:
    """Answer each job of stdin with a line."""
    table = {case.name: case for case in cases}

    def answer(job: dict[str, Any]) -> dict[str, Any]:
        if job["do"] == "list":
            kept = ("reads", "named", "file", "words", "loader", "parity")
            return {"cases": {n: {k: getattr(c, k) for k in kept} for n, c in table.items()}}
        case, folder = table[job["case"]], Path(job["path"])
        if job["do"] == "write":
            folder.mkdir(parents=True)
            return {"facts": case.write(folder)}
        if case.read is None:
            return {"logits": None}
        import numpy as np

        logits = np.asarray(case.read(folder), np.float64).reshape(-1)
        return {"logits": [float(value) for value in logits], "finite": bool(np.isfinite(logits).all())}

    warnings.simplefilter("ignore")
    answer_each(answer)


def facts(model: Any, folder: Path) -> Facts:
    """Return the facts of a transformers model in memory, with the names that its files in ``folder`` have.

    `save_pretrained` renames the tensors of some classes; then the values tell which is which.
    """
    import torch

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    modules = {id(module): name for name, module in model.named_modules()}
    stored = stored_tensors(folder)
    made: Facts = {"tied": head.weight is embedding.weight}
    for role, module in (("embedding", embedding), ("head", head)):
        name = f"{modules[id(module)]}.weight"
        alike = [key for key, value in stored.items() if value.shape == module.weight.shape]
        equal = [key for key in alike if torch.equal(stored[key], module.weight)]
        other = equal != [f"{modules[id(head)]}.weight"] and (role, made["tied"]) != ("head", True)
        by_value = len(equal) == 1 and other
        if name in stored or by_value:
            made[role] = name if name in stored else equal[0]
    return made


def without_sampling(model: Any) -> Any:
    """Return the model without the sampling values of `fixtures.zoo`, which transformers 4 refuses to save."""
    import transformers

    for config in (model.config, getattr(model.config, "text_config", None)):
        if hasattr(config, "top_k"):
            config.top_k = 50
    model.generation_config = transformers.GenerationConfig()
    return model


def stored_tensors(folder: Path) -> dict[str, Any]:
    """Return every tensor of the safetensors and torch files of ``folder``."""
    import torch
    from safetensors.torch import load_file

    stored: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix == ".safetensors":
            stored |= load_file(path)
        elif path.suffix == ".bin":
            stored |= torch.load(path, weights_only=True)
    return stored


def last_logits(model: Any, prompt: tuple[int, ...] = PROMPT) -> Any:
    """Return the logits of the last position of ``prompt``, from a torch model that takes token ids."""
    import torch

    model.eval()
    ids = torch.tensor([prompt])
    words = {"decoder_input_ids": ids} if getattr(getattr(model, "config", None), "is_encoder_decoder", False) else {}
    with torch.no_grad():
        made = model(input_ids=ids, **words) if hasattr(model, "config") else model(ids)
    return getattr(made, "logits", made)[0, -1].float().numpy()
