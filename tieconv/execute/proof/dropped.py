"""Compare each dropped tensor once more, right before the rename."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import assert_never

from tieconv.checkpoint.files.dtypes import BITS
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.write_plan.output import Gathered, OutputWeights
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.checkpoint.write_plan.proof import AllZero, Digest, Equal, Proof, digest
from tieconv.errors import RefusedError, StalePlanError
from tieconv.execute.contents import strided_write
from tieconv.execute.contents.copy import BLOCK, read_full
from tieconv.execute.contents.file_layout import file_layout
from tieconv.execute.contents.layout import Piece
from tieconv.execute.contents.power_of_two import scaled
from tieconv.inspection.chunks.chunk_reader import ChunkReader
from tieconv.inspection.equality.compare_bytes import equal
from tieconv.sources.local.files import FileSet, open_files
from tieconv.text import shown

_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_SIGN = 0x80


def check_dropped(plan: Plan, root: Path, staged: Path, staged_names: dict[str, str]) -> None:
    """Raise `StalePlanError` if a dropped tensor no longer has the proved relation to the tensor that stays.

    File times do not show a write through a mapping that was already dirty, so this reads the bytes. It compares the
    source as it is now with what was written. ``staged_names`` maps a planned file to its staged name.
    """
    if not plan.proofs:
        return
    if plan.checkpoint.table:
        _check_chunked(plan, root)
        return
    with open_files(root) as sources, open_files(staged) as written:
        survivors = _Survivors(plan.weights, staged, staged_names, sources, written)
        for proof in plan.proofs:
            if not _holds(proof, sources, survivors):
                raise _changed(proof)


def _check_chunked(plan: Plan, root: Path) -> None:
    """Check the copies that a training checkpoint holds once more, chunk by chunk."""
    with open_files(root) as sources:
        reader = ChunkReader(sources, plan.checkpoint.tensors.values(), plan.checkpoint.table)
        for proof in plan.proofs:
            assert isinstance(proof, Equal)  # convert drops nothing else
            if not equal(reader, proof.tensor.range, proof.survivor.range):
                raise _changed(proof)


def _holds(proof: Proof, sources: FileSet, survivors: _Survivors) -> bool:
    record = proof.tensor
    descriptor = sources.descriptor(record.range.file)
    match proof:
        case AllZero():
            return all(_is_zero(block, record.dtype) for block in _blocks(descriptor, record, BLOCK))
        case Digest():
            return digest(_blocks(descriptor, record, BLOCK)) == proof.sha256
        case Equal():
            kept_descriptor, survivor = survivors.find(proof.survivor)
            step = BLOCK if record.stride is None and survivor.stride is None else strided_write.BLOCK
            pairs = zip_longest(
                _blocks(descriptor, record, step), _blocks(kept_descriptor, survivor, step), fillvalue=b""
            )
            return all(_is_multiple(left, right, survivor.dtype, proof.exponent) for left, right in pairs)
        case _:
            assert_never(proof)


def _is_multiple(dropped: bytes | bytearray, survivor: bytes | bytearray, dtype: str, exponent: int) -> bool:
    if not exponent:
        return dropped == survivor
    try:
        return scaled(survivor, dtype, exponent) == dropped
    except RefusedError:
        return False


def _is_zero(block: bytes | bytearray, dtype: str) -> bool:
    """Return whether each value is 0; for a float, -0 counts too."""
    negative = block[BITS[dtype] // 8 - 1 :: BITS[dtype] // 8].count(_SIGN) if dtype in _FLOATS else 0
    return block.count(0) + negative == len(block)


def _blocks(descriptor: int, record: TensorRecord, step: int) -> Iterator[bytearray]:
    """Yield the tensor's elements in order, ``step`` bytes at a time, in reused blocks.

    A strided tensor has blocks of `strided_write.BLOCK`.
    """
    if record.stride is not None:
        view = Gathered(record.range, record.dtype, record.shape, record.stride)
        yield from (block for _, block in strided_write.blocks(descriptor, view))
        return
    block = bytearray(min(step, record.range.size))
    for offset in range(record.range.start, record.range.end, step):
        if record.range.end - offset < len(block):
            block = bytearray(record.range.end - offset)
        read_full(descriptor, memoryview(block), offset)
        yield block


class _Survivors:
    """Find the bytes of a source tensor in the written files, else in the source."""

    def __init__(
        self,
        weights: tuple[OutputWeights, ...],
        staged: Path,
        staged_names: dict[str, str],
        sources: FileSet,
        written: FileSet,
    ) -> None:
        self._staged, self._sources, self._written = staged, sources, written
        self._copied: dict[str, list[tuple[str, Piece, ByteRange]]] = {}
        for output in weights:
            for piece in file_layout(output).pieces:
                if isinstance(piece.content, ByteRange):
                    copied = (staged_names[output.name], piece, piece.content)
                    self._copied.setdefault(piece.content.file, []).append(copied)

    def find(self, record: TensorRecord) -> tuple[int, TensorRecord]:
        """Return the descriptor to read, and the record with its range there."""
        span = record.range
        for name, piece, content in self._copied.get(span.file, ()):
            if content.start <= span.start and span.end <= content.end:
                start = piece.offset + span.start - content.start
                moved = ByteRange(name, start, start + span.size)
                written = TensorRecord(record.name, record.dtype, record.shape, moved, record.stride)
                return self._written.descriptor(name), written
        came_along = span.file not in self._copied and (self._staged / span.file).exists()
        files = self._written if came_along else self._sources
        return files.descriptor(span.file), record


def _changed(proof: Proof) -> StalePlanError:
    name = shown(proof.tensor.name)
    match proof:
        case Equal():
            was = f"compared with {shown(proof.survivor.name)}"
        case AllZero():
            was = "checked to be all zero"
        case Digest():
            was = "measured"
        case _:
            assert_never(proof)
    return StalePlanError(
        f"{shown(proof.tensor.range.file)}: another program changed {name} after it was {was}",
        "stop that program, then run the command again",
        "plan.stale",
    )
