"""Store every matrix of the exporter's graph once, read the graph again, and verify it in a session."""

from __future__ import annotations

import os
from pathlib import Path

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.graph import HeadForm, SessionProof, SharedMatrix
from tieconv.onnx.write.data_placement import Store, lay_out
from tieconv.onnx.write.dedup import notes_of, plan_graph_dedup
from tieconv.onnx.write.plan import PlannedGraphs
from tieconv.onnx.write.read_again import check_written
from tieconv.onnx.write.session_proof import prove
from tieconv.sources.local.files import locate


@record
class Shared:
    """The result for each matrix, and what a session holds."""

    matrices: tuple[SharedMatrix, ...]
    proofs: tuple[SessionProof, ...]
    notes: tuple[str, ...]


def share(raw: Path, new: Path, form: HeadForm) -> Shared:
    """Move the graphs of the directory ``raw`` to ``new``, and store every matrix of each once.

    If no tensor byte changes (the usual case), only the graph is written and the data file is moved. Raises
    `VerificationError` if the result is not as promised.
    """
    planned = plan_graph_dedup(locate(str(raw)), form)
    store = lay_out(planned.files, None)
    anew = store.data or store.removed
    proofs = planned.execute(new).proofs if anew else _in_place(planned, store, raw, new)
    notes = notes_of(planned.matrices, lambda form: f"tieconv export with --head-form {form}")
    return Shared(planned.matrices, proofs, tuple(notes))


def _in_place(planned: PlannedGraphs, store: Store, raw: Path, new: Path) -> tuple[SessionProof, ...]:
    os.mkdir(new)
    graphs = {file.name for file in planned.files}
    for data in [path for path in raw.iterdir() if path.name not in graphs]:
        os.rename(data, new / data.name)
    for file in planned.files:
        if file.name in store.graphs:
            (new / file.name).write_bytes(store.graphs[file.name])
        else:
            os.rename(raw / file.name, new / file.name)
        check_written(new, file.name, file, planned.matrices)
    return tuple(_proved(new, file.name, planned) for file in planned.files)


def _proved(new: Path, name: str, planned: PlannedGraphs) -> SessionProof:
    return prove(new, new / name, name, [matrix for matrix in planned.matrices if matrix.done and matrix.graph == name])
