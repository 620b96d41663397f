"""Graphs replaced where they lie: what must hold before, and the order in which names change."""

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
"""Ends of files that hold more than a graph's data, whoever points at them."""


def data_name(graph: str, command: str, states: dict[str, FileState]) -> str:
    """The name of the new data of a lone graph: it says what it is made from.

    It differs from the old one's, which the old graph needs until the new one has its name, and a run after a killed
    one gives the same name again.
    """
    known = sorted((name, state.device, state.inode, state.size, state.mtime_ns) for name, state in states.items())
    made_from = repr((command, known)).encode()
    return f"{graph}.{hashlib.sha256(made_from).hexdigest()[:12]}{DATA}"


def old_data(spans: Iterable[ByteRange], used: Iterable[str]) -> tuple[str, ...]:
    """The data files that nothing needs any more."""
    return tuple(sorted({span.file for span in spans} - set(used)))


def check_removal(listing: Listing, names: tuple[str, ...], graphs: Iterable[str]) -> None:
    """Raise `RefusedError` where a data file that would go may be somebody else's.

    ``graphs`` are those that are written anew; any other graph below the directory may read the file too.
    """
    for name in names:
        if name.lower().endswith(_OF_OTHERS):
            raise RefusedError(
                f"{shown(name)} holds the graph's data and may hold more, so --in-place does not remove it",
                "write a new model with -o OUT",
                "in-place.data",
            )
    for graph, read in _readers(listing, set(graphs)) if names else ():
        shared = sorted(read & set(names))
        if shared:
            raise RefusedError(
                f"{shown(graph)} reads {shown(shared[0])} too, so --in-place cannot replace one of them alone",
                f"give the directory: {shell_word(listing.root)}",
                "in-place.shared-data",
            )


def _readers(listing: Listing, written: set[str]) -> Iterator[tuple[str, set[str]]]:
    """Every other graph below the directory, and the files that it reads."""
    around = locate(listing.root)
    others = [name for name in around.entries if name.lower().endswith(SUFFIX) and name not in written]
    with open_files(listing.root) as files:
        for name in others:
            try:
                yield name, data_files(listing.root, files, name)
            except TieconvError as error:
                raise RefusedError(
                    f"{shown(name)} cannot be read, so nobody can say whether it reads the same data: {error.message}",
                    "move it away, or write a new model with -o OUT",
                    "in-place.other-graph",
                ) from error


def publish(staged: Path, final: Path, data: Iterable[str], old: Iterable[str]) -> None:
    """Exchange a lone graph: the new data gets its name, then the graph, then the old data goes.

    Killed between any two, the graph that has the name finds its data.
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
