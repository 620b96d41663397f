"""Write distributed checkpoints with any chunks, as the ranks of a training run do, without starting ranks."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from tests.lazy import torch

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sides of a chunk."""


def save_chunks(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    boxes: Mapping[str, Sequence[Box]],
    ranks: int = 2,
    paths: Mapping[str, tuple[str, ...]] | None = None,
) -> Path:
    """Save each tensor in its boxes (or whole), dealt out to the files of ``ranks``; return the folder."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Any] = {}
    storage: dict[MetadataIndex, _StorageInfo] = {}
    streams = [(f"__{rank}_0.distcp", (folder / f"__{rank}_0.distcp").open("wb")) for rank in range(ranks)]
    turn = 0
    for name, tensor in tensors.items():
        chunks = []
        for offsets, sides in boxes.get(name, [((0,) * tensor.dim(), tuple(tensor.shape))]):
            file, stream = streams[turn % ranks]
            turn += 1
            slices = tuple(slice(start, start + side) for start, side in zip(offsets, sides, strict=True))
            start = stream.tell()
            torch.save(tensor[slices].clone(), stream)
            storage[MetadataIndex(name, offsets)] = _StorageInfo(file, start, stream.tell() - start)
            chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sides)))
        properties = TensorProperties(dtype=tensor.dtype)
        entries[name] = TensorStorageMetadata(properties, tensor.size(), chunks)
    for _, stream in streams:
        stream.close()
    planned = dict(paths) if paths else {name: (name,) for name in tensors}
    (folder / ".metadata").write_bytes(pickle.dumps(Metadata(entries, planned, storage)))
    return folder


def random_boxes(rng: random.Random, shape: Sequence[int], cuts: int) -> list[Box]:
    """Return boxes that cover ``shape``: the whole, cut ``cuts`` times at a random place of a random dimension."""
    boxes: list[Box] = [((0,) * len(shape), tuple(shape))]
    for _ in range(cuts):
        number = rng.randrange(len(boxes))
        offsets, sides = boxes[number]
        axes = [axis for axis, side in enumerate(sides) if side > 1]
        if axes:
            boxes[number : number + 1] = _cut(offsets, sides, axis := rng.choice(axes), rng.randrange(1, sides[axis]))
    rng.shuffle(boxes)
    return boxes


def _cut(offsets: tuple[int, ...], sides: tuple[int, ...], axis: int, at: int) -> Iterator[Box]:
    yield offsets, (*sides[:axis], at, *sides[axis + 1 :])
    yield (
        (*offsets[:axis], offsets[axis] + at, *offsets[axis + 1 :]),
        (*sides[:axis], sides[axis] - at, *sides[axis + 1 :]),
    )


def mesh(shape: Sequence[int], parts: Sequence[int]) -> list[Box]:
    """Return the boxes of a mesh with ``parts`` in each dimension; the last parts are smaller, as those of FSDP."""
    cells = [()]
    for side, count in zip(shape, parts, strict=True):
        step = -(-side // count)
        spans = [(start, min(step, side - start)) for start in range(0, side, step)]
        cells = [(*cell, span) for cell in cells for span in spans]  # type: ignore[misc]
    return [(tuple(start for start, _ in cell), tuple(side for _, side in cell)) for cell in cells]


def numbers(shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return a tensor whose elements all differ, as far as the dtype can."""
    return torch.arange(prod(shape), dtype=torch.float32).reshape(tuple(shape)).to(dtype or torch.float32)
