"""The checkpoint that a plan describes, as evidence: what loaders are asked about before anything is written."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import NoReturn

from tieconv.checkpoint.files.model_files import Checkpoint, Document
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.write_plan.output import OutputTensor, OutputText, OutputWeights
from tieconv.inspection.declared import gated, view_config
from tieconv.inspection.head import view_head
from tieconv.inspection.ties import survey


def described(
    inspection: Inspection, weights: Iterable[OutputWeights], texts: Iterable[OutputText], removed: Collection[str]
) -> Inspection:
    """Return the evidence that headers give about the model once the files are written. Nothing is read."""
    family = inspection.family
    checkpoint = _checkpoint(inspection.checkpoint, {output.name: output for output in weights}, texts, removed)
    config = view_config(checkpoint.config_values, family)
    tensors, reader = checkpoint.tensors, _NoBytes()
    ties = survey(family, tensors, reader, Depth.HEADER, gated(config, family))
    head = view_head(family, tensors, ties, reader, Depth.HEADER)
    return replace(inspection, checkpoint=checkpoint, config=config, ties=ties, head=head, duplicates=())


class _NoBytes:
    """Headers are all that there is."""

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> NoReturn:
        raise AssertionError(span)


def _checkpoint(
    before: Checkpoint, written: dict[str, OutputWeights], texts: Iterable[OutputText], removed: Collection[str]
) -> Checkpoint:
    kept = [file for file in before.files if file.name not in written and file.name not in removed]
    made = [_file(output, before) for output in written.values()]
    order = {file.name: place for place, file in enumerate(before.files)}
    files = sorted((*kept, *made), key=lambda file: (order.get(file.name, len(order)), file.name))
    config = before.config
    for text in texts:
        if config is not None and text.name == config.name:
            config = Document(text.name, text.text, json.loads(text.text))
    return replace(before, files=tuple(files), config=config)


def _file(output: OutputWeights, before: Checkpoint) -> WeightFile:
    tensors = tuple(_record(output, tensor, before.tensors.get(tensor.name)) for tensor in output.tensors)
    return WeightFile(output.name, 0, 0, tensors, output.metadata)


def _record(output: OutputWeights, tensor: OutputTensor, before: TensorRecord | None) -> TensorRecord:
    """The tensor, its bytes where they are now: a range of no file where they are made."""
    content = tensor.content
    if before is not None and (before.range, before.dtype, before.shape) == (content, tensor.dtype, tensor.shape):
        return before
    span = content if isinstance(content, ByteRange) else ByteRange(f"{output.name}/{tensor.name}", 0, tensor.nbytes)
    return TensorRecord(tensor.name, tensor.dtype, tensor.shape, span, tensor.stride)
