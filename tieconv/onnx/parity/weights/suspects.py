"""What in a graph that failed is likely wrong: constants that are nearly, and not quite, those of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import isclose
from typing import Any

import torch

from tieconv.checkpoint.results.parity import Case
from tieconv.onnx.parity.gate_limits import CELL_LIMIT
from tieconv.onnx.parity.graph.bindings import Bindings, Kind, Role
from tieconv.onnx.parity.graph.file import DTYPES, Graph
from tieconv.onnx.parity.weights.folds import factors
from tieconv.text import shown

_TOLERANCE = 5e-3
"""Share of a factor up to which a constant is taken for it: 5.66 is 6e-4 from √32, 55.5 is 1e-3 from √3072."""
_SAME = 1e-2
"""Share of an epsilon up to which two are one, rounded to 16 bits or not; faults are off by a factor."""


def suspects(graph: Graph, config: Any, epsilons: Collection[float], precision: str) -> Iterator[str]:
    """Sentences about the graph's own numbers; ``epsilons`` are those of the model's norms.

    They explain a verdict and are no part of it.
    """
    scalars: dict[str, set[float]] = {}  # branches may have one name for two numbers
    for weight in filter(_is_scalar, graph.weights):
        scalars.setdefault(weight.name, set()).add(_value(weight))
    for epsilon in sorted(set(_epsilons(graph, scalars))):
        if epsilons and not any(isclose(epsilon, own, rel_tol=_SAME) for own in epsilons):
            known = ", ".join(f"{own:g}" for own in sorted(epsilons))
            yield f"a norm adds {epsilon:g}, those of the model's class {known}"
    rounding = float(torch.finfo(getattr(torch, precision)).eps)
    for name, value in ((name, value) for name, values in scalars.items() for value in sorted(values)):
        for factor in sorted(set(factors(config))):
            if isclose(value, factor, rel_tol=_TOLERANCE) and not isclose(value, factor, rel_tol=rounding):
                yield f"the constant {shown(name)} is {value:.6g}, near the config's factor {factor:.6g}"


def uncounted(cases: Iterable[Case], bindings: Bindings) -> Iterator[str]:
    """A sentence where padding in front alone makes a graph err that is told no positions."""
    if Role.POSITIONS in bindings.inputs or bindings.kind not in (Kind.CACHED, Kind.PLAIN):
        return
    wrong = {bool(case.padding) for case in cases if case.ratio is None or case.ratio > CELL_LIMIT}
    if wrong == {True}:
        yield "only rows with padding in front err, and the graph takes no position_ids: it counts the padding too"


def _is_scalar(weight: Any) -> bool:
    return weight.dtype in DTYPES and weight.dtype != "BFLOAT16" and all(side == 1 for side in weight.shape)


def _value(weight: Any) -> float:
    return float(weight.array().reshape(-1)[0])


def _epsilons(graph: Graph, scalars: Mapping[str, set[float]]) -> Iterator[float]:
    """Of norms as operators, and of those in pieces: what is added before a root."""
    for node in graph.model.graph.all_nodes():
        attribute = node.attributes.get("epsilon")
        if attribute is not None:
            yield float(attribute.value)
        before = node.inputs[0].producer() if node.op_type == "Sqrt" and node.inputs[0] is not None else None
        if before is not None and before.op_type == "Add":
            for value in before.inputs:
                yield from scalars.get(str(value.name), ()) if value is not None else ()
