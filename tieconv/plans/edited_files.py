"""Turn edits into the files to write, to link and to leave out, in any layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tieconv.checkpoint import value_type
from tieconv.checkpoint.model_files import Checkpoint, Layout
from tieconv.checkpoint.weight_file import WeightFile
from tieconv.checkpoint.write_plan import (
    KeepTensor,
    LinkFile,
    Operation,
    OutputStorage,
    OutputTensor,
    OutputText,
    OutputWeights,
)
from tieconv.plans.edited_index import index_text
from tieconv.plans.edited_metadata import metadata_after, metadata_of_new
from tieconv.plans.edits import Edits

HEAD_SHARDS = {"safetensors": "model-head.safetensors", "torch": "pytorch_model-head.bin"}
"""The new shard for new tensors of a sharded model, by format. The bytes of other shards do not change.

The name starts like the other shards, so loaders that glob for ``model*.safetensors`` find it. It has no number, so no
other shard needs a new name.
"""


@value_type.record
class Files:
    """The weight files and index that a plan writes, links and removes."""

    weights: tuple[OutputWeights, ...]
    texts: tuple[OutputText, ...]
    links: tuple[LinkFile, ...]
    removed: tuple[str, ...]
    operations: tuple[Operation, ...]


def files_of(edits: Edits) -> Files:
    """Return the files to write, link and leave out. ``edits`` does not change."""
    edits = replace(edits, operations=list(edits.operations))  # the metadata operations are added to the copy
    return _sharded(edits) if edits.checkpoint.layout is Layout.SHARDED else _single(edits)


def _single(edits: Edits) -> Files:
    file = edits.checkpoint.files[0]
    changed = _rewrite(file, edits, edits.additions)
    weights = () if changed is None else (changed,)
    # mlx-lm writes an index for one file too.
    texts = index_text(edits, weights, []) if edits.checkpoint.index is not None else ()
    return _assemble(edits, weights, texts, removed=())


def _sharded(edits: Edits) -> Files:
    tensors = edits.checkpoint.tensors
    replaced = {name: edits.additions[name] for name in edits.additions if name in tensors}
    new = {name: added for name, added in edits.additions.items() if name not in tensors}
    weights: list[OutputWeights] = []
    removed: list[str] = []
    for file in edits.checkpoint.files:
        mine = {name: added for name, added in replaced.items() if tensors[name].range.file == file.name}
        changed = _rewrite(file, edits, mine)
        if changed is not None and not changed.tensors:
            removed.append(file.name)
        elif changed is not None:
            weights.append(changed)
    if new:
        shard = _unused_name(edits.checkpoint)
        metadata = metadata_of_new(edits, shard, {tensor.name for tensor, _ in new.values()})
        weights.append(OutputWeights(shard, tuple(tensor for tensor, _ in new.values()), metadata))
    text = index_text(edits, tuple(weights), removed)
    return _assemble(edits, tuple(weights), text, tuple(removed))


def _rewrite(file: WeightFile, edits: Edits, additions: Mapping[str, tuple[OutputTensor, str]]) -> OutputWeights | None:
    """Return the file with its edits, or ``None`` if nothing changes. A new tensor follows its source tensor."""
    mine = {tensor.name for tensor in file.tensors}
    metadata, changed = metadata_after(file, edits, _names_after(edits, mine, additions))
    trimmed = any(name == file.name for name, _ in edits.trims)
    if not (changed or additions or trimmed or mine & (edits.drops.keys() | edits.renames.keys())):
        return None
    storages = {storage.key: OutputStorage(storage.range, storage.crc) for storage in file.storages}
    storages |= {key: storage for (name, key), storage in edits.trims.items() if name == file.name}
    tensors: list[OutputTensor] = []
    for record in file.tensors:
        if record.name in additions:
            tensors.append(additions[record.name][0])
        elif record.name not in edits.drops:
            name = edits.renames[record.name].to if record.name in edits.renames else record.name
            home = storages[record.storage] if record.storage is not None else None
            tensors.append(OutputTensor(name, record.dtype, record.shape, record.range, record.stride, home))
        tensors += [
            tensor for name, (tensor, beside) in additions.items() if beside == record.name and name not in mine
        ]
    return OutputWeights(file.name, tuple(tensors), metadata, file.gguf)


def _names_after(edits: Edits, mine: set[str], additions: Mapping[str, tuple[OutputTensor, str]]) -> set[str]:
    """Return the names that a file with the names ``mine`` will have."""
    stays = {name for name in mine if name not in edits.drops and name not in additions}
    renamed = {edits.renames[name].to if name in edits.renames else name for name in stays}
    return renamed | {tensor.name for tensor, _ in additions.values()}


def _unused_name(checkpoint: Checkpoint) -> str:
    taken = {file.name for file in checkpoint.files} | set(checkpoint.companions)
    name = usual = HEAD_SHARDS[checkpoint.format]
    stem, _, suffix = usual.rpartition(".")
    number = 2
    while name in taken:
        name, number = f"{stem}-{number}.{suffix}", number + 1
    return name


def _assemble(
    edits: Edits, weights: tuple[OutputWeights, ...], texts: tuple[OutputText, ...], removed: tuple[str, ...]
) -> Files:
    checkpoint = edits.checkpoint
    written = {output.name for output in weights} | {text.name for text in texts} | set(removed)
    links = {file.name: file.size for file in checkpoint.files}
    for document in (checkpoint.index, checkpoint.config):
        if (
            document is not None and checkpoint.layout is not Layout.FILE
        ):  # a weight file given by itself is written without other files
            links[document.name] = checkpoint.states[document.name].size
    links |= checkpoint.companions
    touched = edits.drops.keys() | edits.renames.keys() | edits.additions.keys()
    unchanged = tuple(KeepTensor(name) for name in checkpoint.tensors if name not in touched)
    linked = tuple(LinkFile(name, size) for name, size in sorted(links.items()) if name not in written)
    return Files(weights, texts, linked, removed, (*edits.operations, *unchanged))


def with_text(files: Files, text: OutputText, operations: tuple[Operation, ...]) -> Files:
    """Return ``files`` with one more document that is written instead of linked."""
    return replace(
        files,
        texts=(*files.texts, text),
        links=tuple(link for link in files.links if link.name != text.name),
        operations=(*operations, *files.operations),
    )
