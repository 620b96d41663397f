"""transformers as the judge of what was written: it reloads a model and says whether anything changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fixtures import families, zoo
from tests.lazy import torch, transformers
from tests.reload.layouts import Subject
from tieconv.architectures import find
from tieconv.checkpoint.family import FlagMeaning

WITH_VOICES = {"Qwen2_5OmniForConditionalGeneration"}
"""Classes whose own `from_pretrained` reads voices beside the weights, and fails where loading info is asked for."""


@dataclass(frozen=True)
class Loaded:
    """A reloaded model's behaviour: logits on fixed inputs, both tables, and what the loader complained of.

    ``tensors``: a digest of every parameter and buffer; ``head``: the names of the output embedding among them.
    """

    logits: torch.Tensor | None
    tables: tuple[torch.Tensor, ...]
    missing: frozenset[str]
    unexpected: frozenset[str]
    shares_head: bool
    tensors: Mapping[str, str]
    head: frozenset[str]


def load(name: str, folder: Path) -> Loaded:
    """``folder`` as transformers loads it, run in the dtype that it is stored in."""
    kind = zoo.model_class(name)
    usual = partial(transformers.PreTrainedModel.from_pretrained.__func__, kind)
    load = usual if name in WITH_VOICES else kind.from_pretrained
    model, info = load(folder, output_loading_info=True, dtype=torch.float32)
    _align(model.eval())
    weights = _tables(model.get_submodule(families.INNER.get(kind.__name__, "")))
    state = model.state_dict(keep_vars=True)
    return Loaded(
        _logits(model),
        tuple(weight.detach().clone() for weight in weights),
        frozenset(info["missing_keys"]),
        frozenset(info["unexpected_keys"]),
        len(weights) == 2 and weights[0] is weights[1],
        {key: digest(tensor) for key, tensor in state.items()},
        frozenset(key for key, tensor in state.items() if weights[1:] and tensor is weights[1]),
    )


def _align(model: Any) -> None:
    """Memory of its own for every tensor: sums round by where the loader found the bytes in the file."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


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


def digest(tensor: torch.Tensor) -> str:
    """Of dtype, shape and bytes: a NaN equals itself, and zeros of different sign differ."""
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return f"{tensor.dtype} {tuple(tensor.shape)} {hashlib.blake2b(flat.numpy().tobytes()).hexdigest()}"


def save(name: str, folder: Path, layout: str, *, tie: bool) -> Path:
    """A tiny random ``name``, saved as transformers saves it."""
    return Subject(name).save(folder, layout, tie=tie)


def differences(before: Loaded, after: Loaded, *, shares_head: bool | None, head_factor: float = 1.0) -> list[str]:
    """What changed, in words; empty where the function is the same bit for bit.

    ``head_factor``: what the head is multiplied by where the forward pass no longer scales the logits itself.
    """
    found = []
    if (before.logits is None) != (after.logits is None):
        found.append("one has logits, the other none")
    elif before.logits is not None and after.logits is not None and not same_bits(before.logits, after.logits):
        worst = (before.logits - after.logits).abs().max().item()
        found.append(f"logits differ by {worst:.3g}")
    if len(before.tables) != len(after.tables):
        found.append("a table is missing")
    found += [
        f"table {place} differs"
        for place, (a, b) in enumerate(zip(before.tables, after.tables, strict=False))
        if not same_bits(a * head_factor if place else a, b)
    ]
    scaled = after.head if head_factor != 1.0 else frozenset()
    names = sorted(before.tensors.keys() | after.tensors.keys())
    changed = [name for name in names if before.tensors.get(name) != after.tensors.get(name) and name not in scaled]
    if changed:
        found.append(f"tensors differ: {', '.join(changed)}")
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


def head_factor(name: str) -> float:
    """By what untying multiplies the head: d_model**-0.5 where the tied forward pass scales the logits."""
    family = find({**zoo.tiny_config(name).to_dict(), "architectures": [zoo.model_class(name).__name__]})
    return 1.0 if family.meaning_v5 is FlagMeaning.STORAGE else zoo.WIDTH**-0.5


def changed_files(a: Path, b: Path) -> list[str]:
    """Files that differ between two model directories, padding of safetensors headers aside.

    config.json is left out: its flag is made explicit where the class saved none. The index of `.bin` shards is
    held to the shards beside it: tying drops an alias, and its entry.
    """
    names = {path.name for path in a.iterdir()} | {path.name for path in b.iterdir()}
    return sorted(name for name in names - {"config.json"} if content(a / name) != content(b / name))


def content(path: Path) -> object:
    """A file's bytes; for safetensors the header's JSON and the data behind it, for `.bin` its tensors."""
    if not path.exists():
        return None
    if path.suffix == ".bin":
        # Names of one storage are one tensor here: tying drops the alias.
        return {digest(tensor) for tensor in torch.load(path, weights_only=True).values()}
    if path.name == "pytorch_model.bin.index.json":
        return _is_right(path)
    data = path.read_bytes()
    if path.suffix != ".safetensors":
        return data
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), data[start:]


def _is_right(index: Path) -> bool:
    """Whether an index names each tensor of its `.bin` shards, where it stands."""
    stored = {name: path.name for path in index.parent.glob("*.bin") for name in torch.load(path, weights_only=True)}
    return bool(json.loads(index.read_text(encoding="utf-8"))["weight_map"] == stored)
