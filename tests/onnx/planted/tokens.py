"""Faults of single token ids."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, helper

from tests.onnx.faults import Fault
from tests.onnx.planted.edit import behind, constant, lookup, to_int, whole

node = helper.make_node


def shifted(token: int) -> Fault:
    """The lookup of one id gives the row after its own."""

    def fault(model: ModelProto) -> None:
        words = lookup(model)
        given = words.input[1]
        at = list(model.graph.node).index(words)
        added = [
            node("Equal", [given, whole(model, "one id", token)], ["is the id"]),
            to_int("is the id", "one row"),
            node("Add", [given, "one row"], ["shifted ids"]),
        ]
        words.input[1] = "shifted ids"
        for extra in reversed(added):
            model.graph.node.insert(at, extra)

    return fault


def clipped(last: int) -> Fault:
    """Ids behind ``last`` are looked up as ``last``."""

    def fault(model: ModelProto) -> None:
        words = lookup(model)
        given = words.input[1]
        at = list(model.graph.node).index(words)
        words.input[1] = "clipped ids"
        limits = whole(model, "first id", 0), whole(model, "last id", last)
        model.graph.node.insert(at, node("Clip", [given, *limits], ["clipped ids"]))

    return fault


def acted_on(token: int, factor: float = 0.0) -> Fault:
    """What is looked up for one id is multiplied with ``factor``."""

    def fault(model: ModelProto) -> None:
        words = lookup(model)
        row = words.output[0]
        dtype = np.float32
        behind(
            model,
            row,
            node("Equal", [words.input[1], whole(model, "one id", token)], ["is the id"]),
            node("Unsqueeze", ["is the id", whole(model, "behind", [-1])], ["is its row"]),
            node("Mul", [row, constant(model, "factor", dtype(factor))], ["another row"]),
            node("Where", ["is its row", "another row", row], [f"changed {row}"]),
        )

    return fault
