"""Plan the same tensors in another format, or in shards of another size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from typing import Any

from tieconv.architectures.effective_flag import is_foreign
from tieconv.checkpoint import write_plan
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import TRAINING, WEIGHTS_KEY, Checkpoint, Layout
from tieconv.checkpoint.value_type import Choice
from tieconv.checkpoint.weight_file import BITS, KEY, ChunkTable, TensorRecord, entry, marked
from tieconv.formats.limits import MAX_TENSORS
from tieconv.plans.build import accept_copies, kept_promises
from tieconv.plans.edits import stored
from tieconv.plans.guards import MANY_FOR_TORCH, again, guard_layout, guard_many, refuse
from tieconv.plans.meaning import described, judged
from tieconv.plans.verbs.dedup import shared_groups, trimmed
from tieconv.text import OUT, Hint, count, in_words, option, shown, size

SHARD_SIZE = 5_000_000_000
"""Default number of bytes in a shard; huggingface_hub has the same default."""


class Format(Choice):
    """The format that `convert` writes."""

    SAFETENSORS = "safetensors"
    TORCH = "torch"


_FILES = {Format.SAFETENSORS: ("model", ".safetensors"), Format.TORCH: ("pytorch_model", ".bin")}


def plan_convert(inspection: Inspection, to: Format, max_shard_size: int = SHARD_SIZE) -> write_plan.Plan:
    """Return the plan that stores the model as ``to``, in shards of at most ``max_shard_size`` tensor bytes.

    A larger tensor gets a separate shard. Names that share one storage become one tensor if loaders restore the
    other names. Otherwise each name becomes a separate tensor. Raises `RefusedError` if the layout is ambiguous.
    Also raises it if another file in the directory has the name of an output file.
    """
    if inspection.checkpoint.table:
        inspection = convertible(inspection, to)
    guard_layout(inspection, allowed=TRAINING if to is Format.SAFETENSORS else "")
    checkpoint = inspection.checkpoint
    if to is Format.TORCH:
        guard_many(checkpoint, MANY_FOR_TORCH)
        if any("tensor_names" in (file.metadata or ()) for file in checkpoint.files):
            reason = "torchao builds these tensors from the metadata of safetensors, which a torch file does not have"
            refuse(reason, "convert the model before it is quantised", "plan.torchao")
    dropped, notes = _aliases(inspection) if to is Format.SAFETENSORS else ({}, ())
    shape = dense if to is Format.SAFETENSORS else Storages(checkpoint).output
    if checkpoint.table:
        shape = partial(assembled, checkpoint.table)
    tensors = [shape(record) for record in checkpoint.tensors.values() if record.name not in dropped]
    whole = checkpoint.layout is Layout.FILE
    groups = [tensors] if whole else list(split_shards(tensors, max_shard_size)) or [[]]
    metadata, disagreeing = _metadata(checkpoint, to)
    weights = _weights(checkpoint, groups, to, metadata)
    for file in weights if to is Format.TORCH else ():
        if len(file.tensors) > MAX_TENSORS // 2:
            refuse(
                f"{shown(file.name)} would hold {len(file.tensors):,} tensors, and tieconv reads at most "
                f"{MAX_TENSORS // 2:,} storages of a torch file",
                Hint("write smaller files with ", option("max_shard_size")),
                "plan.many-storages",
            )
    # The config of a training checkpoint may be in another directory.
    config = checkpoint.config if checkpoint.table else None
    texts = (
        *((write_plan.OutputText(_CONFIG, config.text),) if config else ()),
        *((_index(checkpoint, weights, to),) if len(weights) > 1 else _one_file_index(checkpoint, weights)),
    )
    plan = _assemble(inspection, to, weights, texts, dropped)
    notes = (*_left_out(checkpoint), *notes, *disagreeing)
    if whole and weights[0].nbytes > max_shard_size:
        notes = (*notes, "a weight file becomes one file, larger than --max-shard-size: give a directory for shards")
    return judged(plan, inspection, described(inspection, plan), notes, spared=dropped)


def _left_out(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield a note on the training state that `convert` does not write."""
    yield from left_out(checkpoint)
    for caution in checkpoint.cautions:
        if caution.code == TRAINING:
            yield f"{caution.message}: convert writes only the model, not the training state"


def _weights(
    checkpoint: Checkpoint, groups: list[list[write_plan.OutputTensor]], to: Format, metadata: Mapping[str, str] | None
) -> tuple[write_plan.OutputWeights, ...]:
    stem, suffix = _FILES[to]
    if checkpoint.layout is Layout.FILE:
        names = [PurePath(checkpoint.files[0].name).stem + suffix]
    elif len(groups) == 1:
        names = [stem + suffix]
    else:
        names = [f"{stem}-{number:05d}-of-{len(groups):05d}{suffix}" for number in range(1, len(groups) + 1)]
    return tuple(
        write_plan.OutputWeights(name, tuple(group if to is Format.TORCH else widest_first(group)), metadata)
        for name, group in zip(names, groups, strict=True)
    )


def _metadata(checkpoint: Checkpoint, to: Format) -> tuple[Mapping[str, str] | None, tuple[str, ...]]:
    """Return the metadata for every output file, and notes; if source files disagree, the first value counts."""
    if checkpoint.format != to:
        # transformers 4 cannot load a safetensors file without this entry; a torch file has no metadata.
        return ({"format": "pt"}, ()) if to is Format.SAFETENSORS else (None, tuple(_lost(checkpoint)))
    present = [file.metadata for file in checkpoint.files if file.metadata is not None]
    merged: dict[str, str] = {}
    disagreeing = []
    for metadata in present:
        disagreeing += [key for key, value in metadata.items() if merged.setdefault(key, value) != value]
    if KEY in disagreeing:  # each file marks its own copies
        merged[KEY] = entry(marked(checkpoint.files))
    notes = (
        f"the files disagree on the metadata entry {shown(key)}: convert keeps the first value"
        for key in sorted({*disagreeing} - {KEY})
    )
    return merged if present else None, tuple(notes)


def _lost(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield notes on the metadata of safetensors files that a torch file cannot hold."""
    keys = sorted({key for file in checkpoint.files for key in file.metadata or ()} - {"format"})
    if keys:
        word = "entry" if len(keys) == 1 else "entries"
        yield f"convert drops the metadata {word} {in_words(keys, 4)}: a torch file has no metadata"
    names = marked(checkpoint.files) & checkpoint.tensors.keys()
    if names:
        yield accept_copies(f"the file no longer marks {in_words(sorted(names), 4)} as stored twice on purpose. ")


def _index(checkpoint: Checkpoint, weights: tuple[write_plan.OutputWeights, ...], to: Format) -> write_plan.OutputText:
    stem, suffix = _FILES[to]
    old = checkpoint.index.value.get("metadata") if checkpoint.index else None
    metadata: dict[str, Any] = dict(old) if isinstance(old, Mapping) else {}
    metadata["total_size"] = sum(file.nbytes for file in weights)
    entries = {tensor.name: file.name for file in weights for tensor in file.tensors}
    text = json.dumps({"metadata": metadata, "weight_map": entries}, indent=2, sort_keys=True) + "\n"
    return write_plan.OutputText(f"{stem}{suffix}.index.json", text)


def _one_file_index(
    checkpoint: Checkpoint, weights: tuple[write_plan.OutputWeights, ...]
) -> tuple[write_plan.OutputText, ...]:
    """Return the index of a model that stays one file: mlx-lm writes one."""
    document = _document(checkpoint) if checkpoint.layout is Layout.SINGLE else None
    return (document,) if document is not None and all(_stands(checkpoint, output) for output in weights) else ()


def _aliases(inspection: Inspection) -> tuple[dict[str, str], tuple[str, ...]]:
    """Map each name that loaders restore to the stored name; return it with notes on the other shared names."""
    tensors, table = inspection.checkpoint.tensors, inspection.checkpoint.table
    # The strict loader of another program wants every name.
    groups = () if is_foreign(inspection.checkpoint.config_values) else shared_groups(inspection)
    restored = {name: group.needed[0][0] for group in groups for name in group.restored}
    dropped = {
        name: source for name, source in restored.items() if table or _same_bytes(tensors[name], tensors[source])
    }
    first_names: dict[object, str] = {}
    notes = []
    for record in tensors.values():
        if record.storage is None or record.name in dropped:
            continue
        first = first_names.setdefault(_view(record), record.name)
        if first != record.name:
            notes.append(
                f"convert writes {shown(record.name)} as a separate tensor: safetensors cannot share its storage with "
                f"{shown(first)}, and no loader restores it"
            )
    return dropped, tuple(notes)


def _view(record: TensorRecord) -> object:
    return record.range, record.stride, record.dtype, record.shape


def _same_bytes(record: TensorRecord, source: TensorRecord) -> bool:
    return record.storage is not None and _view(record) == _view(source)


def _assemble(
    inspection: Inspection,
    to: Format,
    weights: tuple[write_plan.OutputWeights, ...],
    texts: tuple[write_plan.OutputText, ...],
    dropped: Mapping[str, str],
) -> write_plan.Plan:
    checkpoint = inspection.checkpoint
    changed = tuple(output for output in weights if not _stands(checkpoint, output))
    rewritten = tuple(text for text in texts if checkpoint.index is None or text != _document(checkpoint))
    written = {output.name for output in changed} | {text.name for text in rewritten}
    used = written | {output.name for output in weights} | {text.name for text in texts}
    taken = sorted(used & checkpoint.companions.keys())
    if taken:
        problem = f"{shown(checkpoint.source)} already contains another file with the name {shown(taken[0])}"
        refuse(f"{problem}, which convert would write", "move that file out of the directory", "convert.taken")
    named = checkpoint.config_values.get(WEIGHTS_KEY)
    if checkpoint.layout is not Layout.FILE and isinstance(named, str) and named in checkpoint.states.keys() - used:
        problem = f"config.json: {WEIGHTS_KEY} is {shown(named)}"
        hint = f"remove {WEIGHTS_KEY} from config.json, then run convert again"
        refuse(f"{problem}, but convert writes the weights under the standard names", hint, "convert.named")
    before = [file.name for file in checkpoint.files] + ([checkpoint.index.name] if checkpoint.index else [])
    kept_or_dropped: tuple[write_plan.Operation, ...] = tuple(
        write_plan.DropTensor(name, dropped[name] and f"loaders take its values from {dropped[name]}")
        if name in dropped
        else keep_tensor(checkpoint, name)
        for name in checkpoint.tensors
    )
    linked = ((name, size) for name, size in _links(checkpoint, before, used) if name not in written)
    return write_plan.Plan(
        command="convert",
        checkpoint=checkpoint,
        fingerprint=dict(checkpoint.states),
        operations=(*kept_or_dropped, *operations(checkpoint)),
        weights=changed,
        texts=rewritten,
        links=tuple(write_plan.LinkFile(name, size) for name, size in linked),
        # A training checkpoint holds more than the new files, so convert does not remove it.
        removed=() if any(_left_out(checkpoint)) else tuple(name for name in before if name not in used),
        promises=kept_promises(inspection, inspection.ties, checkpoint.tensors.keys() - dropped.keys()),
        summary=_summary(to, weights, changed),
        options={"to": str(to)},
        proofs=proofs(checkpoint, dropped),
    )


def _stands(checkpoint: Checkpoint, output: write_plan.OutputWeights) -> bool:
    """Return whether the source already has this exact file."""
    file = next((file for file in checkpoint.files if file.name == output.name), None)
    if file is None or file.metadata != output.metadata:
        return False
    live = sum(storage.range.size for storage in file.storages)
    if file.storages and live != output.nbytes:
        return False
    return [(tensor.name, tensor.content) for tensor in output.tensors] == [
        (record.name, record.range) for record in file.tensors
    ]


def _document(checkpoint: Checkpoint) -> write_plan.OutputText | None:
    return write_plan.OutputText(checkpoint.index.name, checkpoint.index.text) if checkpoint.index else None


def _links(checkpoint: Checkpoint, before: list[str], used: set[str]) -> Iterator[tuple[str, int]]:
    names = {name: checkpoint.states[name].size for name in before if name in used}
    if checkpoint.config is not None and checkpoint.layout is not Layout.FILE and not checkpoint.table:
        names[checkpoint.config.name] = checkpoint.states[checkpoint.config.name].size
    beside = companions(checkpoint) if checkpoint.table else checkpoint.companions
    yield from sorted({**names, **beside}.items())


def _summary(
    to: Format, weights: tuple[write_plan.OutputWeights, ...], changed: tuple[write_plan.OutputWeights, ...]
) -> str:
    largest = max(file.nbytes for file in weights)
    shape = f"{count(len(weights), f'{to} file')}" + (f" of at most {size(largest)}" if len(weights) > 1 else "")
    return shape if changed else f"already stored as {shape}: nothing to change"


# What `convert` does with a training checkpoint whose tensors are in chunks: contents, notes and proofs.

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
        hint = checkpoint.read_only
        if os.path.exists(checkpoint.root):
            hint = "save it without extensions of torch.distributed.checkpoint"
        refuse(f"tieconv reads only the names and shapes of {source}", hint, "dcp.headers-only")
    if checkpoint.companions.keys() >= _MEGATRON:
        problem = f"{source} is a checkpoint of Megatron-LM, whose tensors have other names than those of transformers"
        refuse(problem, 'export it with Megatron Bridge or NeMo: llm.export_ckpt(..., target="hf")', "dcp.megatron")
    if to != "safetensors":
        problem = f"{source} is a training checkpoint, which tieconv converts only to safetensors"
        refuse(problem, again(inspection, "convert", to="safetensors", out=OUT), "dcp.target")
    if not checkpoint.tensors:
        refuse(f"{source} has no tensor of a model", again(inspection, "inspect"), "dcp.empty")
    return replace(inspection, checkpoint=replace(checkpoint, read_only=""))


def assembled(table: ChunkTable, record: TensorRecord) -> write_plan.OutputTensor:
    """Return the tensor, put together from its chunks."""
    content = write_plan.Assembled(record, table.chunks[record.name], record.name in table.overlapping)
    return write_plan.OutputTensor(record.name, record.dtype, record.shape, content)


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


def keep_tensor(checkpoint: Checkpoint, name: str) -> write_plan.Operation:
    """Return the operation on a tensor of the model, whose name may lose a prefix."""
    before = checkpoint.table.stored_names.get(name, name)
    return write_plan.KeepTensor(name) if before == name else write_plan.RenameTensor(before, name)


def operations(checkpoint: Checkpoint) -> Iterator[write_plan.Operation]:
    """Yield the operations on the tensors that are not the model's."""
    table = checkpoint.table
    for name in table.training:
        yield write_plan.DropTensor(name, "it is training state, not a weight")
    for name in table.outside:
        yield write_plan.DropTensor(name, "it is not below the model's prefix")


def proofs(checkpoint: Checkpoint, dropped: Mapping[str, str]) -> tuple[write_plan.Proof, ...]:
    """Return the proof for each copy that is left out of the model."""
    if not checkpoint.table:
        return ()
    tensors = checkpoint.tensors
    return tuple(write_plan.Equal(tensors[name], tensors[source]) for name, source in dropped.items())


# Lay out tensors for new files: dense or in their storages, split into shards, widest dtypes first.
def dense(record: TensorRecord) -> write_plan.OutputTensor:
    """Return the tensor with its elements in row-major order; gathers a strided view."""
    if record.stride is None:
        return stored(record, record.name)
    content = write_plan.Gathered(record.range, record.dtype, record.shape, record.stride)
    return write_plan.OutputTensor(record.name, record.dtype, record.shape, content)


class Storages:
    """Storages of a new torch file: the source storages without the bytes that no tensor views."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.homes: dict[tuple[str, str], write_plan.OutputStorage] = {}
        for file in checkpoint.files:
            for storage in file.storages:
                views = [record for record in file.tensors if record.storage == storage.key]
                self.homes[file.name, storage.key] = trimmed(storage, views)

    def output(self, record: TensorRecord) -> write_plan.OutputTensor:
        """Return the tensor as a view of its storage."""
        home = None if record.storage is None else self.homes[record.range.file, record.storage]
        return stored(record, record.name, home)


def split_shards(tensors: Iterable[write_plan.OutputTensor], limit: int) -> Iterator[list[write_plan.OutputTensor]]:
    """Split tensors greedily in the given order, as `huggingface_hub` does; tensors of one storage stay together."""
    blocks: dict[object, list[write_plan.OutputTensor]] = {}
    for tensor in tensors:
        blocks.setdefault(tensor.storage or tensor, []).append(tensor)
    shard: list[write_plan.OutputTensor] = []
    total = 0
    for block in blocks.values():
        needed = block[0].storage.range.size if block[0].storage else block[0].nbytes
        if needed > limit:
            yield block
            continue
        if shard and total + needed > limit:
            yield shard
            shard, total = [], 0
        shard += block
        total += needed
    if shard:
        yield shard


def widest_first(tensors: list[write_plan.OutputTensor]) -> list[write_plan.OutputTensor]:
    """Sort tensors by dtype width, widest first, so that each one starts aligned and readers can map it."""
    return sorted(tensors, key=lambda tensor: -BITS.get(tensor.dtype, 8))
