"""Lay out tensors for new files: dense or in their storages, split into shards, widest dtypes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.weight_file import BITS, TensorRecord
from tieconv.checkpoint.write_plan import Gathered, OutputStorage, OutputTensor
from tieconv.plans.verbs.dedup import trimmed


def dense(record: TensorRecord) -> OutputTensor:
    """Return the tensor with its elements in row-major order; gathers a strided view."""
    if record.stride is None:
        return OutputTensor(record.name, record.dtype, record.shape, record.range)
    content = Gathered(record.range, record.dtype, record.shape, record.stride)
    return OutputTensor(record.name, record.dtype, record.shape, content)


class Storages:
    """Storages of a new torch file: the source storages without the bytes that no tensor views."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.homes: dict[tuple[str, str], OutputStorage] = {}
        for file in checkpoint.files:
            for storage in file.storages:
                views = [record for record in file.tensors if record.storage == storage.key]
                self.homes[file.name, storage.key] = trimmed(storage, views)

    def output(self, record: TensorRecord) -> OutputTensor:
        """Return the tensor as a view of its storage."""
        home = None if record.storage is None else self.homes[record.range.file, record.storage]
        return OutputTensor(record.name, record.dtype, record.shape, record.range, record.stride, home)


def _storage_of(tensor: OutputTensor) -> object:
    return tensor.storage or tensor


def split_shards(tensors: Iterable[OutputTensor], limit: int) -> Iterator[list[OutputTensor]]:
    """Split tensors greedily in the given order, as `huggingface_hub` does; tensors of one storage stay together."""
    blocks: dict[object, list[OutputTensor]] = {}
    for tensor in tensors:
        blocks.setdefault(_storage_of(tensor), []).append(tensor)
    shard: list[OutputTensor] = []
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


def widest_first(tensors: list[OutputTensor]) -> list[OutputTensor]:
    """Sort tensors by dtype width, widest first, so that each one starts aligned and readers can map it."""
    return sorted(tensors, key=lambda tensor: -BITS.get(tensor.dtype, 8))
