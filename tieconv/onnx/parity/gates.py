"""Define the conditions of the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.results.parity import Case, Gate, Identity, Structure
from tieconv.checkpoint.results.parity_metrics import Vocabulary
from tieconv.onnx.parity.gate_limits import CELL_LIMIT, MAX_LIMIT, RMS_LIMIT
from tieconv.onnx.parity.measure import Errors, ratios
from tieconv.text import count


def structure_gates(structure: Structure) -> Iterator[Gate]:
    """Yield the gate that the graph runs at every shape."""
    passed = not structure.faults
    explanation = "; ".join(structure.faults) if structure.faults else "every batch, sequence and cache axis is dynamic"
    yield Gate("structure", float(len(structure.faults)), 0.0, passed, explanation)


def identity_gates(identity: Identity) -> Iterator[Gate]:
    """Yield the gates that the graph holds the checkpoint's weights."""
    absent = [entry for entry in identity.lost if entry.required]
    alien = [entry for entry in identity.unexplained if entry.required]
    explanation = (
        f"the graph holds {identity.found} of {count(identity.tensors, 'tensor')} bit for bit"
        if not absent
        else f"the graph lacks {count(len(absent), 'required tensor')}: {absent[0].name}"
    )
    yield Gate("weights", float(len(absent)), 0.0, not absent, explanation)
    explanation = "every matrix of the graph with the shape of a tensor holds a tensor of the checkpoint"
    if alien:
        explanation = f"shape of a checkpoint tensor, but other bytes: {', '.join(entry.name for entry in alien[:3])}"
    yield Gate("graph_weights", float(len(alien)), 0.0, not alien, explanation)


def lookup_gates(seen: Vocabulary | None) -> Iterator[Gate]:
    """Yield the gate that the graph looks up the checkpoint's row for every id, if the lookup is visible."""
    if seen is None:
        return
    number = len(seen.wrong)
    explanation = f"the graph looks up the checkpoint's row bit for bit for each of {count(seen.ids, 'id')}"
    if number:
        first = ", ".join(map(str, seen.wrong[:3]))
        explanation = f"the graph looks up another row than the checkpoint's for {count(number, 'id')}: {first}"
    yield Gate("token_lookup", float(number), 0.0, not number, explanation)


def logit_gates(prefix: str, noun: str, graph: Errors, floor: Errors, precision: str) -> Iterator[Gate]:
    """Yield the pooled gates of one set of cases. ``prefix`` begins their names; ``noun`` is the subject."""
    rms, largest = ratios(graph, floor, precision)
    yield Gate(
        f"{prefix}rms_ratio",
        rms,
        RMS_LIMIT,
        rms <= RMS_LIMIT,
        f"RMS error of {noun} divided by torch's in the same precision, over all cases",
    )
    yield Gate(
        f"{prefix}max_ratio",
        largest,
        MAX_LIMIT,
        largest <= MAX_LIMIT,
        f"largest error of {noun} divided by torch's largest in the same precision",
    )
    limit = 2 * floor.figures().max_abs
    yield Gate(
        f"{prefix}flip_margin",
        graph.flip_margin,
        limit,
        graph.flip_margin <= limit,
        f"largest gap of {count(graph.flips, 'top-1 change')} in the reference; limit: twice torch's largest error",
    )


def case_gates(cases: Sequence[Case]) -> Iterator[Gate]:
    """Yield the gates that the graph runs in each case, and that no single case is far off."""
    broken = [case for case in cases if case.error]
    explanation = (
        f"the graph fails at {_shape(broken[0])}: {broken[0].error}" if broken else "the graph runs at every shape"
    )
    yield Gate("runs", float(len(broken)), 0.0, not broken, explanation)
    measured = [case.ratio for case in cases if case.ratio is not None]
    if measured:
        worst = max(measured)
        yield Gate("case_ratio", worst, CELL_LIMIT, worst <= CELL_LIMIT, "the largest RMS ratio of any one case")


def _shape(case: Case) -> str:
    return f"batch {case.batch}, sequence {case.sequence}, past {case.past}, padding {case.padding}"
