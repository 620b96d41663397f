"""Search each checkpoint tensor in the graph by its bytes, whatever its name there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.results.parity import Identity, Lost
from tieconv.checkpoint.value_type import identity_record, record
from tieconv.checkpoint.weight_file import TensorRecord
from tieconv.inspection.view_reader import readable
from tieconv.onnx.parity.graph_file import DTYPES, Graph, Initializer

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
    floats = [tensor for tensor in records if tensor.dtype in STORED]
    for tensor in floats:
        matches = list(search.find(tensor, precision, folds))
        for candidate, _ in matches:
            if candidate.part is None:  # a part explains only itself, not the whole stack
                search.held.setdefault(candidate.weight.name, tensor.name)
        if matches:
            candidate, fold = matches[0]
            forms[", ".join(filter(None, (candidate.form, fold.name)))] += 1
        else:
            lost.append(_lost(tensor, "no initializer has these bytes"))
        if tensor.name == embedding:
            copies = len({candidate.weight.name for candidate, _ in matches})
    matrices = {tensor.name: tensor.shape for tensor in floats if _is_matrix(tensor.shape)}
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
    sides = _sides(weight.shape)

    def fits(own: tuple[int, ...]) -> bool:
        pairs = product((own, own[::-1]), (sides, sides[::-1]))
        return any(left == right and less < more <= less * 5 // 4 for (left, less), (right, more) in pairs)

    shapes = {name: _sides(shape) for name, shape in matrices.items()}
    return {name for name, own in shapes.items() if len(sides) == len(own) == 2 and fits(own)}


def _like(weight: Initializer, matrices: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the weight has the shape of a checkpoint matrix, in either order, or is its flat form."""
    sides = _sides(weight.shape)
    if len(sides) == 1:
        return sides[0] >= REQUIRED and any(prod(shape) == sides[0] for shape in matrices.values())
    return any(sides in (_sides(shape), _sides(shape)[::-1]) for shape in matrices.values())


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(side for side in shape if side > 1)


def _unexplained(
    graph: Graph, held: dict[str, str], matrices: Mapping[str, tuple[int, ...]], computed: Collection[torch.Tensor]
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


# Search for the bytes of a checkpoint tensor among the weights of a graph, in either orientation.

BLOCK = 1 << 21
"""Elements compared at a time: at most about 40 MB, including casts."""
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
        flat = np.unravel_index(positions(array.size), array.shape) if array.ndim else ()
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
        places = map(int, positions(record.elements))
        samples = torch.cat([torch.empty(0, dtype=STORED[record.dtype]), *(self._read(record, at, 1) for at in places)])
        for dtype in sorted(self.sizes.get(record.elements, ())):
            for fold in folds:
                probe = bits_of(_cast(samples, precision, dtype, fold), dtype).tobytes()
                for candidate in self.places.get((dtype, record.elements, probe), ()):
                    # A transposed weight needs the opposite shape; a straight one may be squeezed or flattened.
                    whole = not candidate.transposed and candidate.part is None
                    if (whole or candidate.shape == record.shape) and self._equal(record, candidate, precision, fold):
                        yield candidate, fold

    def whole(self, record: TensorRecord, precision: str, folds: tuple[Fold, ...]) -> Tensor:
        """Return the tensor as a weight of some type would hold it, with every fold. It is read on demand."""
        columns = record.shape[1] if len(record.shape) == 2 else 1

        def rows(dtype: str, fold: Fold, first: int, end: int) -> Any:
            values = self._read(record, first * columns, (end - first) * columns)
            return bits_of(_cast(values, precision, dtype, fold), dtype).reshape(-1, columns)

        return Tensor(record.shape, lambda dtype: ((fold.name, partial(rows, dtype, fold)) for fold in folds))

    def _read(self, record: TensorRecord, first: int, count: int) -> torch.Tensor:
        """Return ``count`` elements of the tensor from the element ``first`` on."""
        width = record.nbytes // max(record.elements, 1)
        raw = bytearray(count * width)
        self.reader.read_into(record.range, first * width, memoryview(raw))
        return torch.frombuffer(raw, dtype=STORED[record.dtype]) if raw else torch.empty(0, dtype=STORED[record.dtype])

    def _equal(self, record: TensorRecord, candidate: Candidate, precision: str, fold: Fold) -> bool:
        inner = record.shape[1] if candidate.transposed else 1
        rows = record.elements // max(inner, 1)
        step = max(BLOCK // max(inner, 1), 1)
        dtype = candidate.weight.dtype
        for first in range(0, rows, step):
            end = min(first + step, rows)
            values = self._read(record, first * inner, (end - first) * inner)
            ours = bits_of(_cast(values, precision, dtype, fold), dtype)
            same = np.array_equal(ours, candidate.rows(first, end))
            if not candidate.transposed or end == rows or not same:  # rows of a transposed weight share their pages
                candidate.weight.drop_pages()
            if not same:
                return False
        return True


def _cast(tensor: torch.Tensor, precision: str, dtype: str, fold: Fold) -> Any:
    """Return the tensor as a model in ``precision`` holds it, folded.

    It stays wider only if the graph stores the weight wider and without a fold.
    """
    return fold.apply(tensor.to(getattr(torch, precision if fold.name else DTYPES[dtype])))


def bits_of(tensor: torch.Tensor, dtype: str) -> Any:
    """Return the bit patterns in the graph's dtype."""
    made = tensor.to(getattr(torch, DTYPES[dtype]))
    return made.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[made.element_size()]).numpy()


# Compute what exporters fold into a weight, in exact arithmetic that can be compared bit for bit.


@record
class Fold:
    """A weight as the graph may hold it. ``apply`` maps the weight in the graph's precision to what is stored."""

    name: str
    apply: Callable[[Any], Any]


def folds(config: Any) -> Iterator[Fold]:
    """Yield the folds that the config of the model implies, the unchanged weight first.

    ``rounded`` is a weight of a 16-bit graph that was rounded and then stored wider. ``one plus`` is Gemma's norm,
    computed in float32. The scales are those of embeddings and attention scores.
    """
    yield Fold("", lambda weight: weight)
    yield Fold("rounded", lambda weight: weight)
    yield Fold("one plus", lambda weight: weight.float() + 1.0)
    for factor in sorted(set(factors(config))):
        yield Fold(f"times {factor:.6g}", partial(_times, factor=factor))


def _times(weight: Any, factor: float) -> Any:
    """Return the product as a model computes it, with the factor rounded to the weight's precision."""
    return weight * weight.new_tensor(factor)


def head_width(config: Any) -> int:
    """Return the elements of one attention head, or 0 if the config does not say."""
    hidden = _number(config, "hidden_size") or _number(config, "d_model")
    heads = _number(config, "num_attention_heads")
    return int(_number(config, "head_dim") or (hidden // heads if heads else 0))


def factors(config: Any) -> Iterator[float]:
    """Yield the scales of embeddings and attention scores that the config implies."""
    hidden = _number(config, "hidden_size") or _number(config, "d_model")
    if hidden:
        yield from (hidden**0.5, hidden**-0.5)
        width = head_width(config)
        if width:
            yield from (width**-0.5, width**-0.25)
    scalar = _number(config, "query_pre_attn_scalar")
    if scalar:
        yield scalar**-0.5


def _number(config: Any, name: str) -> float:
    value = getattr(config, name, None)
    return float(value) if isinstance(value, int | float) and value > 0 else 0.0


# Find tensors that a graph holds inside a larger matrix or split into smaller ones.
#
# Some exporters split GPT-2's `c_attn` into three matrices. Others pack query, key and value projections into one.
# Hashes of sampled elements of each row and column narrow the search. So a wrong checkpoint is refuted after a few
# reads per tensor.

_TRIES = 64
"""Failed full comparisons after which one weight is skipped."""

Rows = Callable[[int, int], Any]
"""The bit patterns of a tensor's rows from one number up to another, rows × columns."""


@record
class Tensor:
    """A tensor of the checkpoint; a vector is a column.

    ``forms`` gives its rows as a weight of the given type would hold them, by the name of each fold.
    """

    shape: tuple[int, ...]
    forms: Callable[[str], Iterable[tuple[str, Rows]]]

    def after(self, count: int) -> Tensor:
        """Return the tensor without its first ``count`` rows."""

        def later(rows: Rows, first: int, end: int) -> Any:
            return rows(count + first, count + end)

        shape = (self.shape[0] - count, *self.shape[1:])
        return Tensor(shape, lambda dtype: ((fold, partial(later, rows)) for fold, rows in self.forms(dtype)))

    @property
    def sides(self) -> tuple[int, int]:
        return self.shape[0], self.shape[1] if len(self.shape) > 1 else 1

    @property
    def axes(self) -> range:
        """The axes along which other tensors may be packed with it."""
        return range(len(self.shape))


@record
class Weight:
    """A weight of the graph: its type and its bit patterns, in the weight's shape."""

    dtype: str
    bits: Any


@record
class Blocks:
    """How tensors are stored in weights.

    ``forms`` says how each tensor is stored. ``held`` are the weights that tensors fill, or that fill a tensor.
    ``within`` are the tensors in a weight that also holds others or padding.
    """

    forms: Mapping[str, str]
    held: frozenset[str]
    within: Mapping[str, set[str]]


def find_blocks(tensors: Mapping[str, Tensor], weights: Mapping[str, Weight]) -> Blocks:
    """Search the tensors inside weights, and weights inside the tensors, side by side along either axis.

    Every element of a match was compared. Vectors are searched in vectors, matrices in matrices, and nothing else is
    searched.
    """
    forms: dict[str, str] = {}
    held: set[str] = set()
    within: dict[str, set[str]] = defaultdict(set)
    filled: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    looked = {name: tensor for name, tensor in tensors.items() if len(tensor.shape) in (1, 2) and 0 not in tensor.shape}
    lines = _lines(weights) if looked else {}
    for name, tensor in looked.items():
        for packed, view, at, length in _packed(tensor, lines):
            forms.setdefault(name, packed)
            within[view.name].add(name)
            filled[view.name, view.axis].append((at, at + length))
        if name not in forms:
            form, parts = _split(tensor, lines)
            forms |= {name: form} if parts else {}
            held |= parts
    for (weight, axis), stretches in filled.items():
        end = 0
        for first, stop in sorted(stretches):
            end = max(end, stop) if first <= end else end  # a gap ends it
        if end >= weights[weight].bits.shape[axis]:
            held.add(weight)
    return Blocks(forms, frozenset(held), within)


def _lines(weights: Mapping[str, Weight]) -> dict[str, Lines]:
    """Return the weights' rows and columns by type."""
    lines: dict[str, Lines] = {}
    for name, weight in weights.items():
        if weight.bits.ndim in (1, 2):
            lines.setdefault(weight.dtype, Lines()).add(name, weight.bits)
    return lines


def _packed(tensor: Tensor, lines: Mapping[str, Lines]) -> Iterator[tuple[str, View, int, int]]:
    """Yield the weights that hold the tensor among others: form, weight, first line and number of lines."""
    for dtype, held in sorted(lines.items()):
        for fold, rows in tensor.forms(dtype):
            grid = _grid(tensor, rows)
            for axis in tensor.axes:
                length, width = tensor.sides[axis], tensor.sides[1 - axis]
                places = held.places(len(tensor.shape), width, hashed(grid.T if axis else grid), length)
                for view, at in _proved(places, rows, tensor, axis):
                    yield _named("packed", fold), view, at, length


def _proved(places: Iterable[tuple[View, int]], rows: Rows, tensor: Tensor, axis: int) -> Iterator[tuple[View, int]]:
    """Yield the matches that a full comparison confirms, without overlaps."""
    ends: dict[View, int] = defaultdict(int)
    tries: dict[View, int] = defaultdict(int)
    length = tensor.sides[axis]
    for view, at in places:
        if at < ends[view] or tries[view] >= _TRIES:
            continue
        part = view.lines[at : at + length]
        if _equal(rows, part.T if axis else part):
            ends[view] = at + length
            yield view, at
        else:
            tries[view] += 1


def _split(tensor: Tensor, lines: Mapping[str, Lines]) -> tuple[str, set[str]]:
    """Return how the tensor is split, and the weights that together hold all of it.

    Both are empty if the tensor is not split.
    """
    for dtype, held in sorted(lines.items()):
        for fold, rows in tensor.forms(dtype):
            for axis in tensor.axes:
                parts = _parts(tensor, rows, axis, held)
                if parts:
                    return _named("split", fold), parts
    return "", set()


def _parts(tensor: Tensor, rows: Rows, axis: int, held: Lines) -> set[str]:
    """Return the weights that form the tensor along the axis; empty if one part is missing."""
    length, width = tensor.sides[axis], tensor.sides[1 - axis]
    names: set[str] = set()
    at = 0
    while at < length:

        def stretch(first: int, end: int, at: int = at, count: int = 0) -> Any:
            return rows(at + first, at + end) if axis == 0 else rows(first, end)[:, at : at + count]

        likely = held.beginning(len(tensor.shape), width, _line(tensor, rows, axis, at), length - at)[:_TRIES]
        equal = [
            view
            for view in likely
            if _equal(partial(stretch, count=len(view.lines)), view.lines.T if axis else view.lines)
        ]
        if not equal:
            return set()
        names.update(view.name for view in equal)
        at += max(len(view.lines) for view in equal)
    return names


def _grid(tensor: Tensor, rows: Rows) -> Any:
    """Return sampled columns of sampled rows."""
    height, width = tensor.sides
    columns = positions(width)
    return np.concatenate([rows(row, row + 1)[:, columns] for row in map(int, positions(height))])


def _line(tensor: Tensor, rows: Rows, axis: int, at: int) -> int:
    """Return the hash of one line along the axis."""
    height, width = tensor.sides
    if axis == 0:
        return int(hashed(rows(at, at + 1)[:, positions(width)])[0])
    return int(hashed(np.array([[rows(row, row + 1)[0, at] for row in map(int, positions(height))]]))[0])


def _named(form: str, fold: str) -> str:
    return f"{form}, {fold}" if fold else form


def _equal(rows: Rows, wanted: Any) -> bool:
    """Return whether the rows equal those of ``wanted`` bit for bit."""
    step = max(BLOCK // wanted.shape[1], 1)
    return all(
        np.array_equal(rows(at, min(at + step, len(wanted))), wanted[at : at + step])
        for at in range(0, len(wanted), step)
    )


# Find rows and columns of a graph's weights by a hash of sampled elements.

_SAMPLES = 48
_FACTORS = np.random.default_rng(0).integers(1, 1 << 63, _SAMPLES, dtype=np.uint64) | np.uint64(1)
_AT_ONCE = 1 << 14
"""Lines hashed at a time."""


@identity_record
class View:
    """A weight as lines × width: its rows, or with ``axis`` 1 its columns."""

    name: str
    axis: int
    lines: Any


def positions(side: int) -> Any:
    """Return which of ``side`` elements are sampled: at even distances, including the first and the last."""
    return np.unique(np.linspace(0, side - 1, min(_SAMPLES, side)).astype(np.int64))


def hashed(samples: Any) -> Any:
    """Return a number for each row of ``samples``. Equal rows have equal numbers."""
    return (samples.astype(np.int64).view(np.uint64) * _FACTORS[: samples.shape[1]]).sum(axis=1, dtype=np.uint64)


@dataclass
class _Shelf:
    """The lines of one width, view after view."""

    views: list[View] = field(default_factory=list)
    hashes: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    _sorted: tuple[Any, Any, Any] | None = None

    def add(self, view: View) -> None:
        columns, lines = positions(view.lines.shape[1]), view.lines
        steps = range(0, len(lines), _AT_ONCE)
        self.views.append(view)
        self.hashes.append(np.concatenate([hashed(lines[at : at + _AT_ONCE][:, columns]) for at in steps]))
        self.starts.append(self.starts[-1] + len(lines))

    def at(self, number: int) -> tuple[Any, Any]:
        """Return all hashes, and the sorted positions of ``number`` among them."""
        if self._sorted is None:
            whole = np.concatenate(self.hashes)
            order = np.argsort(whole, kind="stable")
            self._sorted = whole, order, whole[order]
        whole, order, ranked = self._sorted
        first, end = (int(np.searchsorted(ranked, np.uint64(number), side)) for side in ("left", "right"))
        return whole, order[first:end]


class Lines:
    """The lines of weights of one type."""

    def __init__(self) -> None:
        self._shelves: dict[tuple[int, int], _Shelf] = defaultdict(_Shelf)

    def add(self, name: str, bits: Any) -> None:
        """Add a vector or a matrix."""
        views = [View(name, 0, bits[:, None])] if bits.ndim == 1 else [View(name, 0, bits), View(name, 1, bits.T)]
        for view in views:
            self._shelves[bits.ndim, view.lines.shape[1]].add(view)

    def places(self, axes: int, width: int, sampled: Any, length: int) -> Iterator[tuple[View, int]]:
        """Yield candidate positions of ``length`` lines whose hashes at ``positions(length)`` are given.

        The result has views of weights with ``axes`` axes and lines of ``width``, each with its first line.
        """
        shelf = self._shelves.get((axes, width))
        if shelf is None:
            return
        whole, likely = shelf.at(int(sampled[0]))
        starts = np.array(shelf.starts)
        views = np.searchsorted(starts, likely, "right") - 1
        fits = likely + length <= starts[views + 1]
        likely, views = likely[fits], views[fits]
        for offset, number in zip(positions(length), sampled, strict=True):
            alike = whole[likely + offset] == number
            likely, views = likely[alike], views[alike]
        for at, view in zip(likely.tolist(), views.tolist(), strict=True):
            yield shelf.views[view], at - shelf.starts[view]

    def beginning(self, axes: int, width: int, number: int, longest: int) -> list[View]:
        """Return views whose first line has the hash ``number``, the longest first.

        They have at most ``longest`` lines.
        """
        shelf = self._shelves.get((axes, width))
        if shelf is None:
            return []
        _, likely = shelf.at(number)
        first = {
            start: view for start, view in zip(shelf.starts, shelf.views, strict=False) if len(view.lines) <= longest
        }
        return sorted((first[at] for at in likely.tolist() if at in first), key=lambda view: -len(view.lines))
