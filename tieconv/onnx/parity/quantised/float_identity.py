"""Compare the weights of a quantised graph that stay float with the checkpoint, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tieconv.checkpoint.results.parity import Identity
from tieconv.onnx.parity.measured_pair import Subject
from tieconv.onnx.parity.quantised.weights import Compared
from tieconv.onnx.parity.torch_runs import identity_of
from tieconv.reference import Reference


def float_identity(subject: Subject, model: Reference, compared: Compared) -> Identity:
    """Compare the float weights bit for bit. Quantised tensors and their scales are left out."""
    identity = identity_of(subject, model.unused, model)
    quantised = compared.parameters
    sides = {id(parameter): name for name, parameter in model.model.named_parameters(remove_duplicate=False)}
    tied = {
        name
        for name, parameter in model.model.named_parameters(remove_duplicate=False)
        if sides[id(parameter)] in quantised or name in quantised
    }
    scales = {str(value.name) for node in subject.graph.model.graph.all_nodes() for value in _scales(node)}
    lost = tuple(entry for entry in identity.lost if not any(_is(entry.name, name) for name in quantised | tied))
    unexplained = tuple(entry for entry in identity.unexplained if entry.name not in scales)
    return replace(identity, lost=lost, unexplained=unexplained)


def _is(stored: str, parameter: str) -> bool:
    """Return whether a stored name is a parameter's. A checkpoint of the base model lacks the first part."""
    return stored == parameter or parameter.endswith(f".{stored}") or stored.endswith(f".{parameter}")


def _scales(node: Any) -> list[Any]:
    """Return the scales that a quantised node reads, also through a Gather."""
    known = {"MatMulNBits": 2, "GatherBlockQuantized": 2, "DequantizeLinear": 1}
    index = known.get(node.op_type)
    return [] if index is None else [value for value in node.inputs[index : index + 1] if value is not None]
