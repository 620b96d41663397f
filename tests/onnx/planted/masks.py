"""Faults of the attention mask."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.onnx.faults import Fault


def constant(model: ModelProto, name: str, value: object) -> str:
    """Add an initializer and return its name."""
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def before(model: ModelProto, name: str, *nodes: object) -> None:
    """Let every node read ``changed NAME``, which the last of ``nodes`` gives, instead of the input ``name``."""
    for node in model.graph.node:
        node.input[:] = [f"changed {name}" if given == name else given for given in node.input]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def blind_to_trailing(mask: str = "attention_mask") -> Fault:
    """Everything after a row's first token counts as a token."""

    def fault(model: ModelProto) -> None:
        axis, zero = constant(model, "mask axis", np.int64(1)), constant(model, "no token", np.int64(0))
        before(
            model,
            mask,
            helper.make_node("CumSum", [mask, axis], ["tokens so far"]),
            helper.make_node("Greater", ["tokens so far", zero], ["begun"]),
            helper.make_node("Cast", ["begun"], [f"changed {mask}"], to=TensorProto.INT64),
        )

    return fault


def filled(mask: str = "attention_mask") -> Fault:
    """What lies between a row's first and last token counts as a token."""

    def fault(model: ModelProto) -> None:
        axis, zero = constant(model, "mask axis", np.int64(1)), constant(model, "no token", np.int64(0))
        before(
            model,
            mask,
            helper.make_node("CumSum", [mask, axis], ["tokens so far"]),
            helper.make_node("CumSum", [mask, axis], ["tokens to come"], reverse=1),
            helper.make_node("Mul", ["tokens so far", "tokens to come"], ["between"]),
            helper.make_node("Greater", ["between", zero], ["inside"]),
            helper.make_node("Cast", ["inside"], [f"changed {mask}"], to=TensorProto.INT64),
        )

    return fault
