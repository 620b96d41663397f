"""Read written graphs again, and compare them with their source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import onnx

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.write_plan.graph import SharedMatrix
from tieconv.errors import StalePlanError, TieconvError, VerificationError
from tieconv.formats.onnx.model import check_readable
from tieconv.onnx.graph.initializers import GraphBytes
from tieconv.onnx.graph.model import GraphFile, read_graph
from tieconv.onnx.share.find import find_groups
from tieconv.onnx.share.quantised import quantised_pairs
from tieconv.onnx.share.share_pass import interface
from tieconv.onnx.share.uses import describe
from tieconv.sources.local.files import open_files
from tieconv.text import shown


def check_written(staged: Path, name: str, source: GraphFile, matrices: Sequence[SharedMatrix] | None) -> None:
    """Check that the graph ``name`` under ``staged`` is valid and has the inputs and outputs of ``source``.

    With ``matrices`` (those of the pass), also check that no large matrix is stored twice. Matrices that the pass left
    are excepted. Raises `VerificationError`.
    """
    try:
        with open_files(staged) as files:
            check_readable(str(staged), files, name)
            written = read_graph(str(staged), name, files)
            reader = GraphBytes(written, files)
            groups = find_groups(reader, reader.stored(MIN_ELEMENTS)) if matrices is not None else []
            pairs = list(quantised_pairs(written.model)) if matrices is not None else []
    except TieconvError as error:
        raise VerificationError(f"the written graph cannot be read: {error.message}", _HINT, "verify.graph") from error
    if interface(written.model) != interface(source.model):
        _fail(name, "has other inputs or outputs than its source")
    _check_valid(staged / name, Path(source.root) / source.name)
    left = {matrix.initializer for matrix in matrices or () if matrix.left}
    for group in groups:
        names = [str(member.stored.value.name) for member in group.members]
        if left.isdisjoint(names) and not any(
            any(initializer in m.left for initializer in names) for m in matrices or ()
        ):
            _fail(name, f"still stores {shown(names[0])} and {shown(names[1])}, which are one matrix")
    for table, head in pairs:
        if str(head.codes.name) not in left:
            _fail(name, f"still stores the quantised matrix of {describe(table.node)} and of its head twice")


def check_still_equal(source: GraphFile, matrices: Sequence[SharedMatrix]) -> None:
    """Raise `StalePlanError` if the copies of a shared matrix now differ in the source.

    A file's times do not show a write through a memory mapping that was dirty before.
    """
    if not any(matrix.dropped for matrix in matrices):
        return
    with open_files(source.root) as files:
        now = read_graph(source.root, source.name, files)
        reader = GraphBytes(now, files)
        stored = reader.stored(MIN_ELEMENTS)
        groups = [{str(entry.stored.value.name) for entry in group.members} for group in find_groups(reader, stored)]
        groups += [{str(part.name) for table in pair for part in table.parts} for pair in quantised_pairs(now.model)]
    names = {str(entry.value.name) for entry in stored}
    for matrix in matrices:
        copies = {matrix.initializer, *matrix.dropped} & names
        if len(copies) > 1 and not any(copies <= group for group in groups):
            raise StalePlanError(
                f"{shown(source.name)}: another program changed {shown(sorted(copies)[0])} after it was compared",
                "end that program, then run the command again",
                "plan.stale",
            )


def _check_valid(written: Path, source: Path) -> None:
    """Check that onnx's checker accepts the graph, unless it rejects the source too."""
    why = _fault(written)
    if why and not _fault(source):
        _fail(written.name, f"is not valid: {shown(why, 300)}")


def _fault(path: Path) -> str:
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:  # noqa: BLE001 - the checker raises various exceptions
        return str(error) or type(error).__name__
    return ""


_HINT = "nothing was written; report this with the graph's exporter and its version"


def _fail(name: str, why: str) -> NoReturn:
    raise VerificationError(f"written {shown(name)} {why}", _HINT, "verify.graph")
