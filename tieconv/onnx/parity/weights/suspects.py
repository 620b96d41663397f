"""Explain a failed graph: find constants that nearly equal those of the model."""

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
"""Largest relative difference at which a constant counts as a factor.

5.66 differs from √32 by 6e-4, and 55.5 from √3072 by 1e-3.
"""
_WIDE = 2e-2
"""The same for a factor that the graph lacks."""
_MULTIPLIERS = (
    "embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling", "logit_scale",
    "final_logit_softcapping", "attn_logit_softcapping",
)  # fmt: skip
_SAME = 1e-2
"""Largest relative difference of equal epsilons, rounded to 16 bits or not. Wrong ones differ by a factor."""


def suspects(graph: Graph, config: Any, epsilons: Collection[float], precision: str) -> Iterator[str]:
    """Yield sentences about the graph's numbers; ``epsilons`` are those of the model's norms.

    The sentences explain a verdict but do not change it.
    """
    scalars: dict[str, set[float]] = {}  # two branches may use one name for different numbers
    for weight in filter(_is_scalar, graph.weights):
        scalars.setdefault(weight.name, set()).add(_value(weight))
    for epsilon in sorted(set(_epsilons(graph, scalars))):
        if epsilons and not any(isclose(epsilon, own, rel_tol=_SAME) for own in epsilons):
            known = ", ".join(f"{own:g}" for own in sorted(epsilons))
            yield f"a norm of the graph has epsilon {epsilon:g}, but the model's class has {known}"
    rounding = float(torch.finfo(getattr(torch, precision)).eps)
    constants = [(name, value) for name, values in scalars.items() for value in sorted(values)]
    yield from _wrong_factors(constants, sorted({*factors(config), *_multipliers(config)}), rounding)


def _wrong_factors(constants: list[tuple[str, float]], known: list[float], rounding: float) -> Iterator[str]:
    """Yield the constants near a factor of the config. A factor that the graph lacks is better evidence.

    So if a constant is near such a factor, the constants near other factors are not named. A constant that equals a
    factor is right.
    """

    def equal(factor: float) -> bool:
        return any(isclose(value, factor, rel_tol=rounding) for _, value in constants)

    absent = [factor for factor in known if not equal(factor)]
    present = [factor for factor in known if equal(factor)]
    rest = [(name, value) for name, value in constants if not any(isclose(value, f, rel_tol=rounding) for f in known)]
    for candidates, tolerance in ((absent, _WIDE), (present, _TOLERANCE)):
        sentences = []
        for name, value in rest:
            close = [factor for factor in candidates if isclose(value, factor, rel_tol=tolerance)]
            if close:
                factor = min(close, key=lambda factor: abs(value / factor - 1))
                sentences.append(f"the constant {shown(name)} is {value:.6g}, but the config's factor is {factor:.6g}")
        if sentences:
            yield from sentences
            return


def _multipliers(config: Any) -> Iterator[float]:
    """Yield the numbers of the config that a graph multiplies with or divides by, in either form."""
    for name in _MULTIPLIERS:
        value = getattr(config, name, None)
        if isinstance(value, float) and value > 0 and value != 1:
            yield from (value, 1 / value)


def uncounted(cases: Iterable[Case], bindings: Bindings) -> Iterator[str]:
    """Yield a sentence if only padded rows are wrong and the graph has no position ids."""
    if Role.POSITIONS in bindings.inputs or bindings.kind not in (Kind.CACHED, Kind.PLAIN):
        return
    wrong = {bool(case.padding) for case in cases if case.ratio is None or case.ratio > CELL_LIMIT}
    if wrong == {True}:
        yield "only rows with left padding are wrong: the graph has no position_ids and counts the padding too"


def _is_scalar(weight: Any) -> bool:
    return weight.dtype in DTYPES and weight.dtype != "BFLOAT16" and all(side == 1 for side in weight.shape)


def _value(weight: Any) -> float:
    return float(weight.array().reshape(-1)[0])


def _epsilons(graph: Graph, scalars: Mapping[str, set[float]]) -> Iterator[float]:
    """Yield the epsilons of norm operators, and of norms in pieces: what is added before a root."""
    for node in graph.model.graph.all_nodes():
        attribute = node.attributes.get("epsilon")
        if attribute is not None:
            yield float(attribute.value)
        before = node.inputs[0].producer() if node.op_type == "Sqrt" and node.inputs[0] is not None else None
        if before is not None and before.op_type == "Add":
            for value in before.inputs:
                yield from scalars.get(str(value.name), ()) if value is not None else ()
