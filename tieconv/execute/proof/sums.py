"""The checksums that a torch file has for its storages, held to before what is made of them gets its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tieconv.checkpoint.files.weight_file import ByteRange, Storage, WeightFile
from tieconv.checkpoint.write_plan.output import Averaged, InlineBytes, OutputWeights, Zeros
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.execute.contents.file_layout import checksum
from tieconv.sources.local.files import open_files
from tieconv.sources.sums import damaged


def check_source_sums(plan: Plan, root: Path, *, full: bool) -> None:
    """Raise `UnreadableError` where a storage that the output is made from is not what was saved.

    A storage that a torch file takes over keeps its checksum, wrong or right: the written file is held to that, and
    damage still shows in it. With ``full`` the files that come along are read too.
    """
    stored_spans = {span for output in plan.weights for span in _source_spans(output)}
    _check_files(plan, root, stored_spans, full)


def blame_source(plan: Plan, root: Path) -> None:
    """Raise `UnreadableError` where the source is what is damaged, once a written file was found to be."""
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
    """The files that the contents of a written file come from."""
    for content in output.contents:
        if isinstance(content, ByteRange):
            yield content.file
        elif not isinstance(content, Zeros | InlineBytes):
            yield content.range.file
        if isinstance(content, Averaged):
            yield content.second.file


def _source_spans(output: OutputWeights) -> Iterator[ByteRange]:
    """The storages that go into a written torch file with the checksum that they have."""
    for tensor in output.tensors if output.format == "torch" else ():
        if tensor.storage is not None and tensor.storage.crc is not None:
            yield tensor.storage.range


def _check(file: WeightFile, storage: Storage, descriptor: int) -> None:
    if storage.crc not in (None, checksum(descriptor, storage.range.start, storage.range.size)):
        raise damaged(file, storage)
