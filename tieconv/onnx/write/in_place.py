"""Replace graphs in place: check the conditions, and change names in a safe order."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tieconv.checkpoint.files.model_files import FileState, Listing
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.errors import RefusedError, TieconvError
from tieconv.execute.publish import swap
from tieconv.formats.onnx.model import SUFFIX, data_files
from tieconv.onnx.write.data_placement import DATA
from tieconv.sources.local.files import locate, open_files
from tieconv.text import shell_word, shown

_OF_OTHERS = (".safetensors", ".gguf", ".bin", ".pt", ".pth", ".json", SUFFIX)
"""Extensions of files that may hold more than a graph's data."""


def data_name(graph: str, command: str, states: dict[str, FileState]) -> str:
    """Return the name of a lone graph's new data file, which includes a hash of its source.

    It differs from the old name, because the old graph needs its data until the new graph has its name. A run after a
    killed run computes the same name.
    """
    known = sorted((name, state.device, state.inode, state.size, state.mtime_ns) for name, state in states.items())
    made_from = repr((command, known)).encode()
    return f"{graph}.{hashlib.sha256(made_from).hexdigest()[:12]}{DATA}"


def old_data(spans: Iterable[ByteRange], used: Iterable[str]) -> tuple[str, ...]:
    """Return the data files that no tensor uses any more."""
    return tuple(sorted({span.file for span in spans} - set(used)))


def check_removal(listing: Listing, names: tuple[str, ...], graphs: Iterable[str]) -> None:
    """Raise `RefusedError` if a data file to remove may hold other data, or if another graph reads it.

    ``graphs`` are those that are written. Any other graph below the directory may read the file too.
    """
    for name in names:
        if name.lower().endswith(_OF_OTHERS):
            raise RefusedError(
                f"--in-place does not remove {shown(name)}, because it may hold more than the graph's data",
                "write a new model with -o OUT",
                "in-place.data",
            )
    for graph, read in _readers(listing, set(graphs)) if names else ():
        shared = sorted(read & set(names))
        if shared:
            raise RefusedError(
                f"--in-place cannot replace one graph, because {shown(graph)} reads {shown(shared[0])} too",
                f"give the directory, so that all graphs change: {shell_word(listing.root)}",
                "in-place.shared-data",
            )


def _readers(listing: Listing, written: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Yield every other graph below the directory, and the files that it reads."""
    around = locate(listing.root)
    others = [name for name in around.entries if name.lower().endswith(SUFFIX) and name not in written]
    with open_files(listing.root) as files:
        for name in others:
            try:
                yield name, data_files(listing.root, files, name)
            except TieconvError as error:
                raise RefusedError(
                    f"tieconv cannot read {shown(name)}, which may use the same data: {error.message}",
                    "move it out of the directory, or write a new model with -o OUT",
                    "in-place.other-graph",
                ) from error


def publish(staged: Path, final: Path, data: Iterable[str], old: Iterable[str]) -> None:
    """Exchange a lone graph: rename the new data, then the graph, then remove the old data.

    If the process is killed between two steps, the graph under the final name still has its data.
    """
    published: list[Path] = []
    try:
        for name in data:
            target = final.parent / name
            (swap.publish_file if os.path.lexists(target) else swap.publish_new)(staged / name, target)
            published.append(target)
        swap.publish_file(staged / final.name, final)
    except BaseException:
        for path in published:
            path.unlink()
        raise
    for name in old:
        (final.parent / name).unlink(missing_ok=True)
