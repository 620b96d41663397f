"""Return the text of a shard index after edits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tieconv.checkpoint.write_plan import OutputTensor, OutputText, OutputWeights
from tieconv.formats.index import edit_index
from tieconv.plans.edits import Edits


def index_text(edits: Edits, weights: Iterable[OutputWeights], removed: list[str]) -> tuple[OutputText, ...]:
    """Return the index for the written shards, or nothing if its text does not change."""
    index = edits.checkpoint.index
    assert index is not None  # a guard has refused a sharded model without an index
    written = {file.name: file for file in weights}
    after: dict[str, tuple[str, int, int]] = {}
    for file in edits.checkpoint.files:
        if file.name not in written and file.name not in removed:
            for record in file.tensors:
                after[record.name] = (file.name, record.nbytes, record.elements)
    for output in written.values():
        for tensor in output.tensors:
            after[tensor.name] = (output.name, tensor.nbytes, _elements(tensor))
    before = {record.name: record.range.file for record in edits.checkpoint.tensors.values()}
    drop = {name: shard for name, shard in before.items() if name not in after}
    add = {name: home for name, (home, _, _) in after.items() if before.get(name) != home}
    total = _total(edits, written, after)
    parameters = sum(elements for _, _, elements in after.values())
    parameters -= sum(record.elements for record in edits.checkpoint.tensors.values())
    text = edit_index(index.text, drop=drop, add=add, total_size=total, parameters_added=parameters)
    return (OutputText(index.name, text),) if text != index.text else ()


def _total(edits: Edits, written: Mapping[str, OutputWeights], after: Mapping[str, tuple[str, int, int]]) -> int:
    """Return the bytes of all tensors. Names with the same view of one storage count once, as in transformers."""
    seen: dict[object, int] = {}
    for file in edits.checkpoint.files:
        for record in file.tensors:
            if after.get(record.name, ("",))[0] == file.name and file.name not in written:
                seen[record.range, record.stride] = record.nbytes
    for output in written.values():
        for tensor in output.tensors:
            seen[(output.name, tensor.content, tensor.stride) if tensor.storage else tensor] = after[tensor.name][1]
    return sum(seen.values())


def _elements(tensor: OutputTensor) -> int:
    product = 1
    for side in tensor.shape:
        product *= side
    return product
