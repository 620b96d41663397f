"""What in a graph that failed is likely wrong: constants that are nearly, and not quite, those of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import isclose
from typing import Any

import torch

from tieconv.onnx.parity.folds import factors
from tieconv.onnx.parity.reading import DTYPES, Graph
from tieconv.text import shown

_NEAR = 5e-3
"""Share of a factor up to which a constant is taken for it: 5.66 is 6e-4 from √32, 55.5 is 1e-3 from √3072."""
_SAME = 1e-2
"""Share of an epsilon up to which two are one, rounded to 16 bits or not; faults are off by a factor."""


def suspects(graph: Graph, config: Any, epsilons: Collection[float], precision: str) -> Iterator[str]:
    """Sentences about the graph's own numbers; ``epsilons`` are those of the model's norms.

    They explain a verdict and are no part of it.
    """
    scalars = {weight.name: _value(weight) for weight in graph.weights if _is_scalar(weight)}
    for epsilon in sorted(set(_epsilons(graph, scalars))):
        if epsilons and not any(isclose(epsilon, own, rel_tol=_SAME) for own in epsilons):
            known = ", ".join(f"{own:g}" for own in sorted(epsilons))
            yield f"a norm adds {epsilon:g}, those of the model's class {known}"
    rounding = float(torch.finfo(getattr(torch, precision)).eps)
    for name, value in scalars.items():
        for factor in sorted(set(factors(config))):
            if isclose(value, factor, rel_tol=_NEAR) and not isclose(value, factor, rel_tol=rounding):
                yield f"the constant {shown(name)} is {value:.6g}, near the config's factor {factor:.6g}"


def _is_scalar(weight: Any) -> bool:
    return weight.dtype in DTYPES and weight.dtype != "BFLOAT16" and all(side == 1 for side in weight.shape)


def _value(weight: Any) -> float:
    return float(weight.array().reshape(-1)[0])


def _epsilons(graph: Graph, scalars: dict[str, float]) -> Iterator[float]:
    """Of norms as operators, and of those in pieces: what is added before a root."""
    for node in graph.model.graph.all_nodes():
        attribute = node.attributes.get("epsilon")
        if attribute is not None:
            yield float(attribute.value)
        before = node.inputs[0].producer() if node.op_type == "Sqrt" and node.inputs[0] is not None else None
        if before is not None and before.op_type == "Add":
            yield from (scalars[value.name] for value in before.inputs if value is not None and value.name in scalars)
