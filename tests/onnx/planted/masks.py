"""Faults of the attention mask and of positions."""

from __future__ import annotations

from onnx import ModelProto, helper

from tests.onnx.faults import Fault
from tests.onnx.planted.edit import before, behind, nodes_of, set_numbers, to_int, whole

MASK, PLACES = "attention_mask", "position_ids"
node = helper.make_node


def blind_to_trailing(model: ModelProto) -> None:
    """Everything after a row's first token counts as a token."""
    axis, zero = whole(model, "mask axis", 1), whole(model, "no token", 0)
    before(
        model,
        MASK,
        node("CumSum", [MASK, axis], ["tokens so far"]),
        node("Greater", ["tokens so far", zero], ["begun"]),
        to_int("begun", f"changed {MASK}"),
    )


def blind_to_leading(model: ModelProto) -> None:
    """Everything before a row's last token counts as a token."""
    axis, zero = whole(model, "mask axis", 1), whole(model, "no token", 0)
    before(
        model,
        MASK,
        node("CumSum", [MASK, axis], ["tokens to come"], reverse=1),
        node("Greater", ["tokens to come", zero], ["not over"]),
        to_int("not over", f"changed {MASK}"),
    )


def filled(model: ModelProto) -> None:
    """What lies between a row's first and last token counts as a token."""
    axis, zero = whole(model, "mask axis", 1), whole(model, "no token", 0)
    before(
        model,
        MASK,
        node("CumSum", [MASK, axis], ["tokens so far"]),
        node("CumSum", [MASK, axis], ["tokens to come"], reverse=1),
        node("Mul", ["tokens so far", "tokens to come"], ["between"]),
        node("Greater", ["between", zero], ["inside"]),
        to_int("inside", f"changed {MASK}"),
    )


def one_row(at_most: int) -> Fault:
    """Row b reads the mask of row min(b, ``at_most``)."""

    def fault(model: ModelProto) -> None:
        zero, one, last = whole(model, "zero", 0), whole(model, "one step", 1), whole(model, "last row", at_most)
        before(
            model,
            MASK,
            node("Shape", [MASK], ["mask sides"]),
            node("Gather", ["mask sides", zero], ["rows"]),
            node("Range", [zero, "rows", one], ["every row"]),
            node("Min", ["every row", last], ["own rows"]),
            node("Gather", [MASK, "own rows"], [f"changed {MASK}"]),
        )

    return fault


def leak_from(place: int) -> Fault:
    """Tokens from ``place`` on also see those after them."""

    def fault(model: ModelProto) -> None:
        causal = nodes_of(model, "LessOrEqual")[0]
        first = whole(model, "leaks", place)
        behind(
            model,
            causal.output[0],
            node("GreaterOrEqual", [causal.input[1], first], ["late"]),
            node("Or", [causal.output[0], "late"], [f"changed {causal.output[0]}"]),
        )

    return fault


def places_shifted_from(place: int) -> Fault:
    """Positions from ``place`` on are one too high."""

    def fault(model: ModelProto) -> None:
        first = whole(model, "shifted from", place)
        before(
            model,
            PLACES,
            node("GreaterOrEqual", [PLACES, first], ["is late"]),
            to_int("is late", "one more"),
            node("Add", [PLACES, "one more"], [f"changed {PLACES}"]),
        )

    return fault


def places_capped(last: int) -> Fault:
    """Positions stop at ``last``."""

    def fault(model: ModelProto) -> None:
        before(model, PLACES, node("Min", [PLACES, whole(model, "last place", last)], [f"changed {PLACES}"]))

    return fault


def cache_cut(last: int) -> Fault:
    """The caches that the graph returns hold the ``last`` tokens alone."""

    def fault(model: ModelProto) -> None:
        first, end, axis = whole(model, "first", [-last]), whole(model, "end", [1 << 40]), whole(model, "axis", [2])
        for name in [value.name for value in model.graph.output if value.name != "logits"]:
            for one in model.graph.node:
                one.output[:] = [f"whole {made}" if made == name else made for made in one.output]
                one.input[:] = [f"whole {read}" if read == name else read for read in one.input]
            model.graph.node.append(node("Slice", [f"whole {name}", first, end, axis], [name]))

    return fault


def window(before_: int, after: int) -> Fault:
    """The sliding window has another width."""

    def fault(model: ModelProto) -> None:
        set_numbers(
            model,
            lambda values: values.ndim == 0 and values.dtype.kind == "i" and values == before_,
            lambda values: values * 0 + after,
        )

    return fault
