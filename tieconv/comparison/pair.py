"""Read two models through one reader, and compare a tensor of the first with one of the second."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import frexp

from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.head import BiasState
from tieconv.checkpoint.inspection import State
from tieconv.checkpoint.relation.proved import Identical, OtherBytes, Scaled
from tieconv.checkpoint.results.comparison import Contrast, ForwardScale, OnlyHere, Shapes, Values
from tieconv.comparison.parameters import Source
from tieconv.inspection.equality.compare_bytes import equal
from tieconv.inspection.equality.relation import relate
from tieconv.inspection.tensor_values import bias_summary
from tieconv.inspection.view_reader import readable
from tieconv.sources.digest import same_hash

_CONTRASTS = {
    State.TRANSPOSED: Contrast.TRANSPOSED,
    State.CAST: Contrast.CAST,
    State.SCALED: Contrast.SCALED,
    State.NEAR: Contrast.NEAR,
    State.DISTINCT: Contrast.DISTINCT,
}


@dataclass
class Pair:
    """Reads ranges of both models. The file names of each start with its letter, A or B."""

    a: ByteReader
    b: ByteReader
    bytes_read: int = 0

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``span``. Raises the errors of the model's reader."""
        side, name = span.file[0], span.file[2:]
        reader = self.a if side == "A" else self.b
        reader.read_into(ByteRange(name, span.start, span.end), offset, buffer)
        self.bytes_read += len(buffer)

    def next_data(self, span: ByteRange, offset: int) -> int:
        """As of the local files of the model that ``span`` is of; ``offset`` for a model elsewhere."""
        ask = getattr(self.a if span.file[0] == "A" else self.b, "next_data", None)
        return offset if ask is None else int(ask(ByteRange(span.file[2:], span.start, span.end), offset))

    def announce(self, spans: Iterable[ByteRange]) -> None:
        """Pass on to either reader what is read next of its model."""
        every = list(spans)
        for reader, side in ((self.a, "A"), (self.b, "B")):
            pieces = [ByteRange(span.file[2:], span.start, span.end) for span in every if span.file[0] == side]
            tell = getattr(reader, "announce", None)
            if tell is not None and pieces:
                tell(pieces)


Outcome = tuple[Contrast, OnlyHere | Shapes | ForwardScale | Values] | None
"""The difference of two tensors; ``None`` for equal tensors."""


_REMEMBERED = 64 * 1024
"""Size in bytes from which a relation is cached. Smaller tensors are cheaper to read again."""


MAX_SMALL_MEASURED = 10_000
"""Most tensors below `_REMEMBERED` bytes whose difference is measured. Each takes a third of a millisecond."""
_UNMEASURED = (
    Contrast.DISTINCT,
    Values(
        OtherBytes(f"its bytes differ; beyond {MAX_SMALL_MEASURED:,} small tensors that differ nothing is measured")
    ),
)


class Relations:
    """Relations between tensors of two models; those of tensors of `_REMEMBERED` bytes or more are cached."""

    def __init__(self, a: Checkpoint, b: Checkpoint, reader: Pair) -> None:
        self.sides = (a, b)
        self.reader = reader
        self.known: dict[object, Outcome] = {}
        self.hashes: dict[str, bool] = {}
        self.small_measured = 0

    def between(self, first: Source, second: Source) -> Outcome:
        """Return how ``second`` of B differs from ``first`` of A. Equality is claimed only after reading every byte."""
        if max(first.record.range.size, second.record.range.size) < _REMEMBERED:
            return self._relate(first, second)
        key = (_position(first.record), _position(second.record), first.scale / second.scale)
        if key not in self.known:
            self.known[key] = self._relate(first, second)
        return self.known[key]

    def is_zero(self, record: TensorRecord, *, in_a: bool) -> bool:
        """Return whether every value of a tensor is zero; the tensor is in model A or else in B."""
        state, _ = bias_summary(self.reader, of_side(record, "A" if in_a else "B"))
        return state is BiasState.ZERO

    def _relate(self, first: Source, second: Source) -> Outcome:
        alike = (first.record.dtype, first.record.shape) == (second.record.dtype, second.record.shape)
        same = alike and self._same_file(first.record, second.record)
        if same and first.scale == second.scale:
            return None
        a, b = of_side(first.record, "A"), of_side(second.record, "B")
        if alike and not same:
            reader, (left, right) = readable(self.reader, (a, b))
            same = equal(reader, left.range, right.range)
        if first.scale != second.scale:
            return self._scaled(a, b, first.scale / second.scale, same)
        if same:
            return None
        return self._unmeasured(a, b) or self._contrast(a, b)

    def _unmeasured(self, a: TensorRecord, b: TensorRecord) -> Outcome:
        """Return only that the bytes differ, once enough small tensors were measured; else ``None``."""
        if max(a.range.size, b.range.size) >= _REMEMBERED or (a.dtype, a.shape) != (b.dtype, b.shape):
            return None
        self.small_measured += 1
        return _UNMEASURED if self.small_measured > MAX_SMALL_MEASURED else None

    def _same_file(self, first: TensorRecord, second: TensorRecord) -> bool:
        """Return whether both are one range of one file (hard links), or of two files with one hash."""
        spans = ((tensor.range.start, tensor.range.end, tensor.stride) for tensor in (first, second))
        if len(set(spans)) > 1:
            return False
        states = [side.states.get(record.range.file) for side, record in zip(self.sides, (first, second), strict=True)]
        if states[0] is not None and states[0] == states[1]:
            return True
        return first.range.file == second.range.file and self._same_hash(first.range.file)

    def _same_hash(self, name: str) -> bool:
        """Return whether a file on the Hub has the hash of the local file, without a download."""
        if bool(self.sides[0].revision) is bool(self.sides[1].revision) or not any(
            hasattr(reader, "known_hash") for reader in (self.reader.a, self.reader.b)
        ):
            return False
        if name not in self.hashes:
            sizes = [side.states[name].size if name in side.states else -1 for side in self.sides]
            self.hashes[name] = sizes[0] == sizes[1] >= 0 and same_hash(self.reader.a, self.reader.b, name)
        return self.hashes[name]

    def _scaled(self, a: TensorRecord, b: TensorRecord, factor: float, same: bool) -> Outcome:
        """Return no difference if B's values are exactly A's times ``factor``, which A's forward pass applies."""
        if same:
            return Contrast.SCALED, ForwardScale(factor)
        relation = relate(self.reader, a, b)
        exact = isinstance(relation, Scaled) and relation.exact and relation.factor == factor
        if exact and frexp(factor)[0] == 0.5:
            return None
        return _CONTRASTS[relation.state], Values(relation, factor)

    def _contrast(self, a: TensorRecord, b: TensorRecord) -> Outcome:
        relation = relate(self.reader, a, b)
        if isinstance(relation, Identical):
            return None
        if relation.shape_differs or relation.is_empty:
            return Contrast.SHAPE, Shapes(a.shape, b.shape)
        return _CONTRASTS[relation.state], Values(relation)


def _position(record: TensorRecord) -> object:
    return record.range, record.stride, record.dtype, record.shape


def of_side(record: TensorRecord, side: str) -> TensorRecord:
    """Return the record of a tensor of model A or B, for a `Pair`."""
    span = record.range
    moved = ByteRange(f"{side}/{span.file}", span.start, span.end)
    return TensorRecord(side, record.dtype, record.shape, moved, record.stride, record.storage)
