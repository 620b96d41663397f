"""Faults of constants, operators, weights and wiring."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.onnx.exported import CACHE
from tests.onnx.faults import Fault
from tests.onnx.planted import edit
from tests.onnx.planted.edit import nodes_of, rename, set_numbers, whole

node = helper.make_node


def number(before: float, after: float, *, count: int = 0) -> Fault:
    """A number in the graph has another value: everywhere, or at the first ``count`` places."""

    def chosen(values: np.ndarray) -> bool:
        one = values.size == 1 and values.dtype.kind == "f"
        return one and bool(np.isclose(values, before, rtol=1e-5, atol=0).all())

    def fault(model: ModelProto) -> None:
        set_numbers(model, chosen, lambda values: values * 0 + after, count=count)

    return fault


def operator(before: str, after: str, at: int | None = None) -> Fault:
    """An operator became another one: everywhere, or at one place."""

    def fault(model: ModelProto) -> None:
        nodes = nodes_of(model, before)
        for made in nodes if at is None else [nodes[at]]:
            made.op_type = after
            del made.attribute[:]

    return fault


def attribute(kind: str, name: str, value: object) -> Fault:
    """An attribute of all nodes of an operator has another value."""

    def fault(model: ModelProto) -> None:
        for made in nodes_of(model, kind):
            kept = [entry for entry in made.attribute if entry.name != name]
            del made.attribute[:]
            made.attribute.extend([*kept, helper.make_attribute(name, value)])

    return fault


def weight(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Fault:
    """The first weight with ``part`` in its name has other values."""

    def fault(model: ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if part in tensor.name)
        made = change(numpy_helper.to_array(tensor).copy())
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(made), tensor.name))

    return fault


def last_bit(values: np.ndarray) -> np.ndarray:
    """One element differs in its last bit."""
    values.view(np.uint32).reshape(-1)[values.size // 2] ^= 1
    return values


def bit(values: np.ndarray) -> np.ndarray:
    """One element has another exponent."""
    values.view(np.uint32).reshape(-1)[values.size // 2] ^= 1 << 24
    return values


def rows_swapped(values: np.ndarray) -> np.ndarray:
    values[[3, 4]] = values[[4, 3]]
    return values


def two_swapped(one: str, two: str) -> Fault:
    """Two weights of the same shape are read in each other's place."""

    def fault(model: ModelProto) -> None:
        names = [next(t.name for t in model.graph.initializer if part in t.name) for part in (one, two)]
        other = dict(zip(names, reversed(names), strict=True))
        for made in model.graph.node:
            made.input[:] = [other.get(name, name) for name in made.input]

    return fault


def residual_dropped(at: int) -> Fault:
    """A sum of a layer's input and output is only one of them."""

    def fault(model: ModelProto) -> None:
        products = {name for made in nodes_of(model, "MatMul") for name in made.output}
        sums = [made for made in nodes_of(model, "Add") if products.intersection(made.input)]
        made = [made for made in sums if not _constant(model, made)][at]
        kept = next(name for name in made.input if name in products)
        made.op_type, made.input[:] = "Identity", [kept]

    return fault


def _constant(model: ModelProto, made: object) -> bool:
    return bool({tensor.name for tensor in model.graph.initializer}.intersection(made.input))  # type: ignore[attr-defined]


def types_dropped(model: ModelProto) -> None:
    """Every token has the first type."""
    zero = whole(model, "first type", 0)
    edit.before(model, "token_type_ids", node("Mul", ["token_type_ids", zero], ["changed token_type_ids"]))


def fewer_experts(model: ModelProto) -> None:
    """One expert is chosen where two were."""
    one = whole(model, "one expert", [1])
    for made in nodes_of(model, "TopK"):
        made.input[1] = one


def cache_of(part: str) -> Fault:
    """The caches of the two layers leave in each other's place."""

    def fault(model: ModelProto) -> None:
        names = [f"output.{CACHE}.layers.{layer}.{part}" for layer in (0, 1)]
        for name in names:
            rename(model, name, f"own.{name}")
        for ours, theirs in zip(names, reversed(names), strict=True):
            model.graph.node.append(node("Identity", [f"own.{ours}"], [theirs]))

    return fault


def cache_rounded(model: ModelProto) -> None:
    """The keys of the first layer leave rounded to fp16."""
    name = f"output.{CACHE}.layers.0.keys"
    rename(model, name, "exact keys")
    model.graph.node.append(node("Cast", ["exact keys"], ["half keys"], to=TensorProto.FLOAT16))
    model.graph.node.append(node("Cast", ["half keys"], [name], to=TensorProto.FLOAT))


def logits_rounded(model: ModelProto) -> None:
    """The logits were rounded to fp16 on their way."""
    rename(model, "logits", "exact logits", inputs=False)
    model.graph.node.append(node("Cast", ["exact logits"], ["half logits"], to=TensorProto.FLOAT16))
    model.graph.node.append(node("Cast", ["half logits"], ["logits"], to=TensorProto.FLOAT))
