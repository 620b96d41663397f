"""transformers as the judge of what was written: it reloads a model and says whether anything changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tieconv
from fixtures import zoo
from tieconv.checkpoint.family import FlagMeaning
from tieconv.families import find

LAYOUTS = ("single", "sharded")
TORCH = "bin"
"""The layout of `torch.save`: transformers 5 still loads it and no longer writes it."""


@dataclass(frozen=True)
class Loaded:
    """A reloaded model's behaviour: logits on fixed inputs, both tables, and what the loader complained of."""

    logits: torch.Tensor | None
    tables: tuple[torch.Tensor, ...]
    missing: frozenset[str]
    unexpected: frozenset[str]
    shares_head: bool


def load(name: str, folder: Path) -> Loaded:
    """``folder`` as transformers loads it, run in the dtype that it is stored in."""
    model, info = zoo.model_class(name).from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    model.eval()
    weights = _tables(model)
    return Loaded(
        _logits(model),
        tuple(weight.detach().clone() for weight in weights),
        frozenset(info["missing_keys"]),
        frozenset(info["unexpected_keys"]),
        len(weights) == 2 and weights[0] is weights[1],
    )


def _tables(model: Any) -> list[torch.Tensor]:
    try:
        parts = [model.get_input_embeddings(), model.get_output_embeddings()]
    except NotImplementedError:  # several tables, none of them the input embedding
        return []
    return [part.weight for part in parts if isinstance(getattr(part, "weight", None), torch.Tensor)]


def _logits(model: Any) -> torch.Tensor | None:
    """``None`` for the few classes whose forward gives no logits from inputs that can be made up."""
    try:
        torch.manual_seed(0)
        return zoo.logits(model)
    except RuntimeError as error:
        if "no input works" in str(error):
            return None
        raise


def save(name: str, folder: Path, layout: str, *, tie: bool) -> Path:
    """A tiny random ``name``, saved as transformers saves it."""
    model = zoo.build(name, tie=tie)
    if layout == TORCH:
        return save_torch(model, folder)
    limit = {} if layout == "single" else {"max_shard_size": "50KB"}
    model.save_pretrained(folder, **limit)
    assert (folder / "model.safetensors.index.json").exists() == (layout == "sharded")
    return folder


def save_torch(model: Any, folder: Path) -> Path:
    """The model as older transformers saved it: its state dict, in which tied names share a storage."""
    folder.mkdir(parents=True)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return folder


def differences(before: Loaded, after: Loaded, *, shares_head: bool | None, head_factor: float = 1.0) -> list[str]:
    """What changed, in words; empty where the function is the same bit for bit.

    ``head_factor``: what the head is multiplied by where the forward pass no longer scales the logits itself.
    """
    found = []
    if (before.logits is None) != (after.logits is None):
        found.append("one has logits, the other none")
    elif before.logits is not None and not same_bits(before.logits, after.logits):
        worst = (before.logits - after.logits).abs().max().item()
        found.append(f"logits differ by {worst:.3g}")
    if len(before.tables) != len(after.tables):
        found.append("a table is missing")
    found += [
        f"table {place} differs"
        for place, (a, b) in enumerate(zip(before.tables, after.tables, strict=False))
        if not same_bits(a * head_factor if place else a, b)
    ]
    if after.missing - before.missing:
        found.append(f"missing {sorted(after.missing - before.missing)}")
    if after.unexpected - before.unexpected:
        found.append(f"unexpected {sorted(after.unexpected - before.unexpected)}")
    if shares_head is not None and len(after.tables) == 2 and after.shares_head is not shares_head:
        found.append("head is separate" if shares_head else "head is still shared")
    return found


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and bits: a NaN equals itself, and zeros of different sign differ."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def round_trip(name: str, layout: str, folder: Path) -> dict[str, str]:
    """Untie the tied ``name`` and tie it again, judged at each step.

    Returns a verdict for each verb: ``exact``, ``refused: reason``, or what went wrong.
    """
    source = save(name, folder / "tied", layout, tie=True)
    verdicts: dict[str, str] = {}
    before = load(name, source)
    untied = folder / "untied"
    try:
        tieconv.plan_untie(source).execute(untied)
    except tieconv.TieconvError as error:
        return {"untie": f"refused: {error.message}", "retie": "not reached"}
    found = differences(before, load(name, untied), shares_head=False, head_factor=head_factor(name))
    verdicts["untie"] = "exact" if not found else "; ".join(found)
    tied = folder / "back"
    try:
        tieconv.plan_retie(untied).execute(tied)
    except tieconv.TieconvError as error:
        return verdicts | {"retie": f"refused: {error.message}"}
    found = differences(before, load(name, tied), shares_head=before.shares_head)
    found += [f"{path} differs from the first" for path in changed_files(source, tied)]
    verdicts["retie"] = "exact" if not found else "; ".join(found)
    return verdicts


def head_factor(name: str) -> float:
    """By what untying multiplies the head: d_model**-0.5 where the tied forward pass scales the logits."""
    family = find({"architectures": [name]})
    return 1.0 if family.meaning_v5 is FlagMeaning.STORAGE else zoo.WIDTH**-0.5


def changed_files(a: Path, b: Path) -> list[str]:
    """Files that differ between two model directories, padding of safetensors headers aside.

    config.json is left out: its flag is made explicit where the class saved none.
    """
    names = {path.name for path in a.iterdir()} | {path.name for path in b.iterdir()}
    return sorted(name for name in names - {"config.json"} if content(a / name) != content(b / name))


def content(path: Path) -> object:
    """A file's bytes; for safetensors the header's JSON and the data behind it."""
    if not path.exists():
        return None
    data = path.read_bytes()
    if path.suffix == ".bin":
        # Names of one storage are one tensor here: tying drops the alias.
        state = torch.load(path, weights_only=True)
        return {(str(tensor.dtype), tuple(tensor.shape), str(tensor.tolist())) for tensor in state.values()}
    if path.suffix != ".safetensors":
        return data
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:]
