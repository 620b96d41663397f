"""Name the axes of an exported graph by meaning: ``batch``, ``sequence``, ``past_sequence``, and not ``s44``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import onnx_ir as ir

_NAMES = {
    "input_ids": ("batch", "sequence"),
    "position_ids": ("batch", "sequence"),
    "token_type_ids": ("batch", "sequence"),
    "decoder_input_ids": ("batch", "decoder_sequence"),
    "inputs_embeds": ("batch", "sequence", ""),
    "encoder_attention_mask": ("batch", "encoder_sequence"),
    "encoder_hidden_states": ("batch", "encoder_sequence"),
}
_PAST = ("batch", "", "past_sequence", "")
_CROSS = ("batch", "", "encoder_sequence", "")
_SYMBOL = re.compile(r"\b[su]\d+\b")


def name_axes(model: ir.Model) -> None:
    """Replace the tracer's symbols by names of axes, everywhere in the graph."""
    names = dict(_symbols(model))
    for value in _values(model):
        if value.shape is not None and any(isinstance(side, ir.SymbolicDim) for side in value.shape):
            value.shape = ir.Shape([_named(side, names) for side in value.shape])


def _symbols(model: ir.Model) -> Iterator[tuple[str, str]]:
    inputs = {str(value.name): value for value in model.graph.inputs}
    cached = any("past_key_values" in name for name in inputs)
    whole = "past_sequence + sequence" if cached else "sequence"
    for name, value in inputs.items():
        cache = _CROSS if ".encoder." in name else _PAST
        axes = cache if "past_key_values" in name else _NAMES.get(name, ("batch", whole))
        if name == "position_ids" and len(value.shape or ()) > len(axes):
            axes = ("", *axes)  # M-RoPE
        if name == "token_type_ids" and cached:
            axes = ("batch", whole)
        for side, axis in zip(value.shape or (), axes or (), strict=False):
            if axis and isinstance(side, ir.SymbolicDim) and side.value and _SYMBOL.fullmatch(side.value):
                yield side.value, axis


def _named(side: int | ir.SymbolicDim, names: Mapping[str, str]) -> int | ir.SymbolicDim:
    if isinstance(side, int) or not side.value:
        return side
    expression = _SYMBOL.sub(lambda match: names.get(match[0], match[0]), side.value)
    # If a dynamic axis turns out to be always 2, the exporter writes it as the symbol "2".
    return int(expression) if expression.isdecimal() else ir.SymbolicDim(expression)


def _values(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.inputs
        for node in graph:
            yield from node.outputs
