"""The savers below transformers: safetensors, huggingface_hub, accelerate and torch, on models of three kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import accelerate
import huggingface_hub
import torch
import transformers
from safetensors.torch import load_model, save_model

from fixtures import zoo
from tests.writers.program import Case, Facts, facts, last_logits, serve

SHARD = "60KB"
KINDS = ("LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM", "BertForMaskedLM", "own")
HEAD_FIRST = ("LlamaForCausalLM", "GPT2LMHeadModel", "OPTForCausalLM")
"""Of these, safetensors and huggingface_hub store the head's name alone, the first in the alphabet."""


class Own(torch.nn.Module):
    """A model of a user: an embedding, a layer and a head, tied by assignment."""

    def __init__(self, tied: bool, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tok_embeddings = torch.nn.Embedding(96, 32)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(32, 32) for _ in range(2)])
        self.output = torch.nn.Linear(32, 96, bias=bias)
        if tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.tok_embeddings(ids)
        for layer in self.layers:
            hidden = hidden + torch.tanh(layer(hidden))
        return self.output(hidden)  # type: ignore[no-any-return]


def build(kind: str, tied: bool) -> Any:
    return Own(tied) if kind == "own" else zoo.build(kind, tie=tied)


def told(model: Any, folder: Path) -> Facts:
    """Return the facts; of the user's model, only the names that are in the file."""
    if not isinstance(model, Own):
        model.config.save_pretrained(folder)
        return facts(model, folder)
    return {"tied": model.output.weight is model.tok_embeddings.weight}


def by_safetensors(model: Any, folder: Path) -> None:
    save_model(model, str(folder / "model.safetensors"), {"format": "pt"})


def by_hub(model: Any, folder: Path) -> None:
    huggingface_hub.save_torch_state_dict(model.state_dict(), folder)


def by_hub_shards(model: Any, folder: Path) -> None:
    huggingface_hub.save_torch_model(model, folder, max_shard_size=SHARD)


def by_hub_bin(model: Any, folder: Path) -> None:
    huggingface_hub.save_torch_state_dict(
        model.state_dict(), folder, safe_serialization=False, shared_tensors_to_discard=None
    )


def by_accelerate(model: Any, folder: Path) -> None:
    accelerate.Accelerator(cpu=True).save_model(model, folder)


def by_accelerate_shards(model: Any, folder: Path) -> None:
    accelerate.Accelerator(cpu=True).save_model(model, folder, max_shard_size=SHARD)


def by_accelerate_bin(model: Any, folder: Path) -> None:
    accelerate.Accelerator(cpu=True).save_model(model, folder, safe_serialization=False)


def by_torch(model: Any, folder: Path) -> None:
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def write(kind: str, tied: bool, save: Callable[[Any, Path], None], folder: Path) -> Facts:
    model = build(kind, tied)
    save(model, folder)
    return told(model, folder)


def state(folder: Path) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        if path.suffix in (".safetensors", ".bin"):
            tensors |= huggingface_hub.load_state_dict_from_file(path, weights_only=True, safe=path.suffix != ".bin")
    return tensors


def read(kind: str, save: Callable[[Any, Path], None], folder: Path) -> Any:
    """Load with the library that wrote the file; the config says whether a class of transformers is tied."""
    if kind == "own":
        tensors = state(folder)
        model: Any = Own("output.weight" not in tensors or "tok_embeddings.weight" not in tensors)
        model.load_state_dict(tensors, strict=False)
        return last_logits(model)
    if save is by_safetensors and (folder / "model.safetensors").exists():
        model = getattr(transformers, kind)(transformers.AutoConfig.from_pretrained(folder))
        load_model(model, folder / "model.safetensors")
        return last_logits(model)
    return last_logits(getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32))


SAVERS = {
    "safetensors save_model": by_safetensors, "hub save_torch_state_dict": by_hub, "hub shards": by_hub_shards,
    "hub bin": by_hub_bin, "accelerate": by_accelerate, "accelerate shards": by_accelerate_shards,
    "accelerate bin": by_accelerate_bin, "torch.save": by_torch,
}  # fmt: skip


def cases() -> Iterator[Case]:
    for title, save in SAVERS.items():
        for kind in KINDS:
            for tied in (True, False):
                name = f"{title} {kind.partition('For')[0]} {'tied' if tied else 'untied'}"
                renamed = tied and save in (by_safetensors, by_hub, by_hub_shards) and kind in HEAD_FIRST
                yield Case(
                    name, partial(write, kind, tied, save), partial(read, kind, save),
                    named=("TIE005",) if renamed else (), loader="safetensors" if save is by_safetensors else "",
                )  # fmt: skip


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    serve(cases())
