"""Verify the written files by reading them back from the staging directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn, assert_never

from tieconv.checkpoint import write_plan
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import QuantisedTables
from tieconv.checkpoint.tie_group import Tie
from tieconv.checkpoint.weight_file import BITS, ByteRange, TensorRecord, WeightFile
from tieconv.errors import RefusedError, StalePlanError, TieconvError, UnreadableError, VerificationError
from tieconv.execute import tree, write
from tieconv.execute.arithmetic import scaled
from tieconv.execute.copy import BLOCK, Tick, read_blocks, read_full
from tieconv.execute.file_layout import checksum, file_layout, places
from tieconv.formats.safetensors import read_weight_file
from tieconv.inspection.chunk_reader import ChunkReader
from tieconv.inspection.equality import equal
from tieconv.sources.digest import damaged
from tieconv.sources.local import FileSet, closing, open_files, open_regular
from tieconv.text import count, shown


@dataclass
class Verifier:
    """Compare the files in ``new`` with their sources under ``root``.

    With ``full`` false, skip the bytes of extents that the kernel copied (``record``).
    """

    root: Path
    new: Path
    record: write.Record
    full: bool
    tick: Tick

    def weights(self, output: write_plan.OutputWeights, name: str) -> None:
        """Check that the file holds the plan's tensors and no others, each with the promised bytes.

        Of a file of ONNX graphs only the bytes are compared.
        """
        with open_files(self.new) as written, open_files(self.root) as sources:
            file = _read(written, output, name)
            _check_header(file, output, name)
            for piece in file_layout(output).pieces:
                self._piece(piece, file, written, sources)
            if self.full:
                # Check the checksums of the storages, if the format has them; a kept one is what the source claims.
                descriptor = written.descriptor(name)
                for storage in file.storages:
                    if storage.crc not in (None, checksum(descriptor, storage.range.start, storage.range.size)):
                        tensor = _tensor_at(file, storage.range.start)
                        _fail(name, f"tensor {shown(tensor)} does not have the checksum of its source", "checksum")

    def _piece(self, piece: write_plan.Piece, file: WeightFile, written: FileSet, sources: FileSet) -> None:
        descriptor, start, content = written.descriptor(file.name), piece.offset, piece.content
        if isinstance(content, ByteRange):
            unproved = self._unproved(file.name, start, start + piece.size, content)
            shift, source = content.start - start, sources.descriptor(content.file)
            offset = first_difference(source, descriptor, unproved, shift, self.tick)
        elif isinstance(content, write_plan.Zeros):
            zeros = ((done, bytes(min(BLOCK, content.size - done))) for done in range(0, content.size, BLOCK))
            offset = first_unlike_blocks(zeros, descriptor, start, self.tick)
        elif isinstance(content, write_plan.Scaled):
            offset = first_unscaled(sources.descriptor(content.range.file), descriptor, start, content, self.tick)
        else:
            offset = first_unlike_blocks(write.computed_blocks(sources, content), descriptor, start, self.tick)
        if offset is not None:
            tensor = _tensor_at(file, offset)
            of = f"tensor {shown(tensor)} " if tensor else ""
            _fail(file.name, f"{of}differs from its source at byte {offset:,} of the file", "bytes")

    def _unproved(self, name: str, start: int, end: int, span: ByteRange) -> list[tuple[int, int]]:
        """Return the ranges within bytes ``start`` to ``end`` of the written file that must be compared."""
        if self.full:
            return [(start, end)]
        shared = self.record.shared.get(name, [])
        trusted = [written for written in shared if written.file == span.file and written.shift == span.start - start]
        return list(_outside(trusted, start, end))

    def text(self, output: write_plan.OutputText) -> None:
        """Check that the document reads back as planned."""
        expected = output.text.encode()
        with closing(open_regular(self.new / output.name, self.new)) as descriptor:
            written = bytearray(os.fstat(descriptor).st_size)
            read_full(descriptor, memoryview(written), 0)
        if written != expected:
            _fail(output.name, "is not the document that was written", "text")
        self.tick(len(expected))

    def companion(self, name: str) -> None:
        """Check that the file is a hard link to its source, or holds the same bytes."""
        with (
            closing(open_regular(self.root / name, self.root)) as source,
            closing(open_regular(self.new / name, self.new)) as descriptor,
        ):
            old, new = os.fstat(source), os.fstat(descriptor)
            if os.path.samestat(old, new):
                return
            if old.st_size != new.st_size:
                _fail(name, f"has {count(new.st_size, 'byte')}, but its source has {old.st_size:,}", "bytes")
            unproved = self._unproved(name, 0, new.st_size, ByteRange(name, 0, new.st_size))
            offset = first_difference(source, descriptor, unproved, 0, self.tick)
            if offset is not None:
                _fail(name, f"differs from its source at byte {offset:,}", "bytes")

    def names(self, expected: Iterable[str]) -> None:
        """Check that the directory holds exactly these files."""
        written = {name for name, status in tree.walk(self.new) if not stat.S_ISDIR(status.st_mode)}
        for name in sorted(written.symmetric_difference(expected)):
            _fail(name, "is not in the plan" if name in written else "is missing", "names")


def _read(written: FileSet, output: write_plan.OutputWeights, name: str) -> WeightFile:
    def pread(count: int, offset: int) -> bytes:
        return written.pread(name, count, offset)

    if output.format == "onnx":
        return WeightFile(name, written.state(name).size, 0, (), None)
    try:
        if output.format == "gguf":
            from tieconv.formats.gguf import read_weight_file as read_gguf_file

            return read_gguf_file(pread, written.state(name).size, name)
        if output.format == "torch":
            from tieconv.formats.torch.reader import read_torch_file  # other formats do not need it

            return read_torch_file(pread, written.state(name).size, name)[0]
        return read_weight_file(pread, written.state(name).size, name)
    except UnreadableError as error:
        raise VerificationError(f"the written file is malformed: {error.message}", _HINT, "verify.header") from error


def _check_header(file: WeightFile, output: write_plan.OutputWeights, name: str) -> None:
    promised = None if output.metadata is None else dict(output.metadata)
    if output.format == "torch":
        from tieconv.formats.torch.state_dict import METADATA  # other formats do not need it

        promised = {METADATA: promised[METADATA]} if promised and METADATA in promised else None
    if file.metadata != promised:
        _fail(name, "lacks the promised metadata", "header")
    written = {tensor.name: tensor for tensor in file.tensors}
    for tensor, start in places(output, file.data_start):
        record = written.pop(tensor.name, None)
        if record is None:
            _fail(name, f"tensor {shown(tensor.name)} is missing", "header")
        if (record.dtype, record.shape, record.stride) != (tensor.dtype, tuple(tensor.shape), tensor.stride):
            _fail(name, f"tensor {shown(tensor.name)} is {record.dtype} {list(record.shape)}", "header")
        if (record.range.start, record.range.size) != (start, tensor.nbytes):
            _fail(name, f"tensor {shown(tensor.name)} starts at byte {record.range.start:,}", "header")
    for extra in written:
        _fail(name, f"tensor {shown(extra)} is not in the plan", "header")


def _outside(trusted: Iterable[write.Shared], start: int, end: int) -> Iterator[tuple[int, int]]:
    for stretch in sorted(trusted, key=lambda stretch: stretch.start):
        if stretch.end <= start or stretch.start >= end:
            continue
        if start < stretch.start:
            yield start, stretch.start
        start = max(start, min(stretch.end, end))
    if start < end:
        yield start, end


def _tensor_at(file: WeightFile, position: int) -> str:
    """Return the tensor at a position of the file; between two tensors, the one before."""
    ordered = sorted(file.tensors, key=lambda record: record.range.start)
    before = [record.name for record in ordered if record.range.start <= position]
    holding = [record.name for record in ordered if record.range.start <= position < record.range.end]
    return (holding[:1] or before[-1:] or [""])[0]


_HINT = "tieconv changed nothing; the disk, the memory or tieconv is at fault: please report it"


def _fail(name: str, why: str, code: str) -> NoReturn:
    separator = ": " if why.startswith("tensor ") else " "
    raise VerificationError(f"written {shown(name)}{separator}{why}", _HINT, f"verify.{code}")


_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_SIGN = 0x80


def check_dropped(plan: write_plan.Plan, root: Path, staged: Path, staged_names: dict[str, str]) -> None:
    """Raise `StalePlanError` if a dropped tensor no longer has the proved relation to the tensor that stays.

    File times do not show a write through a mapping that was already dirty, so this reads the bytes. It compares the
    source as it is now with what was written. ``staged_names`` maps a planned file to its staged name.
    """
    if not plan.proofs:
        return
    if plan.checkpoint.table:
        # A training checkpoint: check the copies chunk by chunk.
        with open_files(root) as sources:
            reader = ChunkReader(sources, plan.checkpoint.tensors.values(), plan.checkpoint.table)
            for proof in plan.proofs:
                assert isinstance(proof, write_plan.Equal)  # convert drops nothing else
                if not equal(reader, proof.tensor.range, proof.survivor.range):
                    raise _changed(proof)
        return
    with open_files(root) as sources, open_files(staged) as written:
        survivors = _Survivors(plan.weights, staged, staged_names, sources, written)
        for proof in plan.proofs:
            if not _holds(proof, sources, survivors):
                raise _changed(proof)


def _holds(proof: write_plan.Proof, sources: FileSet, survivors: _Survivors) -> bool:
    record = proof.tensor
    descriptor = sources.descriptor(record.range.file)
    match proof:
        case write_plan.AllZero():
            return all(_is_zero(block, record.dtype) for block in _blocks(descriptor, record, BLOCK))
        case write_plan.Digest():
            return write_plan.digest(_blocks(descriptor, record, BLOCK)) == proof.sha256
        case write_plan.Equal():
            kept_descriptor, survivor = survivors.find(proof.survivor)
            step = BLOCK if record.stride is None and survivor.stride is None else write.BLOCK
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
        view = write_plan.Gathered(record.range, record.dtype, record.shape, record.stride)
        yield from (block for _, block in write.blocks(descriptor, view))
        return
    yield from (block for _, block in read_blocks(descriptor, record.range.start, record.range.size, step))


class _Survivors:
    """Find the bytes of a source tensor in the written files, else in the source."""

    def __init__(
        self,
        weights: tuple[write_plan.OutputWeights, ...],
        staged: Path,
        staged_names: dict[str, str],
        sources: FileSet,
        written: FileSet,
    ) -> None:
        self._staged, self._sources, self._written = staged, sources, written
        self._copied: dict[str, list[tuple[str, write_plan.Piece, ByteRange]]] = {}
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


def _changed(proof: write_plan.Proof) -> StalePlanError:
    name = shown(proof.tensor.name)
    match proof:
        case write_plan.Equal():
            was = f"compared with {shown(proof.survivor.name)}"
        case write_plan.AllZero():
            was = "checked to be all zero"
        case write_plan.Digest():
            was = "measured"
        case _:
            assert_never(proof)
    problem = f"{shown(proof.tensor.range.file)}: another program changed {name} after it was {was}"
    return StalePlanError(problem, "stop that program, then run the command again", "plan.stale")


# Find the first byte of a written file that differs from the plan.


def first_difference(
    source: int, descriptor: int, ranges: Iterable[tuple[int, int]], shift: int, tick: Tick
) -> int | None:
    """Return the first offset in ``ranges`` of ``descriptor`` whose byte differs from ``source`` at ``shift`` more."""
    for start, end in ranges:
        at = first_unlike_blocks(read_blocks(source, start + shift, end - start), descriptor, start, tick)
        if at is not None:
            return at
    return None


def first_unlike_blocks(
    expected: Iterable[tuple[int, bytes | bytearray]], descriptor: int, start: int, tick: Tick
) -> int | None:
    """Return the first offset that differs from ``expected``, blocks with their offset from ``start``."""
    actual = bytearray()
    for done, block in expected:
        if len(actual) != len(block):
            actual = bytearray(len(block))
        read_full(descriptor, memoryview(actual), start + done)
        if actual != block:
            return start + done + next(i for i, (a, b) in enumerate(zip(block, actual, strict=True)) if a != b)
        tick(len(block))
    return None


def first_unscaled(source: int, descriptor: int, start: int, content: write_plan.Scaled, tick: Tick) -> int | None:
    """Return the first written block that, scaled back, differs from its source; an exact product can be undone."""
    size = content.range.size
    written = read_blocks(descriptor, start, size, write.SCALE_BLOCK)
    for (done, expected), (_, actual) in zip(
        read_blocks(source, content.range.start, size, write.SCALE_BLOCK), written, strict=True
    ):
        if not _is_multiple(expected, actual, content.dtype, -content.exponent):
            return start + done
        tick(len(actual))
    return None


_PROMISE_HINT = "tieconv changed nothing; please report this"


def check_promises(promises: write_plan.Promises, staged: Path, reinspect: Callable[[Path], Inspection]) -> None:
    """Inspect what was written; raise `VerificationError` if it breaks a promise."""
    try:
        inspection = reinspect(staged)
    except TieconvError as error:
        problem = f"tieconv cannot inspect the written model: {error.message}"
        raise VerificationError(problem, _PROMISE_HINT, "verify.inspection") from error
    effective = inspection.config.effective
    if promises.effective is not None and effective != promises.effective:
        _broken_promise(f"the written config means tied = {effective}, but the plan promised {promises.effective}")
    if promises.quantised:
        _check_quantised(promises.quantised, inspection.quantised)
    ties = {tie.canonical: tie for tie in inspection.ties}
    for promise in promises.ties:
        _check_tie(promise, ties.get(promise.canonical))


def _check_quantised(roles: tuple[str, ...], tables: QuantisedTables | None) -> None:
    matrices = tables.matrices if tables else ()
    if sorted(matrix.role for matrix in matrices) != sorted(roles):
        _broken_promise(f"the written model does not hold exactly these quantised matrices: {', '.join(roles)}")
    for matrix in matrices:
        if matrix.faults:
            _broken_promise(f"the quantised {shown(matrix.name)} is broken: {matrix.faults[0].reason}")


def _check_tie(promise: write_plan.TiePromise, tie: Tie | None) -> None:
    if tie is None:
        _broken_promise(f"the written model has no tied group with {shown(promise.canonical)}")
    if promise.declared is not None and tie.declared != promise.declared:
        _broken_promise(
            f"the written config declares tied = {tie.declared} for the group of {shown(promise.canonical)}"
        )
    stored = {member.name for member in tie.members if member.stored}
    for name in promise.stored:
        if name not in stored:
            _broken_promise(f"the written model lacks the promised tensor {shown(name)}")
    for name in promise.absent:
        if name in stored:
            _broken_promise(f"the written model still holds tensor {shown(name)}")


def _broken_promise(why: str) -> NoReturn:
    raise VerificationError(why, _PROMISE_HINT, "verify.promise")


# Check the checksums of a torch file's storages before anything made from them gets its name.


def check_source_sums(plan: write_plan.Plan, root: Path, *, full: bool) -> None:
    """Raise `UnreadableError` if a storage that the output is made from is damaged.

    A storage that goes into the output unchanged keeps its checksum, right or wrong. The written file is compared with
    that checksum, so that damage still shows. With ``full`` this also reads the unchanged files.
    """
    # The storages that go into a written torch file with their checksums.
    stored = (tensor.storage for output in plan.weights if output.format == "torch" for tensor in output.tensors)
    stored_spans = {storage.range for storage in stored if storage is not None and storage.crc is not None}
    _check_files(plan, root, stored_spans, full)
    if plan.checkpoint.table:
        with open_files(root) as sources:
            reader = ChunkReader(sources, (), plan.checkpoint.table)
            for output in plan.weights:
                for content in output.contents:
                    if isinstance(content, write_plan.Assembled):
                        reader.check_sums(content.tensor)


def blame_source(plan: write_plan.Plan, root: Path) -> None:
    """Raise `UnreadableError` if damage in a written file is already in the source."""
    _check_files(plan, root, set(), False)


def _check_files(plan: write_plan.Plan, root: Path, stored_spans: set[ByteRange], linked: bool) -> None:
    used = {span.file for output in plan.weights for content in output.contents for span in write_plan.ranges(content)}
    changed = {*(output.name for output in plan.weights), *plan.removed}
    with open_files(root) as sources:
        for file in plan.checkpoint.files:
            if file.name in used or (linked and file.name not in changed):
                for storage in file.storages:
                    crc, span = storage.crc, storage.range
                    if crc is None or span in stored_spans:
                        continue
                    if crc != checksum(sources.descriptor(file.name), span.start, span.size):
                        raise damaged(file, storage)
