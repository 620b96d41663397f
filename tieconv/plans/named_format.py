"""Add the "format" entry to safetensors metadata: transformers 4 refuses a file without it."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import Checkpoint, Layout
from tieconv.checkpoint.write_plan import KeepTensor, LinkFile, OutputTensor, OutputWeights, Plan, Promises, SetMetadata
from tieconv.plans.guards import again, guard_layout, refuse
from tieconv.plans.meaning import judged
from tieconv.plans.meaning.described import described
from tieconv.text import count, shown

FORMAT, TORCH = "format", "pt"


def plan_add_format(inspection: Inspection) -> Plan:
    """Return the plan that adds the "format" entry to a model of one file. Raises `RefusedError` for other formats."""
    guard_layout(inspection)
    checkpoint = inspection.checkpoint
    guard_named(checkpoint, again(inspection, "inspect"))
    weights = with_format(checkpoint)
    plan = Plan(
        command="reindex",
        checkpoint=checkpoint,
        fingerprint=dict(checkpoint.states),
        operations=(*named(weights), *(KeepTensor(name) for name in checkpoint.tensors)),
        weights=weights,
        texts=(),
        links=tuple(LinkFile(name, size) for name, size in sorted(_files(checkpoint, weights).items())),
        removed=(),
        promises=Promises(inspection.config.effective, ()),
        summary=summary(weights) or 'the metadata already has a "format" entry: nothing to change',
        options={"add-format": "true"},
    )
    return judged(plan, inspection, described(inspection, plan), ())


def guard_named(checkpoint: Checkpoint, hint: str) -> None:
    """Raise `RefusedError` for a model that is not in safetensors files."""
    if checkpoint.format != "safetensors":
        refuse(
            f'{shown(checkpoint.source)} has the format {checkpoint.format}: only safetensors has a "format" entry',
            hint,
            "reindex.add-format",
        )


def with_format(checkpoint: Checkpoint) -> tuple[OutputWeights, ...]:
    """Return the files without a "format" entry that loaders accept, with that entry. Nothing else changes."""
    return tuple(
        OutputWeights(
            file.name,
            tuple(OutputTensor(tensor.name, tensor.dtype, tensor.shape, tensor.range) for tensor in file.tensors),
            {**(file.metadata or {}), FORMAT: TORCH},
        )
        for file in checkpoint.files
        if file.metadata is None or file.refused_format is not None
    )


def named(weights: tuple[OutputWeights, ...]) -> tuple[SetMetadata, ...]:
    """Return the operations for the files from `with_format`."""
    return tuple(SetMetadata(output.name, FORMAT, TORCH) for output in weights)


def summary(weights: tuple[OutputWeights, ...]) -> str:
    """Return the summary, such as ``format pt added to 2 files``. It is empty for no file."""
    return f"format {TORCH} added to {count(len(weights), 'file')}" if weights else ""


def _files(checkpoint: Checkpoint, weights: tuple[OutputWeights, ...]) -> Mapping[str, int]:
    """Return the unchanged files of the model and their sizes in bytes."""
    files = {file.name: file.size for file in checkpoint.files} | dict(checkpoint.companions)
    if checkpoint.config is not None and checkpoint.layout is not Layout.FILE:
        files[checkpoint.config.name] = checkpoint.states[checkpoint.config.name].size
    written = {output.name for output in weights}
    return {name: size for name, size in files.items() if name not in written}
