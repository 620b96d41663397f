"""Compare unused weight files with the model's own: which names do they repeat, with other bytes?"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Depth, Shadow
from tieconv.inspection.equality.compare_bytes import equal


def find_shadows(
    checkpoint: Checkpoint, reader: ByteReader, depth: Depth, candidates: Collection[str]
) -> tuple[Shadow, ...]:
    """Return one `Shadow` for each name that an unused file repeats.

    Bytes are compared for ``candidates``, or for every name at full depth. Raises what the reader raises.
    """
    return tuple(_shadows(checkpoint, reader, depth, candidates))


def _shadows(checkpoint: Checkpoint, reader: ByteReader, depth: Depth, candidates: Collection[str]) -> Iterator[Shadow]:
    tensors = checkpoint.tensors
    for file in (*checkpoint.orphans, *checkpoint.twins):
        for record in file.tensors:
            used = tensors.get(record.name)
            if used is None:
                continue
            compared = depth is Depth.FULL or (depth is Depth.CANDIDATES and record.name in candidates)
            yield Shadow(record.name, file.name, _differs(reader, used, record, compared))


def _differs(reader: ByteReader, used: TensorRecord, shadow: TensorRecord, compared: bool) -> bool | None:
    if (used.dtype, used.shape) != (shadow.dtype, shadow.shape):
        return True
    dense = used.stride is None and shadow.stride is None
    return not equal(reader, used.range, shadow.range) if compared and dense else None
