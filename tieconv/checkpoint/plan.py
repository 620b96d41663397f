"""A plan: what will be written, from which bytes, and what is promised about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field

from tieconv.checkpoint.dtypes import nbytes
from tieconv.checkpoint.plain import Printed, plain
from tieconv.checkpoint.record import record
from tieconv.checkpoint.records import ByteRange, Checkpoint, FileState
from tieconv.version import VERSION

PLAN_SCHEMA = "tieconv.plan/1"


@record
class KeepTensor:
    """The tensor stays, byte for byte, under its own name."""

    name: str


@record
class DropTensor:
    """The tensor is left out; ``because`` says where its values live on."""

    name: str
    because: str


@record
class CopyTensor:
    """A new tensor ``name`` with the bytes of ``source``."""

    name: str
    source: str


@record
class RenameTensor:
    """The tensor stays, byte for byte, under another name."""

    name: str
    to: str


@record
class FillTensor:
    """A new tensor whose every byte is zero."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    beside: str  # the tensor whose file it joins


@record
class ScaleTensor:
    """A new tensor ``name`` = ``source`` × 2**``exponent``, exact in its dtype."""

    name: str
    source: str
    exponent: int


@record
class AverageTensor:
    """The tensor becomes the mean of ``first`` and ``second``, each element rounded once to their dtype."""

    name: str
    first: str
    second: str


@record
class SetTensor:
    """The tensor, ``name``, gets other values of the same dtype and shape; ``because`` says which."""

    name: str
    because: str


@record
class ResizeTensor:
    """The tensor gets another length: zeros are added at its end, or zeros there are cut off."""

    name: str
    before: tuple[int, ...]
    shape: tuple[int, ...]


@record
class ShareTensor:
    """The tensor becomes a view of the storage of ``source``, which holds the same bytes."""

    name: str
    source: str


@record
class TrimStorage:
    """The storage of tensor ``name`` loses ``freed`` bytes that no tensor is a view of."""

    name: str
    freed: int


@record
class SetConfig:
    """A value in config.json; ``before`` is ``None`` with ``present`` false where the key is new."""

    path: str
    value: bool | int
    before: object
    present: bool


@record
class SetMetadata:
    """A metadata entry of a weight file changes; ``value=None`` removes it."""

    file: str
    key: str
    value: str | None


@record
class DropFile:
    """A file that holds the model in another format is left out: it would stay behind as it was."""

    name: str
    bytes: int


@record
class LinkFile:
    """A file comes along unchanged."""

    name: str
    bytes: int


Operation = (
    KeepTensor
    | DropTensor
    | CopyTensor
    | RenameTensor
    | FillTensor
    | ScaleTensor
    | AverageTensor
    | SetTensor
    | ResizeTensor
    | ShareTensor
    | TrimStorage
    | SetConfig
    | SetMetadata
    | DropFile
    | LinkFile
)


@record
class Zeros:
    """A tensor's bytes, all zero."""

    size: int


@record
class Scaled:
    """A tensor's bytes: those at ``range``, each element times 2**``exponent``."""

    range: ByteRange
    dtype: str
    exponent: int


@record
class Averaged:
    """A tensor's bytes: of each element the mean of that at ``range`` and that at ``other``, rounded once to ``dtype``.

    ``names`` are the tensors that lie there, for what is said where an element has no mean.
    """

    range: ByteRange
    other: ByteRange
    dtype: str
    names: tuple[str, str]

    @property
    def size(self) -> int:
        return self.range.size


@record
class Given:
    """A small tensor's bytes, as they are."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


@record
class Gathered:
    """A strided view's elements in row-major order; ``range`` runs from its first to its last stored element."""

    range: ByteRange
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def size(self) -> int:
        return nbytes(self.dtype, self.shape) or 0


Content = ByteRange | Zeros | Scaled | Averaged | Given | Gathered


@record
class Padded:
    """A tensor's bytes: those at ``range``, then ``zeros`` zero bytes."""

    range: ByteRange
    zeros: int

    @property
    def size(self) -> int:
        return self.range.size + self.zeros


@record
class NormFold:
    """Factors of the head's columns that go into the last norm: with ``values``, bytes by tensor, the embedding is the
    head. Of the ``elements`` of ``head`` ``rounded`` ones are a product that their type could not hold.
    """

    values: Mapping[str, bytes]
    head: str
    rounded: int
    elements: int


@record
class OutputStorage:
    """Bytes of a torch file to write of which its tensors are views; ``crc`` where their checksum is known."""

    range: ByteRange
    crc: int | None = None


@record
class OutputTensor:
    """A tensor of a file to write, and where its bytes come from (ranges are of the source's files).

    ``stride`` (in elements) is ``None`` for a dense row-major tensor, ``storage`` for one that has its bytes for
    itself; else its content is a range within that of its storage.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Content | Padded
    stride: tuple[int, ...] | None = None
    storage: OutputStorage | None = None

    @property
    def nbytes(self) -> int:
        return self.content.size if not isinstance(self.content, Scaled) else self.content.range.size

    @property
    def parts(self) -> tuple[Content, ...]:
        """The content as bytes of one kind each, one after the other."""
        if isinstance(self.content, Padded):
            return (self.content.range, Zeros(self.content.zeros))
        return (self.content,)


@record
class OutputWeights:
    """A weight file to write, its tensors in the order of their bytes."""

    name: str
    tensors: tuple[OutputTensor, ...]
    metadata: Mapping[str, str] | None

    @property
    def format(self) -> str:
        """`safetensors` or `torch`, by the name."""
        return "safetensors" if self.name.endswith(".safetensors") else "torch"

    @property
    def contents(self) -> tuple[Content | Padded, ...]:
        """What is stored, in order: a storage that several tensors share stands there once."""
        found: dict[object, Content | Padded] = {}
        for place, tensor in enumerate(self.tensors):
            found.setdefault(tensor.storage or place, tensor.storage.range if tensor.storage else tensor.content)
        return tuple(found.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored (headers not counted)."""
        return sum(_stored(content) for content in self.contents)


def _stored(content: Content | Padded) -> int:
    return content.range.size if isinstance(content, Scaled) else content.size


def _taken(content: Content | Padded) -> int:
    """Bytes that are read for a content."""
    if isinstance(content, (Zeros, Given)):
        return 0
    if isinstance(content, Averaged):
        return content.range.size + content.other.size
    return content.size if isinstance(content, ByteRange) else content.range.size


@record
class OutputText:
    """A small document to write."""

    name: str
    text: str


@record
class TiePromise:
    """After the write a fresh inspection finds this group: which names are stored, and tied or not.

    ``declared`` is ``None`` where there is no config to say so.
    """

    canonical: str
    declared: bool | None
    stored: tuple[str, ...]
    absent: tuple[str, ...]


@record
class Promises:
    """What is checked on the written bytes before the rename, beyond the byte comparison."""

    effective: bool | None  # what the config then means; None where there is no config
    ties: tuple[TiePromise, ...]


@record
class Plan:
    """A promise. Pure data: making one reads nothing beyond the inspection it came from.

    ``weights`` and ``texts`` are the files that change, ``links`` those that come along unchanged,
    ``removed`` the source files that have no successor. ``notes`` are warnings for the user.
    """

    command: str
    checkpoint: Checkpoint
    fingerprint: Mapping[str, FileState]
    operations: tuple[Operation, ...]
    weights: tuple[OutputWeights, ...]
    texts: tuple[OutputText, ...]
    links: tuple[LinkFile, ...]
    removed: tuple[str, ...]
    promises: Promises
    summary: str
    options: Mapping[str, str | None] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        """True where the model already is what was asked for."""
        return not (self.weights or self.texts or self.removed)

    @property
    def bytes_written(self) -> int:
        """Bytes of tensors and documents in the files that change (headers not counted)."""
        tensors = sum(file.nbytes for file in self.weights)
        return tensors + sum(len(text.text.encode()) for text in self.texts)

    @property
    def bytes_read(self) -> int:
        """Bytes of source tensors that the changed files are made from."""
        return sum(_taken(content) for file in self.weights for content in file.contents)

    @property
    def bytes_linked(self) -> int:
        """Bytes of files that come along unchanged."""
        return sum(link.bytes for link in self.links)


@record
class Outcome(Printed):
    """What became of a plan. ``str()`` gives the `tieconv.plan/1` JSON."""

    plan: Plan
    executed: bool
    verified: bool
    output: str | None

    def to_dict(self) -> dict[str, object]:
        """The document of schema `tieconv.plan/1`."""
        plan = self.plan
        return {
            "schema": PLAN_SCHEMA,
            "tieconv": VERSION,
            "command": plan.command,
            "source": plan.checkpoint.source,
            "summary": plan.summary,
            "operations": [_operation(operation) for operation in plan.operations],
            "files_removed": list(plan.removed),
            "notes": list(plan.notes),
            "bytes_read": plan.bytes_read,
            "bytes_written": plan.bytes_written,
            "bytes_linked": plan.bytes_linked,
            "executed": self.executed,
            "verified": self.verified,
            "output": self.output,
        }


def _operation(operation: Operation) -> dict[str, object]:
    return {"op": type(operation).__name__, **{key: plain(value) for key, value in asdict(operation).items()}}
