"""Find the input embedding, the output embedding and its bias, by their names in the file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tieconv.architectures import locate
from tieconv.checkpoint.family import Family, Tying
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.head import BiasState, Head, OutputBias, OutputHead, TensorView
from tieconv.checkpoint.inspection import Depth
from tieconv.checkpoint.tie_group import Tie
from tieconv.inspection.blocks import is_sampled

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import ByteReader


def view_head(
    family: Family,
    tensors: Mapping[str, TensorRecord],
    ties: tuple[Tie, ...],
    reader: ByteReader,
    depth: Depth,
) -> Head:
    """Return the input embedding, the output embedding and the head bias."""
    embedding, bias = _embedding(family, tensors, ties), _bias(family, tensors, reader, depth)
    return Head(embedding, _output(family, tensors, ties), bias, () if embedding else _pieces(family, tensors))


def _pieces(family: Family, tensors: Mapping[str, TensorRecord]) -> tuple[TensorView, ...]:
    """Return the stored tensors that a loader joins to the input embedding; empty if one of them is missing."""
    records = [tensors[name] for name in family.pieces if name in tensors]
    if len(records) < len(family.pieces):
        return ()
    return tuple(TensorView(record.name, record.shape, record.dtype) for record in records)


def _embedding(family: Family, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...]) -> TensorView | None:
    """Return the stored input embedding, under its own name or that of the table shared with the tied head.

    For Marian the input embedding is the encoder's, and a tied model stores only `model.shared.weight`.
    """
    name = family.input_embedding and locate(family, family.input_embedding, tensors)
    if not name:
        name = next((tie.canonical for tie in ties if _shares(tie, family.input_embedding, tensors)), None)
    if not name:
        return None
    record = tensors[name]
    return TensorView(name, record.shape, record.dtype)


def _shares(tie: Tie, name: str | None, tensors: Mapping[str, TensorRecord]) -> bool:
    return tie.declared and tie.canonical in tensors and any(member.name == name for member in tie.members)


def _output(family: Family, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...]) -> OutputHead | None:
    """Return the output embedding; ``None`` for a class without one by design."""
    if family.output_head is None or family.tying is Tying.HEADLESS:
        return None
    name = locate(family, family.output_head, tensors)
    if name:
        record = tensors[name]
        return OutputHead(name, True, None, record.shape, record.dtype)
    return OutputHead(family.output_head, False, _tied_to(family.output_head, tensors, ties))


def _tied_to(head: str, tensors: Mapping[str, TensorRecord], ties: tuple[Tie, ...]) -> str | None:
    """Return the stored tensor that a tied, absent head takes its values from."""
    for tie in ties:
        if tie.declared and head in (member.name for member in tie.members):
            return next((member.name for member in tie.members if member.name in tensors), None)
    return None


def head_bias_name(head: str) -> str:
    """Return the name of a bias beside the head's weight (`lm_head.weight` → `lm_head.bias`)."""
    return f"{head.removesuffix('.weight')}.bias"


def _bias(family: Family, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth) -> OutputBias | None:
    """Return the bias that transformers 5 reads: of two stored names the head's own.

    A bias stored beside a head whose class has none counts too.
    """
    if family.output_head is None:
        return None
    names = family.output_biases or (head_bias_name(family.output_head),)
    for name in reversed(names):
        actual = locate(family, name, tensors)
        if actual:
            if depth is Depth.HEADER or (depth is Depth.CANDIDATES and is_far(reader, tensors[actual])):
                return OutputBias(actual, BiasState.UNREAD)
            from tieconv.inspection.tensor_values import bias_summary

            return OutputBias(actual, *bias_summary(reader, tensors[actual]))
    return OutputBias(names[0], BiasState.ABSENT)


_FETCHED = 4 << 20
"""Bytes of the largest bias that is fetched without a request: a million elements of four bytes."""


def is_far(reader: ByteReader, record: TensorRecord) -> bool:
    """Return whether a bias stays unread because it is large and would be fetched over a network."""
    return is_sampled(reader) and record.nbytes > _FETCHED
