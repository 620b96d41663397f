"""Name the constant of a graph that is likely wrong: close to a number of the model, but not equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from tieconv.checkpoint.results.parity import Case
from tieconv.onnx.parity.bindings import Bindings, Kind, Role
from tieconv.onnx.parity.graph_file import DTYPES
from tieconv.onnx.parity.judge import CELL_LIMIT
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.passes import ModelNumbers
from tieconv.text import shown

_CLOSE = 0.01
"""Relative difference up to which a constant is offered for a number of the model."""
_USUAL = frozenset({0.0, 0.5, 1.0, 2.0, 3.0})
"""Numbers that formulas have."""
_CONSTANT_PASSES = frozenset({"Cast", "CastLike", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Expand"})
"""Operators behind which a constant has the same meaning."""
_DEFAULT = frozenset({"LayerNormalization", "RMSNormalization"})
"""Operators whose epsilon is 1e-5 if they have no such attribute."""
Used = tuple[float, bool]
"""A number, and whether it is added before a root: the epsilon of a norm."""


def wrong_constant(subject: Subject, numbers: ModelNumbers) -> Iterator[str]:
    """Yield one sentence about the constant that is likely wrong, if there is one. No graph is run."""
    if subject.pair is not None or subject.graph.embedding is not None:
        return
    uses: dict[Used, list[str]] = {}
    for node in _nodes(subject.graph.model):
        for name, value, epsilon in _numbers(node):
            uses.setdefault((value, epsilon), []).append(name)
    rounding = 4 * float(torch.finfo(getattr(torch, subject.precision)).eps)
    for _, used, right in sorted(_close(uses, numbers, rounding))[:1]:
        names, (value, epsilon) = uses[used], used
        times = f" (used {len(names)} times)" if len(names) > 1 else ""
        sentence = f"the constant {shown(names[0])}{times} is {value:.6g}, but the model has {right:.6g}"
        yield f"a norm of the graph has epsilon {value:g}, but the model's class has {right:g}" if epsilon else sentence


def _close(uses: Iterable[Used], numbers: ModelNumbers, rounding: float) -> Iterator[tuple[float, Used, float]]:
    """Yield constants with the number of the model that they may replace, and their relative difference."""
    for value, epsilon in uses:
        choices = numbers.epsilons if epsilon else numbers.factors
        if value in _USUAL or value < 0 or any(math.isclose(value, right, rel_tol=rounding) for right in choices):
            continue
        for right in choices:
            quotient = abs(math.log(value / right))
            if epsilon or quotient <= _CLOSE:
                yield (0.0 if epsilon else quotient), (value, epsilon), right


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _numbers(node: ir.Node) -> Iterator[tuple[str, float, bool]]:
    """Yield the finite float numbers that a node reads: a name, the number, and whether it is an epsilon."""
    for value in node.inputs:
        tensor: Any = None if value is None else ir.convenience.get_const_tensor(value)
        if tensor is not None and tensor.size == 1 and tensor.dtype.name in DTYPES and tensor.dtype.name != "BFLOAT16":
            number = float(np.asarray(tensor.numpy(), np.float64).reshape(()))
            if math.isfinite(number):
                yield str(value and value.name), number, _before_root(node)
    if node.op_type == "Constant":
        return
    for name, attribute in node.attributes.items():
        if attribute.type is ir.AttributeType.FLOAT and attribute.value is not None:
            yield str(node.name), float(attribute.value), name == "epsilon"
    if node.op_type in _DEFAULT and "epsilon" not in node.attributes:
        yield str(node.name), 1e-5, True


def _before_root(node: ir.Node) -> bool:
    """Return whether the constant is added and the sum's root is next."""
    while node.op_type in _CONSTANT_PASSES:
        users = [user for user, _ in node.outputs[0].uses()]
        if len(users) != 1:
            return False
        (node,) = users
    return node.op_type == "Add" and any(user.op_type in ("Sqrt", "Pow") for user, _ in node.outputs[0].uses())


def uncounted(cases: Iterable[Case], bindings: Bindings) -> Iterator[str]:
    """Yield a sentence if only padded rows are wrong and the graph has no position ids."""
    if Role.POSITIONS in bindings.inputs or bindings.kind not in (Kind.CACHED, Kind.PLAIN):
        return
    wrong = {bool(case.padding) for case in cases if case.error or (case.ratio or 0.0) > CELL_LIMIT}
    if wrong == {True}:
        yield "only rows with left padding are wrong: the graph has no position_ids and counts the padding too"
