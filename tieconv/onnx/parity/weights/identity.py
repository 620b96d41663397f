"""Weight identity: each checkpoint tensor looked for in the graph by its bytes, whatever its name there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.model_files import ByteReader, Checkpoint, TensorRecord
from tieconv.checkpoint.results.parity import Identity, Lost
from tieconv.inspection.view_reader import readable
from tieconv.onnx.parity.graph.file import DTYPES, Graph, Initializer
from tieconv.onnx.parity.weights.folds import Fold
from tieconv.onnx.parity.weights.packed_weights import Rows, Tensor, Weight, find_blocks

REQUIRED = 4096
"""Elements from which a vector must be found; every matrix must be."""
BLOCK = 1 << 21
"""Elements compared at a time: some 40 MB at the most, casts included."""
_PROBES = 48
_STORED = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
_BITS = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}


@dataclass
class _Candidate:
    """A weight of the graph in one orientation: ``rows(first, last)`` are its elements in row-major order.

    ``part`` is an expert's matrix within a stack (experts × rows × columns): its number, and which ``(half, halves)``
    of its rows as the checkpoint has them, since gate and up projections are stacked too.
    """

    weight: Initializer
    transposed: bool
    part: tuple[int, int, int] | None = None

    def probe(self) -> bytes:
        array = self._array()
        flat = np.unravel_index(_positions(array.size), array.shape) if array.ndim else ()
        return bytes(np.ascontiguousarray(array[flat]).reshape(-1).tobytes())

    def rows(self, first: int, end: int) -> Any:
        return np.ascontiguousarray(self._array()[first:end]).reshape(-1)

    def _array(self) -> Any:
        array = self.weight.array()
        array = array.view(_BITS[DTYPES[self.weight.dtype]])
        if self.part is None:
            return array.T if self.transposed else array.reshape(-1)
        expert, half, halves = self.part
        matrix = array[expert].T if self.transposed else array[expert]
        length = len(matrix) // halves
        matrix = matrix[half * length : (half + 1) * length]
        return matrix if self.transposed else matrix.reshape(-1)

    @property
    def shape(self) -> tuple[int, ...]:
        """As the checkpoint has it, where transposed or a part."""
        if self.part is None:
            return tuple(reversed(self.weight.shape)) if self.transposed else self.weight.shape
        rows, columns = self.weight.shape[1:][:: -1 if self.transposed else 1]
        return rows // self.part[2], columns

    @property
    def form(self) -> str:
        turned = "transposed" if self.transposed else "straight"
        return turned if self.part is None else f"{turned}, of a stack"


def _candidates(weight: Initializer) -> Iterator[_Candidate]:
    """Where a tensor may stand in a weight: whole, transposed, and as an expert's matrix or half of one."""
    yield _Candidate(weight, False)
    if len(weight.shape) == 2 and min(weight.shape) > 1:
        yield _Candidate(weight, True)
    if len(weight.shape) != 3 or min(weight.shape[1:]) < 2:
        return
    for expert in range(weight.shape[0]):
        for transposed, rows in ((False, weight.shape[1]), (True, weight.shape[2])):
            yield _Candidate(weight, transposed, (expert, 0, 1))
            if rows % 2 == 0:
                yield from (_Candidate(weight, transposed, (expert, half, 2)) for half in (0, 1))


def _positions(elements: int) -> Any:
    """Where elements are sampled: spread over the tensor, the first and the last among them."""
    count = min(_PROBES, elements)
    return np.unique(np.linspace(0, elements - 1, count).astype(np.int64)) if count else np.zeros(0, np.int64)


@dataclass
class _Search:
    """The graph's weights by dtype, size and samples; ``held`` are the weights that some tensor explains."""

    reader: ByteReader
    places: dict[tuple[str, int, bytes], list[_Candidate]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    held: dict[str, str] = field(default_factory=dict)

    def add(self, weight: Initializer) -> None:
        for candidate in _candidates(weight):
            elements = prod(candidate.shape)
            self.sizes[elements].add(weight.dtype)
            self.places[weight.dtype, elements, candidate.probe()].append(candidate)

    def find(self, record: TensorRecord, precision: str, folds: tuple[Fold, ...]) -> Iterator[tuple[_Candidate, Fold]]:
        """Every place that holds the tensor, each proved over all elements."""
        samples = self._sample(record)
        for dtype in sorted(self.sizes.get(record.elements, ())):
            for fold in folds:
                probe = _bits(fold.apply(_cast(samples, precision, dtype, fold)), dtype).tobytes()
                for candidate in self.places.get((dtype, record.elements, probe), ()):
                    if _fits(candidate, record) and self._equal(record, candidate, precision, fold):
                        yield candidate, fold

    def whole(self, record: TensorRecord, precision: str, folds: tuple[Fold, ...]) -> Tensor:
        """The tensor as a weight of some type would hold it, plain and folded, read as far as it is looked at."""
        columns = record.shape[1] if len(record.shape) == 2 else 1
        width = columns * (record.nbytes // max(record.elements, 1))

        def rows(dtype: str, fold: Fold, first: int, end: int) -> Any:
            raw = bytearray((end - first) * width)
            self.reader.read_into(record.range, first * width, memoryview(raw))
            return _bits(fold.apply(_cast(_tensor(raw, record), precision, dtype, fold)), dtype).reshape(-1, columns)

        def forms(dtype: str) -> Iterator[tuple[str, Rows]]:
            return ((fold.name, partial(rows, dtype, fold)) for fold in folds)

        return Tensor(record.shape, forms)

    def _sample(self, record: TensorRecord) -> torch.Tensor:
        width = record.nbytes // max(record.elements, 1)
        raw = bytearray(width * len(_positions(record.elements)))
        for candidate, position in enumerate(_positions(record.elements)):
            self.reader.read_into(record.range, int(position) * width, memoryview(raw)[candidate * width :][:width])
        return _tensor(raw, record)

    def _equal(self, record: TensorRecord, candidate: _Candidate, precision: str, fold: Fold) -> bool:
        inner = record.shape[1] if candidate.transposed else 1
        rows = record.elements // max(inner, 1)
        step = max(BLOCK // max(inner, 1), 1)
        width = record.nbytes // max(record.elements, 1)
        for first in range(0, rows, step):
            end = min(first + step, rows)
            raw = bytearray((end - first) * inner * width)
            self.reader.read_into(record.range, first * inner * width, memoryview(raw))
            dtype = candidate.weight.dtype
            ours = _bits(fold.apply(_cast(_tensor(raw, record), precision, dtype, fold)), dtype)
            if not np.array_equal(ours, candidate.rows(first, end)):
                return False
        return True


def _fits(candidate: _Candidate, record: TensorRecord) -> bool:
    """A transposed place needs a matrix of the opposite shape; a straight one may be squeezed or flattened."""
    return (not candidate.transposed and candidate.part is None) or candidate.shape == record.shape


def _tensor(raw: bytearray, record: TensorRecord) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=_STORED[record.dtype]) if raw else torch.empty(0, dtype=_STORED[record.dtype])


def _cast(tensor: torch.Tensor, precision: str, dtype: str, fold: Fold) -> torch.Tensor:
    """As a model in ``precision`` holds it; kept wider only where the graph stores the plain weight so."""
    target = precision if fold.name else DTYPES[dtype]
    return tensor.to(getattr(torch, target))


def _bits(tensor: torch.Tensor, dtype: str) -> Any:
    """The bit patterns in the graph's own dtype."""
    made = tensor.to(getattr(torch, DTYPES[dtype]))
    return made.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[made.element_size()]).numpy()


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
    """Every tensor of the checkpoint looked for in the graph, and every matrix of the graph in the checkpoint.

    Found means bit for bit over all elements, after torch's cast (to nearest, ties to even) to the dtype that the
    graph stores. ``unused`` tensors, which the model's class does not read, are left out. ``computed`` are
    matrices of the model that no file holds, such as sinusoidal positions: they explain one of the graph as well.
    ``offsets`` are the rows, by parameter, that precede position 0 in a table: a graph may leave them out.
    """
    reader, records = readable(reader, [record for record in checkpoint.tensors.values() if record.name not in unused])
    search = _Search(reader)
    for weight in graph.weights:
        if weight.dtype in DTYPES and weight.nbytes:
            search.add(weight)
    lost, forms, copies = [], Counter[str](), 0
    floats = [record for record in records if record.dtype in _STORED]
    for record in floats:
        matches = list(search.find(record, precision, folds))
        for candidate, _ in matches:
            if candidate.part is None:  # a part explains itself, not the stack
                search.held.setdefault(candidate.weight.name, record.name)
        if matches:
            candidate, fold = matches[0]
            forms[", ".join(filter(None, (candidate.form, fold.name)))] += 1
        else:
            lost.append(_lost(record, "no initializer holds these bytes"))
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
    return Weight(weight.dtype, weight.array().view(_BITS[DTYPES[weight.dtype]]))


def _is_matrix(shape: tuple[int, ...]) -> bool:
    return sum(side > 1 for side in shape) > 1


def _lost(record: TensorRecord, reason: str) -> Lost:
    required = _is_matrix(record.shape) or record.elements >= REQUIRED
    return Lost(record.name, record.shape, record.dtype, record.nbytes, required, reason)


def _before(entry: Lost, offsets: Mapping[str, int]) -> int:
    """The rows before position 0, where the tensor is such a table, with the prefix of the class or without."""
    rows = next((rows for name, rows in offsets.items() if f".{name}".endswith(f".{entry.name}")), 0)
    return rows if len(entry.shape) == 2 and entry.shape[0] > rows else 0


def _shorter(weight: Initializer, matrices: Mapping[str, tuple[int, ...]]) -> set[str]:
    """The matrices that the weight would hold beside padding: one of its sides is longer, by a quarter at most."""
    return {name for name, shape in matrices.items() if _is_longer(_sides(weight.shape), _sides(shape))}


def _is_longer(sides: tuple[int, ...], own: tuple[int, ...]) -> bool:
    return len(sides) == len(own) == 2 and any(
        short_side == long_side and less < more <= less * 5 // 4
        for (short_side, less) in (own, own[::-1])
        for (long_side, more) in (sides, sides[::-1])
    )


def _like(weight: Initializer, matrices: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether the weight has the sides of a matrix of the checkpoint, in either order, or its elements in a row."""
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
    """Float weights of the graph that hold no tensor: matrices, and what may be one; in the shape of one they must."""
    for weight in graph.weights:
        if weight.dtype not in DTYPES or weight.name in held:
            continue
        like = _like(weight, matrices)
        if not (like or _is_matrix(weight.shape)) or any(_is_computed(weight, tensor) for tensor in computed):
            continue
        same = like or bool(_shorter(weight, matrices))
        reason = "has the shape of a checkpoint tensor and the bytes of none" if same else "is no checkpoint tensor"
        yield Lost(weight.name, weight.shape, weight.dtype, weight.nbytes, same, reason)


def _is_computed(weight: Initializer, tensor: torch.Tensor) -> bool:
    """Whether the weight is this tensor of the model, bit for bit, as it is or transposed."""
    if tensor.numel() != prod(weight.shape) or not tensor.is_floating_point():
        return False
    forms = [tensor] if tensor.ndim != 2 else [tensor, tensor.T]
    stored = weight.array().view(_BITS[DTYPES[weight.dtype]]).reshape(-1)
    return any(np.array_equal(_bits(form.contiguous(), weight.dtype).reshape(-1), stored) for form in forms)
