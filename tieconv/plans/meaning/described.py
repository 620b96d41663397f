"""Describe the model after a plan, so loaders can be asked about it before anything is written."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import NoReturn

from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.model_files import Checkpoint, Document, Layout
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.checkpoint.write_plan import Assembled, OutputTensor, OutputText, OutputWeights, Plan
from tieconv.inspection.declared import gated, understand, view_config
from tieconv.inspection.quantised.quantisation_config import declared_quantisation
from tieconv.inspection.ties import survey, view_head


def described(inspection: Inspection, plan: Plan) -> Inspection:
    """Return the header evidence about the model after the plan. Reads no file."""
    family = inspection.family
    checkpoint = _checkpoint(inspection.checkpoint, plan)
    if checkpoint.format == "gguf":  # it has no config: the stored names decide
        family, config = understand(checkpoint, None, None)
    else:
        config = view_config(checkpoint.config_values, family)
    tensors, reader = checkpoint.tensors, _NoBytes()
    ties = survey(family, tensors, reader, Depth.HEADER, gated(config, family))
    head = view_head(family, tensors, ties, reader, Depth.HEADER)
    declared = declared_quantisation(checkpoint.quantisation_values, family.output_head)
    return replace(
        inspection,
        checkpoint=checkpoint,
        family=family,
        config=config,
        ties=ties,
        head=head,
        duplicates=(),
        quantisation=declared,
    )


class _NoBytes:
    """A reader without tensor bytes, because a plan has only headers."""

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> NoReturn:
        raise AssertionError(span)


def _checkpoint(before: Checkpoint, plan: Plan) -> Checkpoint:
    """Return the files after the plan. If it writes another format, the old weight files are not in the model."""
    written = {output.name: output for output in plan.weights}
    form = plan.weights[0].format if plan.weights else before.format
    replaced = {*written, *plan.removed} if form == before.format else {file.name for file in before.files}
    files = [file for file in before.files if file.name not in replaced]
    files += [_file(output, before) for output in written.values()]
    order = {file.name: number for number, file in enumerate(before.files)}
    files.sort(key=lambda file: (order.get(file.name, len(order)), file.name))
    config, index, cautions = before.config, before.index, before.cautions
    for text in plan.texts:
        if config is not None and text.name == config.name:
            config = _document(text)
        elif text.name.endswith(".index.json"):
            index = _document(text)
            cautions = tuple(caution for caution in cautions if not caution.code.startswith("index."))
    layout = before.layout
    if layout is not Layout.FILE and len(files) > 1:
        layout = Layout.SHARDED
    return replace(
        before, files=tuple(files), format=form, layout=layout, config=config, index=index, cautions=cautions
    )


def _document(text: OutputText) -> Document:
    return Document(text.name, text.text, json.loads(text.text))


def _file(output: OutputWeights, before: Checkpoint) -> WeightFile:
    tensors = tuple(_record(output, tensor, before.tensors.get(tensor.name)) for tensor in output.tensors)
    return WeightFile(output.name, 0, 0, tensors, output.metadata, gguf=output.gguf)


def _record(output: OutputWeights, tensor: OutputTensor, before: TensorRecord | None) -> TensorRecord:
    """Return the tensor with the range of its bytes now. Bytes that the plan makes get a range in no file."""
    content = tensor.content
    if before is not None and (before.range, before.dtype, before.shape) == (content, tensor.dtype, tensor.shape):
        return before
    if isinstance(content, Assembled):
        content = content.range
    span = content if isinstance(content, ByteRange) else ByteRange(f"{output.name}/{tensor.name}", 0, tensor.nbytes)
    return TensorRecord(tensor.name, tensor.dtype, tensor.shape, span, tensor.stride)
