"""Collect a planner's edits of names and bytes. `tieconv.plans.edited_files` turns them into files."""

from __future__ import annotations

from dataclasses import dataclass, field

from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, nbytes
from tieconv.checkpoint.write_plan import (
    AllZero,
    Averaged,
    AverageTensor,
    CopyTensor,
    DropTensor,
    Equal,
    FillTensor,
    InlineBytes,
    Operation,
    OutputStorage,
    OutputTensor,
    Padded,
    Proof,
    RenameTensor,
    ResizeTensor,
    Scaled,
    ScaleTensor,
    SetTensor,
    ShareTensor,
    TrimStorage,
    Zeros,
)


@dataclass
class Edits:
    """The tensor edits of a planner. All other tensors stay as they are."""

    checkpoint: Checkpoint
    drops: dict[str, DropTensor] = field(default_factory=dict)
    renames: dict[str, RenameTensor] = field(default_factory=dict)
    additions: dict[str, tuple[OutputTensor, str]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    trims: dict[tuple[str, str], OutputStorage] = field(default_factory=dict)
    proofs: list[Proof] = field(default_factory=list)
    kept_copies: set[str] = field(default_factory=set)

    def drop(self, name: str, because: str) -> None:
        """Leave a stored tensor out."""
        self._record(DropTensor(name, because))
        self.drops[name] = DropTensor(name, because)

    def drop_equal(self, name: str, source: str, because: str, exponent: int = 0) -> None:
        """Leave out a stored tensor that is proved to be ``source`` times 2**``exponent``."""
        self.drop(name, because)
        self._prove_equal(name, source, exponent)

    def drop_zero(self, name: str, because: str) -> None:
        """Leave out a stored tensor that is proved to be all zero."""
        self.drop(name, because)
        self.proofs.append(AllZero(self.checkpoint.tensors[name]))

    def _prove_equal(self, name: str, source: str, exponent: int = 0) -> None:
        dropped, record = self.checkpoint.tensors[name], self.checkpoint.tensors[source]
        if (dropped.range, dropped.stride) != (record.range, record.stride) or exponent:
            self.proofs.append(Equal(dropped, record, exponent))

    def rename(self, name: str, to: str) -> None:
        """Store a tensor under another name."""
        self._record(RenameTensor(name, to))
        self.renames[name] = RenameTensor(name, to)

    def copy(self, name: str, source: TensorRecord) -> None:
        """Store the bytes of ``source`` under ``name`` too."""
        self._record(CopyTensor(name, source.name))
        self._add(OutputTensor(name, source.dtype, source.shape, source.range, source.stride), source.name)

    def scale(self, name: str, source: TensorRecord, exponent: int) -> None:
        """Store ``source`` × 2**``exponent`` under ``name``."""
        self._record(ScaleTensor(name, source.name, exponent))
        content = Scaled(source.range, source.dtype, exponent)
        self._add(OutputTensor(name, source.dtype, source.shape, content, source.stride), source.name)

    def fill(self, name: str, dtype: str, shape: tuple[int, ...], beside: str) -> None:
        """Store an all-zero tensor."""
        size = nbytes(dtype, shape)
        assert size is not None, dtype  # callers pass the dtype of a float matrix
        self._record(FillTensor(name, dtype, shape, beside))
        self._add(OutputTensor(name, dtype, shape, Zeros(size)), beside)

    def replace_content(self, name: str, source: TensorRecord) -> None:
        """Replace the bytes, dtype and shape of ``name`` by those of ``source``."""
        home = self.checkpoint.tensors[name]
        self._record(CopyTensor(name, source.name))
        copy = OutputTensor(name, source.dtype, source.shape, source.range, source.stride)
        self.additions[name] = (copy, home.name)

    def average(self, name: str, first: TensorRecord, second: TensorRecord) -> None:
        """Store under ``name`` the mean of two dense tensors with the same dtype and shape."""
        self._record(AverageTensor(name, first.name, second.name))
        content = Averaged(first.range, second.range, first.dtype, (first.name, second.name))
        self._add(OutputTensor(name, first.dtype, first.shape, content), first.name)

    def give(self, record: TensorRecord, data: bytes, because: str) -> None:
        """Replace the values of a tensor by ``data``, dense and in the same dtype."""
        self._record(SetTensor(record.name, because))
        self._add(OutputTensor(record.name, record.dtype, record.shape, InlineBytes(data)), record.name)

    def resize(
        self, record: TensorRecord, shape: tuple[int, ...], row: bytes | None = None, *, zero_end: bool = True
    ) -> None:
        """Give a dense tensor the shape ``shape``: append zeros or copies of ``row``, or cut off the end.

        With ``zero_end`` the bytes that are cut off are compared with zeros again before the write is published.
        """
        size = nbytes(record.dtype, shape)
        assert size is not None, record.dtype  # callers pass dtypes of whole bytes
        self._record(ResizeTensor(record.name, record.shape, shape))
        start, end = record.range.start, record.range.end
        content = ByteRange(record.range.file, start, min(end, start + size))
        more = size - content.size
        tail = InlineBytes(row * (more // len(row))) if row else Zeros(more)
        if content.end < end and zero_end:
            cut = ByteRange(record.range.file, content.end, end)
            self.proofs.append(AllZero(TensorRecord(record.name, record.dtype, (), cut)))
        self.additions[record.name] = (
            OutputTensor(record.name, record.dtype, shape, Padded(content, tail) if more else content),
            record.name,
        )

    def keep_copy(self, name: str) -> None:
        """Mark ``name`` as a kept copy in the metadata of its file, if the file has metadata."""
        self.kept_copies.add(name)

    def share(self, name: str, source: TensorRecord) -> None:
        """Make ``name`` a view of the storage of ``source``. Both are in the same file."""
        self._record(ShareTensor(name, source.name))
        self._prove_equal(name, source.name)
        view = OutputTensor(name, source.dtype, source.shape, source.range, source.stride, self.home(source))
        self.additions[name] = (view, name)

    def trim(self, record: TensorRecord, storage: OutputStorage, freed: int) -> None:
        """Write the storage of ``record`` without the ``freed`` bytes that no tensor uses."""
        assert record.storage is not None
        self._record(TrimStorage(record.name, freed))
        self.trims[record.range.file, record.storage] = storage

    def home(self, record: TensorRecord) -> OutputStorage | None:
        """Return the storage of a tensor as it will be written, or ``None`` for a tensor without shared storage."""
        if record.storage is None:
            return None
        file = self.checkpoint.file(record.range.file)
        storage = next(each for each in file.storages if each.key == record.storage)
        return self.trims.get((file.name, storage.key)) or OutputStorage(storage.range, storage.crc)

    def _add(self, tensor: OutputTensor, beside: str) -> None:
        self.additions[tensor.name] = (tensor, beside)

    def _record(self, operation: Operation) -> None:
        self.operations.append(operation)

    def after(self) -> set[str]:
        """Return the names that are stored after the edits."""
        stored = {name for name in self.checkpoint.tensors if name not in self.drops}
        renamed = {self.renames[name].to if name in self.renames else name for name in stored}
        return renamed | set(self.additions)
