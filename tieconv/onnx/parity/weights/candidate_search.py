"""Search for the bytes of a checkpoint tensor among the weights of a graph, in either orientation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.onnx.parity.graph.file import DTYPES, Initializer
from tieconv.onnx.parity.weights.folds import Fold
from tieconv.onnx.parity.weights.packed_weights import Rows, Tensor

BLOCK = 1 << 21
"""Elements compared at a time: at most about 40 MB, including casts."""
_PROBES = 48
BIT_TYPES = {"float16": np.int16, "bfloat16": np.int16, "float32": np.int32, "float64": np.int64}
STORED = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}


@dataclass
class Candidate:
    """A weight of the graph in one orientation. ``rows(first, last)`` are its elements in row-major order.

    ``part`` is an expert's matrix within a stack (experts × rows × columns). It is the expert's number, and which
    ``(half, halves)`` of the checkpoint's rows, because gate and up projections are stacked too.
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
        array = array.view(BIT_TYPES[DTYPES[self.weight.dtype]])
        if self.part is None:
            return array.T if self.transposed else array.reshape(-1)
        expert, half, halves = self.part
        matrix = array[expert].T if self.transposed else array[expert]
        length = len(matrix) // halves
        matrix = matrix[half * length : (half + 1) * length]
        return matrix if self.transposed else matrix.reshape(-1)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in the checkpoint, for a transposed weight or a part."""
        if self.part is None:
            return tuple(reversed(self.weight.shape)) if self.transposed else self.weight.shape
        rows, columns = self.weight.shape[1:][:: -1 if self.transposed else 1]
        return rows // self.part[2], columns

    @property
    def form(self) -> str:
        turned = "transposed" if self.transposed else "straight"
        return turned if self.part is None else f"{turned}, of a stack"


def _candidates(weight: Initializer) -> Iterator[Candidate]:
    """Yield the ways in which a weight may hold a tensor: whole, transposed, or in an expert's matrix."""
    yield Candidate(weight, False)
    if len(weight.shape) == 2 and min(weight.shape) > 1:
        yield Candidate(weight, True)
    if len(weight.shape) != 3 or min(weight.shape[1:]) < 2:
        return
    for expert in range(weight.shape[0]):
        for transposed, rows in ((False, weight.shape[1]), (True, weight.shape[2])):
            yield Candidate(weight, transposed, (expert, 0, 1))
            if rows % 2 == 0:
                yield from (Candidate(weight, transposed, (expert, half, 2)) for half in (0, 1))


def _positions(elements: int) -> Any:
    """Return the sampled positions: spread over the tensor, including the first and the last."""
    count = min(_PROBES, elements)
    return np.unique(np.linspace(0, elements - 1, count).astype(np.int64)) if count else np.zeros(0, np.int64)


@dataclass
class TensorSearch:
    """The graph's weights by dtype, size and samples. ``held`` are the weights that some tensor explains."""

    reader: ByteReader
    places: dict[tuple[str, int, bytes], list[Candidate]] = field(default_factory=lambda: defaultdict(list))
    sizes: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    held: dict[str, str] = field(default_factory=dict)

    def add(self, weight: Initializer) -> None:
        for candidate in _candidates(weight):
            elements = prod(candidate.shape)
            self.sizes[elements].add(weight.dtype)
            self.places[weight.dtype, elements, candidate.probe()].append(candidate)
        weight.drop_pages()  # the kernel maps far more than the samples

    def find(self, record: TensorRecord, precision: str, folds: tuple[Fold, ...]) -> Iterator[tuple[Candidate, Fold]]:
        """Yield every weight that holds the tensor, after a comparison of all elements."""
        samples = self._sample(record)
        for dtype in sorted(self.sizes.get(record.elements, ())):
            for fold in folds:
                probe = bits_of(fold.apply(_cast(samples, precision, dtype, fold)), dtype).tobytes()
                for candidate in self.places.get((dtype, record.elements, probe), ()):
                    if _fits(candidate, record) and self._equal(record, candidate, precision, fold):
                        yield candidate, fold

    def whole(self, record: TensorRecord, precision: str, folds: tuple[Fold, ...]) -> Tensor:
        """Return the tensor as a weight of some type would hold it, with every fold. It is read on demand."""
        columns = record.shape[1] if len(record.shape) == 2 else 1
        width = columns * (record.nbytes // max(record.elements, 1))

        def rows(dtype: str, fold: Fold, first: int, end: int) -> Any:
            raw = bytearray((end - first) * width)
            self.reader.read_into(record.range, first * width, memoryview(raw))
            return bits_of(fold.apply(_cast(_tensor(raw, record), precision, dtype, fold)), dtype).reshape(-1, columns)

        def forms(dtype: str) -> Iterator[tuple[str, Rows]]:
            return ((fold.name, partial(rows, dtype, fold)) for fold in folds)

        return Tensor(record.shape, forms)

    def _sample(self, record: TensorRecord) -> torch.Tensor:
        width = record.nbytes // max(record.elements, 1)
        raw = bytearray(width * len(_positions(record.elements)))
        for candidate, position in enumerate(_positions(record.elements)):
            self.reader.read_into(record.range, int(position) * width, memoryview(raw)[candidate * width :][:width])
        return _tensor(raw, record)

    def _equal(self, record: TensorRecord, candidate: Candidate, precision: str, fold: Fold) -> bool:
        inner = record.shape[1] if candidate.transposed else 1
        rows = record.elements // max(inner, 1)
        step = max(BLOCK // max(inner, 1), 1)
        width = record.nbytes // max(record.elements, 1)
        for first in range(0, rows, step):
            end = min(first + step, rows)
            raw = bytearray((end - first) * inner * width)
            self.reader.read_into(record.range, first * inner * width, memoryview(raw))
            dtype = candidate.weight.dtype
            ours = bits_of(fold.apply(_cast(_tensor(raw, record), precision, dtype, fold)), dtype)
            same = np.array_equal(ours, candidate.rows(first, end))
            if not candidate.transposed or end == rows or not same:  # rows of a transposed weight share their pages
                candidate.weight.drop_pages()
            if not same:
                return False
        return True


def _fits(candidate: Candidate, record: TensorRecord) -> bool:
    """Return whether the shapes fit.

    A transposed weight needs the opposite shape; a straight one may be squeezed or flattened.
    """
    return (not candidate.transposed and candidate.part is None) or candidate.shape == record.shape


def _tensor(raw: bytearray, record: TensorRecord) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=STORED[record.dtype]) if raw else torch.empty(0, dtype=STORED[record.dtype])


def _cast(tensor: torch.Tensor, precision: str, dtype: str, fold: Fold) -> torch.Tensor:
    """Return the tensor as a model in ``precision`` holds it.

    It stays wider only if the graph stores the weight wider and without a fold.
    """
    target = precision if fold.name else DTYPES[dtype]
    return tensor.to(getattr(torch, target))


def bits_of(tensor: torch.Tensor, dtype: str) -> Any:
    """Return the bit patterns in the graph's dtype."""
    made = tensor.to(getattr(torch, DTYPES[dtype]))
    return made.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[made.element_size()]).numpy()
