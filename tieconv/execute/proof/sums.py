"""Check the checksums of a torch file's storages before anything made from them gets its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tieconv.checkpoint.files.weight_file import ByteRange, Storage, WeightFile
from tieconv.checkpoint.write_plan.output import Assembled, Averaged, InlineBytes, OutputWeights, Zeros
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.execute.contents.file_layout import checksum
from tieconv.inspection.chunks.chunk_reader import ChunkReader
from tieconv.sources.local.files import open_files
from tieconv.sources.sums import damaged


def check_source_sums(plan: Plan, root: Path, *, full: bool) -> None:
    """Raise `UnreadableError` if a storage that the output is made from is damaged.

    A storage that goes into the output unchanged keeps its checksum, right or wrong. The written file is compared with
    that checksum, so that damage still shows. With ``full`` this also reads the unchanged files.
    """
    stored_spans = {span for output in plan.weights for span in _source_spans(output)}
    _check_files(plan, root, stored_spans, full)
    if plan.checkpoint.table:
        _check_chunks(plan, root)


def _check_chunks(plan: Plan, root: Path) -> None:
    """Check the archives of all chunks that go into the output."""
    with open_files(root) as sources:
        reader = ChunkReader(sources, (), plan.checkpoint.table)
        for output in plan.weights:
            for content in output.contents:
                if isinstance(content, Assembled):
                    reader.check_sums(content.tensor)


def blame_source(plan: Plan, root: Path) -> None:
    """Raise `UnreadableError` if damage in a written file is already in the source."""
    _check_files(plan, root, set(), False)


def _check_files(plan: Plan, root: Path, stored_spans: set[ByteRange], linked: bool) -> None:
    used = {name for output in plan.weights for name in _sources(output)}
    changed = {*(output.name for output in plan.weights), *plan.removed}
    with open_files(root) as sources:
        for file in plan.checkpoint.files:
            if file.name in used or (linked and file.name not in changed):
                for storage in file.storages:
                    if storage.range not in stored_spans:
                        _check(file, storage, sources.descriptor(file.name))


def _sources(output: OutputWeights) -> Iterator[str]:
    """Yield the source files of a written file's contents."""
    for content in output.contents:
        if isinstance(content, ByteRange):
            yield content.file
        elif not isinstance(content, Zeros | InlineBytes):
            yield content.range.file
        if isinstance(content, Averaged):
            yield content.second.file


def _source_spans(output: OutputWeights) -> Iterator[ByteRange]:
    """Yield the storages that go into a written torch file with their checksums."""
    for tensor in output.tensors if output.format == "torch" else ():
        if tensor.storage is not None and tensor.storage.crc is not None:
            yield tensor.storage.range


def _check(file: WeightFile, storage: Storage, descriptor: int) -> None:
    if storage.crc not in (None, checksum(descriptor, storage.range.start, storage.range.size)):
        raise damaged(file, storage)
