"""What `convert` does with a training checkpoint whose tensors are in chunks: contents, notes and proofs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.weight_file import ChunkTable, TensorRecord
from tieconv.checkpoint.write_plan import (
    Assembled,
    DropTensor,
    Equal,
    KeepTensor,
    Operation,
    OutputTensor,
    OutputText,
    Proof,
    RenameTensor,
)
from tieconv.plans.guards import again, refuse
from tieconv.text import count, shown

_CONFIG = "config.json"
_MEGATRON = frozenset({"common.pt", "metadata.json"})
"""The files that Megatron-LM and NeMo write beside the tensors."""
_WEIGHTS = (".distcp", ".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".safetensors.index.json")
"""Suffixes of files that hold weights or training state, which the converted model does not need."""


def convertible(inspection: Inspection, to: str) -> Inspection:
    """Return the evidence without the mark that no command writes the format. Refuses what cannot be converted."""
    checkpoint = inspection.checkpoint
    source = shown(checkpoint.source)
    if checkpoint.headers_only:
        refuse(
            f"tieconv reads only the names and shapes of {source}",
            "copy it to this machine, and save it without extensions of torch.distributed.checkpoint",
            "dcp.headers-only",
        )
    if checkpoint.companions.keys() >= _MEGATRON:
        refuse(
            f"{source} is a checkpoint of Megatron-LM, whose tensors have other names than those of transformers",
            'export it with Megatron Bridge or NeMo: llm.export_ckpt(..., target="hf")',
            "dcp.megatron",
        )
    if to != "safetensors":
        refuse(
            f"{source} is a training checkpoint, which tieconv converts only to safetensors",
            again(inspection, "convert", "--to", "safetensors", "-o", "OUT"),
            "dcp.target",
        )
    if not checkpoint.tensors:
        refuse(f"{source} has no tensor of a model", again(inspection, "inspect"), "dcp.empty")
    return replace(inspection, checkpoint=replace(checkpoint, read_only=""))


def assembled(table: ChunkTable, record: TensorRecord) -> OutputTensor:
    """Return the tensor, put together from its chunks."""
    content = Assembled(record, table.chunks[record.name], record.name in table.overlapping)
    return OutputTensor(record.name, record.dtype, record.shape, content)


def config_text(checkpoint: Checkpoint) -> tuple[OutputText, ...]:
    """Return the config of a training checkpoint, which may be in another directory."""
    if not checkpoint.table or checkpoint.config is None:
        return ()
    return (OutputText(_CONFIG, checkpoint.config.text),)


def companions(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the files that go into the model: neither weights nor the state of the trainer."""
    return {name: size for name, size in checkpoint.companions.items() if not name.endswith(_WEIGHTS)}


def left_out(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield notes on what the model does not get, and on the prefix that its names lose."""
    table = checkpoint.table
    if not table:
        return
    prefix = _prefix(table)
    if prefix:
        yield f"convert removes the prefix {shown(prefix)} from the tensor names"
    if table.training:
        yield f"convert leaves out {count(len(table.training), 'tensor')} of training state"
    if table.outside:
        first = shown(next(iter(table.outside)))
        yield f"convert leaves out {count(len(table.outside), 'tensor')} beside the model, such as {first}"
    if checkpoint.config is None:
        yield "the checkpoint holds no config.json, so convert keeps the stored names and every tensor"
        yield "to convert the model, copy its config.json into the checkpoint first"
    elif checkpoint.config.name != _CONFIG:
        folder = os.path.dirname(checkpoint.config.name)
        yield f"the config is that of {shown(folder)}; copy the tokenizer from there"


def _prefix(table: ChunkTable) -> str:
    """Return what the names lose at their start, of the first tensor whose name is changed there."""
    pairs = ((stored, name) for name, stored in table.stored_names.items())
    return next((stored.removesuffix(name) for stored, name in pairs if stored != name and stored.endswith(name)), "")


def keep_tensor(checkpoint: Checkpoint, name: str) -> Operation:
    """Return the operation on a tensor of the model, whose name may lose a prefix."""
    stored = checkpoint.table.stored_names.get(name, name)
    return KeepTensor(name) if stored == name else RenameTensor(stored, name)


def operations(checkpoint: Checkpoint) -> Iterator[Operation]:
    """Yield the operations on the tensors that are not the model's."""
    table = checkpoint.table
    for name in table.training:
        yield DropTensor(name, "it is training state, not a weight")
    for name in table.outside:
        yield DropTensor(name, "it is not below the model's prefix")


def proofs(checkpoint: Checkpoint, dropped: Mapping[str, str]) -> tuple[Proof, ...]:
    """Return the proof for each copy that is left out of the model."""
    if not checkpoint.table:
        return ()
    tensors = checkpoint.tensors
    return tuple(Equal(tensors[name], tensors[source]) for name, source in dropped.items())
