"""Verify that the graphs and data files in a staging directory are as planned, byte by byte."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from tieconv.checkpoint.files.model_files import FileState
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.errors import VerificationError
from tieconv.execute import tree
from tieconv.execute.contents.copy import Tick, read_full
from tieconv.execute.proof.first_difference import first_difference
from tieconv.onnx.write.data_placement import Source, Store
from tieconv.onnx.write.target import GraphTarget
from tieconv.onnx.write.transposed_write import first_not_turned
from tieconv.sources.local.files import open_files
from tieconv.text import shown


def check_bytes(target: GraphTarget, store: Store, new: Path, tick: Tick) -> None:
    """Compare every written byte with its source. Raises `VerificationError`."""
    with open_files(new) as written, open_files(target.listing.root) as sources:
        for name, data in store.graphs.items():
            stored = bytearray(written.state(name).size)
            read_full(written.descriptor(name), memoryview(stored), 0)
            if stored != data:
                raise _differs(name, 0)
            tick(len(data))
        for file in store.data if target.target.verify == "full" else ():
            for offset, content in file.pieces:
                at = _difference(written.descriptor(file.name), offset, content, sources.descriptor, tick)
                if at is not None:
                    raise _differs(file.name, at)


def _difference(written: int, offset: int, content: Source, source: Callable[[str], int], tick: Tick) -> int | None:
    if isinstance(content, ByteRange):
        span = [(offset, offset + content.size)]
        return first_difference(source(content.file), written, span, content.start - offset, tick)
    return first_not_turned(source(content.range.file), written, offset, content, tick)


def check_names(target: GraphTarget, store: Store, new: Path, before: Mapping[str, FileState]) -> None:
    """Check that ``new`` has exactly the planned files, and the remaining files of ``before``."""
    written = {name for name, status in tree.walk(new) if not stat.S_ISDIR(status.st_mode)}
    planned = {*store.graphs, *(file.name for file in store.data)}
    planned |= set(target.companions(store))
    remaining = {name for name, state in before.items() if not tree.is_directory(state)}
    planned |= remaining - set(store.removed)
    if written != planned:
        raise VerificationError(
            f"written {shown(sorted(written ^ planned)[0])} was not planned, or is missing",
            "nothing was changed; report this",
            "verify.names",
        )


def _differs(name: str, position: int) -> VerificationError:
    return VerificationError(
        f"written {shown(name)} differs from its source at byte {position:,}",
        "nothing was changed; the disk, the memory or tieconv is at fault: report this",
        "verify.bytes",
    )
