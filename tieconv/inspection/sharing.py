"""Find how two tensors of one storage relate by their positions alone, without reading bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.relation.interface import Aliased
from tieconv.checkpoint.relation.proved import Transposed
from tieconv.checkpoint.value_type import record
from tieconv.sources.strided import StridedRange, row_major


@record
class _View:
    """The positions of a tensor's elements, without sides of length 1, whose strides have no effect."""

    file: str
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def turned(self) -> _View:
        return _View(self.file, self.start, self.shape[::-1], self.stride[::-1])


def sharing(canonical: TensorRecord, second: TensorRecord) -> Aliased | Transposed | None:
    """Return `aliased` or `transposed` if both names are the same elements of the same bytes, else ``None``.

    Two names without an element share nothing.
    """
    if canonical.dtype != second.dtype or canonical.storage is None or not (canonical.elements and second.elements):
        return None
    left, right = _view(canonical), _view(second)
    if canonical.shape == second.shape and left == right:
        return Aliased()
    if len(canonical.shape) == 2 and canonical.shape == second.shape[::-1] and left == right.turned:
        return Transposed(view=True)
    return None


def shared_names(tensors: Mapping[str, TensorRecord]) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that are one tensor of the file: the same elements of one storage."""
    storages: dict[object, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        if tensor.storage is not None:
            storages[tensor.storage, tensor.range.file].append(name)
    groups: dict[object, list[str]] = defaultdict(list)
    for names in storages.values():
        if len(names) > 1:  # of half a million tensors, few share a storage
            for name in names:
                if (tensor := tensors[name]).elements:
                    groups[tensor.dtype, tensor.range, tensor.shape, tensor.stride].append(name)
    return tuple(tuple(names) for names in groups.values() if len(names) > 1)


def _view(record: TensorRecord) -> _View:
    span = record.range
    start = span.base if isinstance(span, StridedRange) else span.start
    sides = list(zip(record.shape, record.stride or row_major(record.shape), strict=True))
    axes = [(side, step) for side, step in sides if side != 1]
    return _View(span.file, start, tuple(side for side, _ in axes), tuple(step for _, step in axes))
