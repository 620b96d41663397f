"""Verify the written files by reading them back from the staging directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, assert_never

from tieconv.checkpoint.files.weight_file import ByteRange, WeightFile
from tieconv.checkpoint.write_plan.output import (
    Assembled,
    Averaged,
    Gathered,
    InlineBytes,
    OutputText,
    OutputWeights,
    Scaled,
    Zeros,
)
from tieconv.errors import UnreadableError, VerificationError
from tieconv.execute import tree
from tieconv.execute.contents.assembled_chunks import assembled_blocks
from tieconv.execute.contents.copy import Tick, read_full
from tieconv.execute.contents.file_layout import checksum, file_layout, places
from tieconv.execute.contents.layout import Piece
from tieconv.execute.contents.mean import averaged_blocks
from tieconv.execute.contents.strided_write import blocks
from tieconv.execute.contents.write_record import Record, Shared
from tieconv.execute.proof.first_difference import first_difference, first_nonzero, first_unlike_blocks, first_unscaled
from tieconv.formats.safetensors.header import read_weight_file
from tieconv.formats.torch.write import torch_metadata
from tieconv.sources.local.files import FileSet, open_files, open_regular
from tieconv.text import shown


@dataclass
class Verifier:
    """Compare the files in ``new`` with their sources under ``root``.

    With ``full`` false, skip the bytes of extents that the kernel copied (``record``).
    """

    root: Path
    new: Path
    record: Record
    full: bool
    tick: Tick

    def weights(self, output: OutputWeights, name: str) -> None:
        """Check that the file holds the plan's tensors and no others, each with the promised bytes."""
        with open_files(self.new) as written, open_files(self.root) as sources:
            file = _read(written, output, name)
            _check_header(file, output, name)
            for piece in file_layout(output).pieces:
                self._piece(piece, file, written, sources)
            if self.full:
                _check_sums(file, written.descriptor(name), name)

    def _piece(self, piece: Piece, file: WeightFile, written: FileSet, sources: FileSet) -> None:
        descriptor, start = written.descriptor(file.name), piece.offset
        match piece.content:
            case ByteRange() as span:
                unproved = self._unproved(file.name, start, start + piece.size, span)
                shift, source = span.start - start, sources.descriptor(span.file)
                offset = first_difference(source, descriptor, unproved, shift, self.tick)
            case Zeros(size):
                offset = first_nonzero(descriptor, start, start + size, self.tick)
            case Scaled() as content:
                offset = first_unscaled(sources.descriptor(content.range.file), descriptor, start, content, self.tick)
            case Averaged() as content:
                pair = sources.descriptor(content.range.file), sources.descriptor(content.second.file)
                offset = first_unlike_blocks(averaged_blocks(pair, content), descriptor, start, self.tick)
            case InlineBytes(data):
                offset = first_unlike_blocks([(0, data)], descriptor, start, self.tick)
            case Gathered() as view:
                offset = first_unlike_blocks(
                    blocks(sources.descriptor(view.range.file), view), descriptor, start, self.tick
                )
            case Assembled() as content:
                offset = first_unlike_blocks(assembled_blocks(sources, content), descriptor, start, self.tick)
            case _:
                assert_never(piece.content)
        if offset is not None:
            tensor = _tensor_at(file, offset)
            _fail(
                file.name,
                f"tensor {shown(tensor)} differs from its source at byte {offset:,} of the file",
                "bytes",
            )

    def _unproved(self, name: str, start: int, end: int, span: ByteRange) -> list[tuple[int, int]]:
        """Return the ranges within bytes ``start`` to ``end`` of the written file that must be compared."""
        if self.full:
            return [(start, end)]
        shared = self.record.shared.get(name, [])
        trusted = [written for written in shared if written.file == span.file and written.shift == span.start - start]
        return list(_outside(trusted, start, end))

    def text(self, output: OutputText) -> None:
        """Check that the document reads back as planned."""
        expected = output.text.encode()
        descriptor = open_regular(self.new / output.name, self.new)
        try:
            written = bytearray(os.fstat(descriptor).st_size)
            read_full(descriptor, memoryview(written), 0)
        finally:
            os.close(descriptor)
        if written != expected:
            _fail(output.name, "is not the document that was written", "text")
        self.tick(len(expected))

    def companion(self, name: str) -> None:
        """Check that the file is a hard link to its source, or holds the same bytes."""
        source = open_regular(self.root / name, self.root)
        try:
            descriptor = open_regular(self.new / name, self.new)
            try:
                self._compare(name, source, descriptor)
            finally:
                os.close(descriptor)
        finally:
            os.close(source)

    def _compare(self, name: str, source: int, descriptor: int) -> None:
        old, new = os.fstat(source), os.fstat(descriptor)
        if os.path.samestat(old, new):
            return
        if old.st_size != new.st_size:
            _fail(name, f"has {new.st_size:,} bytes, but its source has {old.st_size:,}", "bytes")
        unproved = self._unproved(name, 0, new.st_size, ByteRange(name, 0, new.st_size))
        offset = first_difference(source, descriptor, unproved, 0, self.tick)
        if offset is not None:
            _fail(name, f"differs from its source at byte {offset:,}", "bytes")

    def names(self, expected: Iterable[str]) -> None:
        """Check that the directory holds exactly these files."""
        written = {name for name, status in tree.walk(self.new) if not stat.S_ISDIR(status.st_mode)}
        for name in sorted(written.symmetric_difference(expected)):
            _fail(name, "is not in the plan" if name in written else "is missing", "names")


def _read(written: FileSet, output: OutputWeights, name: str) -> WeightFile:
    def pread(count: int, offset: int) -> bytes:
        return written.pread(name, count, offset)

    try:
        if output.format == "gguf":
            from tieconv.formats.gguf.reader import read_weight_file as read_gguf_file

            return read_gguf_file(pread, written.state(name).size, name)
        if output.format == "torch":
            from tieconv.formats.torch.reader import read_torch_file  # other formats do not need it

            return read_torch_file(pread, written.state(name).size, name)[0]
        return read_weight_file(pread, written.state(name).size, name)
    except UnreadableError as error:
        raise VerificationError(f"the written file is malformed: {error.message}", _HINT, "verify.header") from error


def _check_header(file: WeightFile, output: OutputWeights, name: str) -> None:
    """Check the tensors by name, their offsets, and the metadata."""
    promised = None if output.metadata is None else dict(output.metadata)
    if output.format == "torch":
        promised = torch_metadata(promised)
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


def _check_sums(file: WeightFile, descriptor: int, name: str) -> None:
    """Check the checksums of the storages, if the format has them; a kept one is what the source claims."""
    for storage in file.storages:
        if storage.crc not in (None, checksum(descriptor, storage.range.start, storage.range.size)):
            tensor = _tensor_at(file, storage.range.start)
            _fail(name, f"tensor {shown(tensor)} does not have the checksum of its source", "checksum")


def _outside(trusted: Iterable[Shared], start: int, end: int) -> Iterator[tuple[int, int]]:
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
