"""Check the encoding of messages that tieconv does not use, as protobuf's parsers do.

A message is described by its fields that are messages. Source: onnx.proto of onnx 1.23.
"""

from __future__ import annotations

from tieconv.formats.onnx.protobuf import BYTES, Wire

Message = dict[int, "Message"]
_MAX_DEPTH = 64

_ENTRY: Message = {}
_DIMENSIONS: Message = {1: {}}
_TYPE: Message = {1: {2: _DIMENSIONS}, 8: {2: _DIMENSIONS}, 7: {}}
_TYPE |= {4: {1: _TYPE}, 5: {2: _TYPE}, 9: {1: _TYPE}}
VALUE: Message = {2: _TYPE, 4: _ENTRY}
_SHARDING: Message = {3: {2: {}}, 4: {1: {}}}
TENSOR: Message = {3: {}, 16: _ENTRY}
NODE: Message = {9: _ENTRY, 10: {2: _SHARDING}}
ATTRIBUTE: Message = {14: _TYPE, 15: _TYPE}
GRAPH: Message = {13: VALUE, 14: {2: _ENTRY}, 16: _ENTRY}
FUNCTION: Message = {12: VALUE, 14: _ENTRY}
MODEL: Message = {14: _ENTRY, 26: {}}


def check_field(wire: Wire, start: int, end: int, message: Message | None) -> None:
    """Refuse a field that is not a well-formed ``message``. ``None`` means that the field holds no message."""
    if message is not None:
        check(wire, start, end, message)


def check(wire: Wire, start: int, end: int, message: Message, depth: int = 0) -> None:
    """Refuse the message between two offsets unless it and its inner messages are well-formed."""
    if depth > _MAX_DEPTH:
        wire.refuse(f"nests more than {_MAX_DEPTH} messages", "nesting")
    for number, kind, value, stop in wire.fields(start, end):
        inner = message.get(number)
        if inner is not None and kind == BYTES:
            check(wire, value, stop, inner, depth + 1)
