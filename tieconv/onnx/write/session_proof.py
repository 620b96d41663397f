"""Count the copies that a session of a written graph holds, from the session's optimized model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tieconv.checkpoint.files.graph_structure import MIN_ELEMENTS
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.write_plan.graph import SessionProof, SessionRuns, SharedMatrix
from tieconv.errors import RefusedError, VerificationError
from tieconv.install import install_command
from tieconv.onnx.graph.initializers import GraphBytes, Stored
from tieconv.onnx.graph.model import GraphFile, read_graph
from tieconv.onnx.graph.packages import has_onnxruntime
from tieconv.onnx.share.find import by_rows, find_groups
from tieconv.sources.local.files import open_files
from tieconv.text import shown

_DUMP = "tieconv-proof.onnx"
_HINT = "nothing was written; report this with the graph's exporter and its version"
NOT_INSTALLED = f"onnxruntime is not installed: {install_command('onnx')}"


def prove(staged: Path, source: Path, name: str, matrices: Sequence[SharedMatrix]) -> SessionProof:
    """Return how many copies of each matrix a session of the graph holds, with all optimizations on.

    Raises `VerificationError` if there are more copies than promised. Raises it also if no session can load the written
    graph but a session can load ``source``. Without onnxruntime, and for a graph that it cannot run, the result is a
    reason instead of counts.
    """
    if not has_onnxruntime():
        return SessionProof(name, why_not=NOT_INSTALLED)
    dump = os.path.join(os.path.dirname(name), _DUMP)
    outside = any(matrix.held_after > matrix.stored_after for matrix in matrices)
    try:
        why_not = _dump(staged / name, staged / dump, outside)
        if why_not:
            _check_source(source, name, why_not)
            return SessionProof(name, why_not=why_not)
        copies, casts = _count(staged, dump, matrices)
    finally:
        for left in (dump, f"{dump}.data"):
            (staged / left).unlink(missing_ok=True)
    for matrix in matrices:
        if copies[matrix.initializer] == 0:
            return SessionProof(name, why_not=f"the session has no initializer named {matrix.initializer}")
        if copies[matrix.initializer] > matrix.copies_promised:
            raise VerificationError(
                f"{shown(name)}: a session holds {copies[matrix.initializer]} copies of {shown(matrix.initializer)}, "
                f"but the plan promised {matrix.copies_promised}",
                _HINT,
                "verify.session",
            )
    return SessionProof(name, tuple(copies.items()), tuple(casts), runs=_compared(staged / name, source, matrices))


def _compared(written: Path, source: Path, matrices: Sequence[SharedMatrix]) -> SessionRuns | None:
    """Run both graphs. Raises `VerificationError` if a result differs that the plan does not announce."""
    if written == source:
        return None
    from tieconv.onnx.write.same_results import compare_runs

    runs = compare_runs(source, written)
    if runs.differing and not any(matrix.rounded for matrix in matrices):
        raise VerificationError(
            f"{shown(written.name)}: a session of the written graph gives other bits than the source "
            f"for {shown(runs.differing[0])}",
            "nothing was written; report this with the graph's exporter and its version",
            "verify.runs",
        )
    return runs


def _dump(graph: Path, to: Path, outside: bool) -> str:
    """Make a session write its optimized model. Return why it failed; empty if it wrote the model.

    What the session did not change remains a reference to the graph's data, so the file is small. With ``outside`` (a
    matrix is expected twice) all tensors go to a data file. A graph alone is limited to 2 GiB.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath = str(to)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.disable_prepacking", "1")
    if outside:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{to.name}.data")
    try:
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime raises various exceptions
        return f"onnxruntime {ort.__version__} cannot load the graph: {str(error).splitlines()[0][:300]}"
    return "" if to.exists() else "onnxruntime did not write an optimized model"


def check_opens(root: str, name: str) -> None:
    """Raise `RefusedError` for a graph that no session of the installed ONNX Runtime opens.

    A missing kernel says nothing about the graph, since another provider may have it. Nor does an operator of a domain
    that the runtime does not know, or a lack of memory.
    """
    why = _refusal(Path(root, name)) if has_onnxruntime() else ""
    unknown = ("NOT_IMPLEMENTED", "is not a registered function/op", "llocate memory", "bad allocation")
    if why and not any(words in why for words in unknown):
        raise RefusedError(
            f"nothing is written: onnxruntime cannot open {shown(name)}: {shown(why, 300)}",
            "export the graph again",
            "session.load",
        )


def _refusal(graph: Path) -> str:
    """Return why no session opens a graph without optimizations; empty if one does."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the runtime raises various exceptions
        return str(error).splitlines()[0]
    return ""


def _check_source(source: Path, name: str, why_not: str) -> None:
    if not _refusal(source):  # the written graph alone is at fault
        raise VerificationError(f"written {shown(name)}: {shown(why_not, 400)}", _HINT, "verify.session")


def _count(staged: Path, dump: str, matrices: Sequence[SharedMatrix]) -> tuple[dict[str, int], list[str]]:
    """Return the copies of each matrix, and the matrices that the session also holds in a wider type.

    The CPU provider computes products of F16 in F32. For that it casts a constant once, whatever the graph says.
    """
    with open_files(staged) as files:
        graph: GraphFile = read_graph(str(staged), dump, files)
        reader = GraphBytes(graph, files)
        stored = [by_rows(entry) for entry in reader.stored(MIN_ELEMENTS)]
        groups = find_groups(reader, stored)
        sets = [{member.stored.record.name for member in group.members} for group in groups]
    ranges_of = {matrix.initializer: _alike(matrix, stored, sets) for matrix in matrices}
    copies = {name: sum(not wider for wider in ranges.values()) for name, ranges in ranges_of.items()}
    return copies, [name for name, ranges in ranges_of.items() if any(ranges.values())]


def _alike(matrix: SharedMatrix, stored: Sequence[Stored], groups: Sequence[set[str]]) -> dict[ByteRange, bool]:
    """Return the ranges of the kept initializer's copies, and whether each has a wider type.

    The result is empty if the initializer is absent.
    """
    own = next((entry.record for entry in stored if entry.value.name == matrix.initializer), None)
    if own is None:
        return {}
    names = next((group for group in groups if own.name in group), {own.name})
    return {entry.record.range: entry.record.nbytes > own.nbytes for entry in stored if entry.record.name in names}
