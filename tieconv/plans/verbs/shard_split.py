"""Tensors as they are stored anew: dense or in their storages, in shards of a size, widest types first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.files.dtypes import BITS
from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.write_plan.output import Gathered, OutputStorage, OutputTensor
from tieconv.plans.verbs.dedup import trimmed


def dense(record: TensorRecord) -> OutputTensor:
    """The tensor with its elements in order: a strided view is gathered."""
    if record.stride is None:
        return OutputTensor(record.name, record.dtype, record.shape, record.range)
    content = Gathered(record.range, record.dtype, record.shape, record.stride)
    return OutputTensor(record.name, record.dtype, record.shape, content)


class Storages:
    """Storages of a torch file to write: those of the source, without the bytes that no tensor is a view of."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.homes: dict[tuple[str, str], OutputStorage] = {}
        for file in checkpoint.files:
            for storage in file.storages:
                views = [record for record in file.tensors if record.storage == storage.key]
                self.homes[file.name, storage.key] = trimmed(storage, views)

    def output(self, record: TensorRecord) -> OutputTensor:
        """The tensor as a view of its storage."""
        home = None if record.storage is None else self.homes[record.range.file, record.storage]
        return OutputTensor(record.name, record.dtype, record.shape, record.range, record.stride, home)


def _storage_of(tensor: OutputTensor) -> object:
    return tensor.storage or tensor


def split_shards(tensors: Iterable[OutputTensor], limit: int) -> Iterator[list[OutputTensor]]:
    """Greedy in the given order, as `huggingface_hub` splits a state dict: tensors of one storage stay together."""
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
    """Widest types first, so that each tensor starts on a multiple of its element: readers map them in place."""
    return sorted(tensors, key=lambda tensor: -BITS.get(tensor.dtype, 8))
