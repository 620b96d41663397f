"""Search each checkpoint tensor in the graph by its bytes, whatever its name there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from math import prod
from types import MappingProxyType

import numpy as np
import torch

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.results.parity import Identity, Lost
from tieconv.inspection.view_reader import readable
from tieconv.onnx.parity.graph.file import DTYPES, Graph, Initializer
from tieconv.onnx.parity.weights.candidate_search import BIT_TYPES, STORED, TensorSearch, bits_of
from tieconv.onnx.parity.weights.folds import Fold
from tieconv.onnx.parity.weights.packed_weights import Weight, find_blocks

REQUIRED = 4096
"""Elements from which a vector must be in the graph. Every matrix must be."""


def weight_identity(
    graph: Graph,
    checkpoint: Checkpoint,
    reader: ByteReader,
    precision: str,
    folds: tuple[Fold, ...],
    unused: Collection[str],
    embedding: str | None,
    computed: Collection[torch.Tensor] = (),
    offsets: Mapping[str, int] = MappingProxyType({}),
) -> Identity:
    """Search every checkpoint tensor in the graph, and every matrix of the graph in the checkpoint.

    A match is bit for bit over all elements. The tensor is first cast to the graph's dtype as torch does (to nearest,
    ties to even). ``unused`` tensors, which the model's class does not read, are skipped. ``computed`` are matrices of
    the model that no file holds, such as sinusoidal positions. They also explain a matrix of the graph. ``offsets`` are
    the rows, by parameter, before position 0 in a table; a graph may omit them.
    """
    reader, records = readable(reader, [record for record in checkpoint.tensors.values() if record.name not in unused])
    search = TensorSearch(reader)
    for weight in graph.weights:
        if weight.dtype in DTYPES and weight.nbytes:
            search.add(weight)
    lost, forms, copies = [], Counter[str](), 0
    floats = [record for record in records if record.dtype in STORED]
    for record in floats:
        matches = list(search.find(record, precision, folds))
        for candidate, _ in matches:
            if candidate.part is None:  # a part explains only itself, not the whole stack
                search.held.setdefault(candidate.weight.name, record.name)
        if matches:
            candidate, fold = matches[0]
            forms[", ".join(filter(None, (candidate.form, fold.name)))] += 1
        else:
            lost.append(_lost(record, "no initializer has these bytes"))
        if record.name == embedding:
            copies = len({candidate.weight.name for candidate, _ in matches})
    matrices = {record.name: record.shape for record in floats if _is_matrix(record.shape)}
    padded = {w.name: _shorter(w, matrices) for w in graph.weights if w.dtype in DTYPES and w.name not in search.held}
    looked = {entry.name for entry in lost}.union(*padded.values())
    blocks = find_blocks(
        {record.name: search.whole(record, precision, folds) for record in floats if record.name in looked},
        {w.name: _bits_of(w) for w in graph.weights if w.dtype in DTYPES and w.nbytes},
    )
    forms.update(blocks.forms[entry.name] for entry in lost if entry.name in blocks.forms)
    held = {name for name, shorter in padded.items() if shorter & blocks.within.get(name, set())}
    search.held.update({name: "parts" for name in blocks.held | held if name not in search.held})
    lost = [entry for entry in lost if entry.name not in blocks.forms]
    cut = {entry.name: rows for entry in lost if (rows := _before(entry, offsets))}
    rest = find_blocks(
        {r.name: search.whole(r, precision, folds).after(cut[r.name]) for r in floats if r.name in cut},
        {w.name: _bits_of(w) for w in graph.weights if w.dtype in DTYPES and w.nbytes and w.name not in search.held},
    )
    forms.update(f"without {cut[name]} rows before position 0" for name in rest.forms)
    search.held.update(dict.fromkeys(rest.held, "parts"))
    lost = [entry for entry in lost if entry.name not in rest.forms]
    missing = {entry.name for entry in lost}
    return Identity(
        tensors=len(floats),
        found=len(floats) - len(lost),
        bytes=sum(record.nbytes for record in floats),
        bytes_found=sum(record.nbytes for record in floats if record.name not in missing),
        how=dict(forms),
        lost=tuple(lost),
        unexplained=tuple(_unexplained(graph, search.held, matrices, computed)),
        unused=tuple(unused),
        copies=copies,
    )


def _bits_of(weight: Initializer) -> Weight:
    return Weight(weight.dtype, weight.array().view(BIT_TYPES[DTYPES[weight.dtype]]))


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return sum(side > 1 for side in shape) > 1


def _lost(record: TensorRecord, reason: str) -> Lost:
    required = _is_matrix(record.shape) or record.elements >= REQUIRED
    return Lost(record.name, record.shape, record.dtype, record.nbytes, required, reason)


def _before(entry: Lost, offsets: Mapping[str, int]) -> int:
    """Return the rows before position 0 if the tensor is such a table, with or without the class's prefix."""
    rows = next((rows for name, rows in offsets.items() if f".{name}".endswith(f".{entry.name}")), 0)
    return rows if len(entry.shape) == 2 and entry.shape[0] > rows else 0


def _shorter(weight: Initializer, matrices: Mapping[str, tuple[int, ...]]) -> set[str]:
    """Return the matrices that the weight could hold with padding: one side is longer, by at most a quarter."""
    return {name for name, shape in matrices.items() if _is_longer(_sides(weight.shape), _sides(shape))}


def _is_longer(sides: tuple[int, ...], own: tuple[int, ...]) -> bool:
    return len(sides) == len(own) == 2 and any(
        short_side == long_side and less < more <= less * 5 // 4
        for (short_side, less) in (own, own[::-1])
        for (long_side, more) in (sides, sides[::-1])
    )


def _like(weight: Initializer, matrices: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the weight has the shape of a checkpoint matrix, in either order, or is its flat form."""
    sides = _sides(weight.shape)
    if len(sides) == 1:
        return sides[0] >= REQUIRED and any(prod(shape) == sides[0] for shape in matrices.values())
    return any(sides in (_sides(shape), _sides(shape)[::-1]) for shape in matrices.values())


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side > 1)


def _unexplained(
    graph: Graph,
    held: dict[str, str],
    matrices: Mapping[str, tuple[int, ...]],
    computed: Collection[torch.Tensor],
) -> Iterator[Lost]:
    """Yield float weights of the graph that hold no tensor of the checkpoint.

    These are matrices, and vectors that may be matrices. A weight in the shape of a tensor is required to hold one.
    """
    for weight in graph.weights:
        if weight.dtype not in DTYPES or weight.name in held:
            continue
        like = _like(weight, matrices)
        if not (like or _is_matrix(weight.shape)) or any(_is_computed(weight, tensor) for tensor in computed):
            continue
        same = like or bool(_shorter(weight, matrices))
        reason = "has the shape of a checkpoint tensor, but other bytes" if same else "is not a checkpoint tensor"
        yield Lost(weight.name, weight.shape, weight.dtype, weight.nbytes, same, reason)


def _is_computed(weight: Initializer, tensor: torch.Tensor) -> bool:
    """Return whether the weight is this tensor of the model, bit for bit, as stored or transposed."""
    if tensor.numel() != prod(weight.shape) or not tensor.is_floating_point():
        return False
    forms = [tensor] if tensor.ndim != 2 else [tensor, tensor.T]
    stored = weight.array().view(BIT_TYPES[DTYPES[weight.dtype]]).reshape(-1)
    return any(np.array_equal(bits_of(form.contiguous(), weight.dtype).reshape(-1), stored) for form in forms)
