"""Explain a failed graph whose padded rows alone are wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tieconv.checkpoint.results.parity import Case
from tieconv.onnx.parity.gate_limits import CELL_LIMIT
from tieconv.onnx.parity.graph.bindings import Bindings, Kind, Role


def uncounted(cases: Iterable[Case], bindings: Bindings) -> Iterator[str]:
    """Yield a sentence if only padded rows are wrong and the graph has no position ids."""
    if Role.POSITIONS in bindings.inputs or bindings.kind not in (Kind.CACHED, Kind.PLAIN):
        return
    wrong = {bool(case.padding) for case in cases if case.ratio is None or case.ratio > CELL_LIMIT}
    if wrong == {True}:
        yield "only rows with left padding are wrong: the graph has no position_ids and counts the padding too"
