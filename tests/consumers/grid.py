"""Small checkpoints: every tie flag at every level, head, embedding, bias and format, for a class of each kind."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixtures import zoo
from tests.lazy import load_file, save_file, torch
from tieconv.architectures import find
from tieconv.checkpoint.family import Family, Role

SAFETENSORS, TORCH = "safetensors", "torch"
FLAGS = (True, False, None)
HEADS = ("absent", "equal", "rows", "different")


@dataclass(frozen=True)
class Cell:
    """One checkpoint. ``flags`` go with the levels of the config, the top first; ``None`` leaves the flag out."""

    kind: str
    flags: tuple[bool | None, ...]
    head: str
    embedding: bool
    copies: bool  # whether the other tied tables of an encoder-decoder are stored too
    bias: str
    format: str

    @property
    def name(self) -> str:
        """A short name for a report."""
        flags = "".join({True: "T", False: "F", None: "-"}[flag] for flag in self.flags)
        parts = [self.kind, flags, f"head {self.head}", "" if self.embedding else "no embedding"]
        parts += ["copies" if self.copies else "", f"bias {self.bias}" if self.bias != "absent" else "", self.format]
        return ", ".join(filter(None, parts))


PLAN: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"bias": ("absent", "zero", "nonzero"), "format": (SAFETENSORS, TORCH)},
    "GPT2LMHeadModel": {"bias": ("absent", "nonzero"), "format": (SAFETENSORS, TORCH)},
    "GemmaForCausalLM": {"format": (SAFETENSORS, TORCH)},
    "PhiForCausalLM": {"bias": ("absent", "zero", "nonzero")},
    "OPTForCausalLM": {},
    "BertForMaskedLM": {"bias": ("absent", "outer", "inner", "equal", "unequal", "zero")},
    "RobertaForMaskedLM": {"bias": ("outer", "inner", "unequal")},
    "T5ForConditionalGeneration": {"copies": (False, True)},
    "BartForConditionalGeneration": {"bias": ("absent", "nonzero"), "copies": (False, True)},
    "LlavaForConditionalGeneration": {},
    "Gemma3ForConditionalGeneration": {},
    "Qwen2VLForConditionalGeneration": {},
}
"""What varies for each class beside flags, head and embedding."""


def cells() -> Iterator[Cell]:
    """Every checkpoint of the grid."""
    for kind, varied in PLAN.items():
        levels = 1 + bool(family(kind).levels)
        for flags, head, embedding, copies, bias, form in itertools.product(
            itertools.product(FLAGS, repeat=levels),
            HEADS,
            (True, False),
            varied.get("copies", (False,)),
            varied.get("bias", ("absent",)),
            varied.get("format", (SAFETENSORS,)),
        ):
            yield Cell(kind, flags, head, embedding, copies, bias, form)


def family(kind: str) -> Family:
    """What the table says of a class."""
    return find({"architectures": [kind]})


class Foundry:
    """Writes checkpoints; each class is built once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor]]] = {}

    def write(self, cell: Cell, folder: Path) -> Path:
        """The checkpoint as a directory."""
        config, tensors = self._model(cell.kind)
        folder.mkdir(parents=True)
        flagged = _flagged(config, family(cell.kind), cell.flags)
        (folder / "config.json").write_text(json.dumps(flagged))
        made = _tensors(cell, tensors)
        if cell.format == SAFETENSORS:
            save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
        else:
            torch.save(made, folder / "pytorch_model.bin")
        return folder

    def _model(self, kind: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        if kind not in self._models:
            folder = self._folder / f"base-{kind}"
            zoo.build(kind, tie=True).save_pretrained(folder)
            config = json.loads((folder / "config.json").read_text())
            self._models[kind] = _bare(config), load_file(folder / "model.safetensors")
        return self._models[kind]


def job(cell: Cell, folder: Path, number: int) -> dict[str, Any]:
    """What `run_transformers.py` needs to know of a checkpoint."""
    known = family(cell.kind)
    renames = dict(known.renames)
    tables = [name for group in known.groups if group.role is Role.WORD_EMBEDDING for name in _names(group)]
    others = [name for name in tables if name not in (known.input_embedding, known.output_head)]
    return {
        "id": number,
        "class": cell.kind,
        "folder": str(folder),
        "embedding": known.input_embedding,
        "head": known.output_head,
        "tables": [renames.get(name, name) for name in others],
        "biases": list(_bias_names(known)),
    }


def _names(group: Any) -> tuple[str, ...]:
    return (group.canonical, *group.members)


def _bias_names(known: Family) -> tuple[str, ...]:
    head = known.output_head or ""
    return known.output_biases or (f"{head.removesuffix('.weight')}.bias",)


def _bare(value: Any) -> Any:
    """A config without any tie flag."""
    if isinstance(value, dict):
        return {key: _bare(entry) for key, entry in value.items() if key != "tie_word_embeddings"}
    return value


def _flagged(config: dict[str, Any], known: Family, flags: tuple[bool | None, ...]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(config))
    for level, flag in zip(("", *known.levels[:1]), flags, strict=True):
        place = made
        for key in level.split(".") if level else ():
            place = place.setdefault(key, {})
        if flag is not None:
            place["tie_word_embeddings"] = flag
    return made


def _tensors(cell: Cell, base: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    known = family(cell.kind)
    assert known.input_embedding and known.output_head
    played = {name for group in known.groups for name in _names(group)} | {*_bias_names(known)}
    embedding = base[known.input_embedding]
    made = {name: tensor for name, tensor in base.items() if name not in played}
    if cell.embedding:
        made[known.input_embedding] = embedding
    if cell.copies:
        words = next(group for group in known.groups if group.role is Role.WORD_EMBEDDING)
        others = (name for name in _names(words) if name not in (known.input_embedding, known.output_head))
        made.update({name: embedding.clone() for name in others})
    if cell.head != "absent":
        made[known.output_head] = _head(cell, embedding)
    return {**made, **_biases(cell, known, embedding.shape[0])}


def _head(cell: Cell, embedding: torch.Tensor) -> torch.Tensor:
    if cell.head == "equal":
        # A torch file can hold two names of one tensor; a safetensors file holds two tensors.
        return embedding if cell.format == TORCH else embedding.clone()
    if cell.head == "rows":
        head = embedding.clone()
        head[3:5] += 1
        return head
    return embedding.flip(0).contiguous()


def _biases(cell: Cell, known: Family, rows: int) -> dict[str, torch.Tensor]:
    names = _bias_names(known)
    shape = (1, rows) if known.bias_is_row else (rows,)
    one = torch.linspace(1, 2, rows).reshape(shape)
    outer, inner = names[0], names[-1]
    match cell.bias:
        case "absent":
            return {}
        case "zero":
            return {outer: torch.zeros(shape)}
        case "nonzero" | "outer":
            return {outer: one}
        case "inner":
            return {inner: one}
        case "equal":
            return {outer: one, inner: one.clone()}
    return {outer: one, inner: one + 1}
