"""A plan: what tieconv will write, and its promises about that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Literal, assert_never

from tieconv.checkpoint.model_files import Checkpoint, FileState
from tieconv.checkpoint.value_type import Printed, Summarised, fields_of, quoted, record, values_of
from tieconv.checkpoint.weight_file import ByteRange, Chunk, GgufHeader, TensorRecord, nbytes
from tieconv.text import size
from tieconv.version import VERSION

PLAN_SCHEMA = "tieconv.plan/1"


@record
class NormFold:
    """Factors of the head's columns that a re-tie folds into the last norm.

    With ``values``, bytes by tensor, the embedding equals the head. Of the ``elements`` of ``head``, ``rounded`` are
    products that their type cannot represent.
    """

    values: Mapping[str, bytes]
    head: str
    rounded: int
    elements: int


@record
class TiePromise:
    """A tied group that a fresh inspection must report after the write: which names are stored, and tied or not.

    ``declared`` is ``None`` without a config.
    """

    canonical: str
    declared: bool | None
    stored: tuple[str, ...]
    absent: tuple[str, ...]


@record
class Promises:
    """What tieconv checks on the written bytes before the rename, besides the byte comparison."""

    effective: bool | None  # what the config then means; None without a config
    ties: tuple[TiePromise, ...]
    quantised: tuple[str, ...] = ()  # the roles of the quantised matrices, if the plan changes them


def plan_facts(command: str, source: str, output: str | None) -> tuple[str, ...]:
    """Return the facts about the outcome of a plan."""
    return quoted(source), command, "not executed" if output is None else f"written to {quoted(output)}"


def plan_rows(summary: str, notes: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a plan for notebooks."""
    return ("plan", summary), *(("note", note) for note in notes)


@record
class Plan(Summarised):
    """A promise, as pure data: making a plan reads nothing beyond its inspection.

    ``weights`` and ``texts`` are the files that change. ``links`` are those copied unchanged. ``removed`` are the
    source files without a successor. ``notes`` are warnings for the user. ``proofs`` are facts about dropped tensors,
    proved again before the rename.
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
    proofs: tuple[Proof, ...] = ()

    @property
    def changes_nothing(self) -> bool:
        """True if the model already is as requested."""
        return not (self.weights or self.texts or self.removed)

    @property
    def bytes_written(self) -> int:
        """Bytes of tensors and documents in the files that change (headers not counted)."""
        tensors = sum(file.nbytes for file in self.weights)
        return tensors + sum(len(text.text.encode()) for text in self.texts)

    @property
    def bytes_read(self) -> int:
        """Bytes of source tensors in the changed files."""
        return sum(span.size for file in self.weights for content in file.contents for span in ranges(content))

    @property
    def bytes_linked(self) -> int:
        """Bytes of files that are copied unchanged."""
        return sum(link.bytes for link in self.links)

    def _facts(self) -> tuple[str, ...]:
        return quoted(self.checkpoint.source), self.command, f"writes {size(self.bytes_written)}"

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return plan_rows(self.summary, self.notes)


@record
class Outcome(Printed):
    """The outcome of a plan. ``str()`` returns the `tieconv.plan/1` JSON.

    ``remote`` has the moved bytes of an output in an object store. Before the write they are a forecast.
    """

    plan: Plan
    executed: bool
    verified: bool
    output: str | None
    remote: RemoteTransfer | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the document of schema `tieconv.plan/1`."""
        plan = self.plan
        return {
            "schema": PLAN_SCHEMA,
            "tieconv": VERSION,
            **values_of(plan, "command source=checkpoint.source summary"),
            "operations": [{"op": type(entry).__name__, **fields_of(entry)} for entry in plan.operations],
            **values_of(plan, "files_removed=removed notes bytes_read bytes_written bytes_linked"),
            **values_of(self, f"executed verified output {'remote' if self.remote else ''}"),
        }

    def _facts(self) -> tuple[str, ...]:
        return plan_facts(self.plan.command, self.plan.checkpoint.source, self.output)

    def _rows(self) -> tuple[tuple[str, ...], ...]:
        return self.plan._rows()


# Operations of a plan on each tensor, config value and file of a model.
@record
class KeepTensor:
    """The tensor stays, byte for byte, under its own name."""

    name: str


@record
class DropTensor:
    """The tensor is left out; ``because`` says where its values remain."""

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
    """The tensor ``name`` gets other values of the same dtype and shape; ``because`` says which."""

    name: str
    because: str


@record
class ResizeTensor:
    """The tensor gets another length: zeros are added or removed at its end."""

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
    """The storage of tensor ``name`` loses ``freed`` bytes that no tensor uses."""

    name: str
    freed: int


@record
class SetConfig:
    """A value in config.json; ``before`` is ``None`` with ``present`` false if the key is new."""

    path: str
    value: object
    before: object
    present: bool


@record
class DropConfig:
    """A key of config.json is removed; ``before`` is its value."""

    path: str
    before: object


@record
class SetMetadata:
    """A metadata entry of a weight file changes; ``value=None`` removes it."""

    file: str
    key: str
    value: str | None


@record
class DropFile:
    """A file that holds the model in another format is left out, because tieconv would not update it."""

    name: str
    bytes: int


@record
class LinkFile:
    """A file is copied unchanged."""

    name: str
    bytes: int


Operation = (
    KeepTensor | DropTensor | CopyTensor | RenameTensor | FillTensor | ScaleTensor | AverageTensor | SetTensor
    | ResizeTensor | ShareTensor | TrimStorage | SetConfig | DropConfig | SetMetadata | DropFile | LinkFile
)  # fmt: skip


# Files to write, and the source of each of their bytes.
@record
class Zeros:
    """A tensor's bytes, all zero."""

    size: int


@record
class Scaled:
    """A tensor's bytes: the elements at ``range``, each times 2**``exponent``."""

    range: ByteRange
    dtype: str
    exponent: int


@record
class Averaged:
    """A tensor's bytes: the mean of each element at ``range`` and ``second``, rounded once to ``dtype``.

    ``names`` are the two tensors, for the message about an element without a mean.
    """

    range: ByteRange
    second: ByteRange
    dtype: str
    names: tuple[str, str]

    @property
    def size(self) -> int:
        return self.range.size


@record
class InlineBytes:
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


@record
class Assembled:
    """A tensor's bytes, put together from its chunks. ``overlapping`` chunks must agree."""

    tensor: TensorRecord
    chunks: tuple[Chunk, ...]
    overlapping: bool

    @property
    def range(self) -> ByteRange:
        """The dense bytes, as the checkpoint counts them."""
        return self.tensor.range

    @property
    def size(self) -> int:
        return self.tensor.range.size


Content = ByteRange | Zeros | Scaled | Averaged | InlineBytes | Gathered | Assembled


@record
class Padded:
    """A tensor's bytes: those at ``range``, then ``tail``."""

    range: ByteRange
    tail: Zeros | InlineBytes

    @property
    def size(self) -> int:
        return self.range.size + self.tail.size


@record
class OutputStorage:
    """Bytes of a planned torch file that its tensors are views of; ``crc`` if their checksum is known."""

    range: ByteRange
    crc: int | None = None


@record
class OutputTensor:
    """A tensor of a planned file and the source of its bytes (ranges are of the source's files).

    ``stride`` (in elements) is ``None`` for a dense row-major tensor. ``storage`` is ``None`` for a tensor that shares
    no bytes; otherwise its content is a range within that storage's range.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Content | Padded
    stride: tuple[int, ...] | None = None
    storage: OutputStorage | None = None

    @property
    def nbytes(self) -> int:
        return content_size(self.content)

    @property
    def parts(self) -> tuple[Content, ...]:
        """The content as bytes of one kind each, one after the other."""
        return parts(self.content)


@record
class Piece:
    """Bytes of a planned file. ``offset`` counts from the start of the file, or from its first tensor byte."""

    offset: int
    content: Content

    @property
    def size(self) -> int:
        return content_size(self.content)


def content_size(content: Content | Padded) -> int:
    """Return the bytes that ``content`` takes."""
    return content.range.size if isinstance(content, Scaled) else content.size


@record
class OutputWeights:
    """A weight file to write, its tensors in the order of their bytes. ``gguf`` is the header of a GGUF source.

    ``pieces`` are all contents of a file of ONNX graphs, which has no ``tensors`` here.
    """

    name: str
    tensors: tuple[OutputTensor, ...]
    metadata: Mapping[str, str] | None
    gguf: GgufHeader | None = None
    pieces: tuple[Piece, ...] = ()

    @property
    def format(self) -> str:
        """`safetensors`, `torch`, `gguf` or `onnx`."""
        if self.pieces:
            return "onnx"
        if self.gguf is not None:
            return "gguf"
        return "safetensors" if self.name.endswith(".safetensors") else "torch"

    @property
    def contents(self) -> tuple[Content | Padded, ...]:
        """The stored contents, in order: a storage that several tensors share is in it once."""
        if self.pieces:
            return tuple(piece.content for piece in self.pieces)
        contents: dict[object, Content | Padded] = {}
        for index, tensor in enumerate(self.tensors):
            contents.setdefault(tensor.storage or index, tensor.storage.range if tensor.storage else tensor.content)
        return tuple(contents.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored (headers not counted)."""
        return sum(map(content_size, self.contents))


def parts(content: Content | Padded) -> tuple[Content, ...]:
    """Return a content as bytes of one kind each, one after the other."""
    return (content.range, content.tail) if isinstance(content, Padded) else (content,)


def ranges(content: Content | Padded) -> tuple[ByteRange, ...]:
    """Return the ranges of the source that a content is made from."""
    match content:
        case ByteRange():
            return (content,)
        case Averaged():
            return content.range, content.second
        case Zeros() | InlineBytes():
            return ()
        case Scaled() | Gathered() | Assembled() | Padded():
            return (content.range,)
    assert_never(content)


@record
class OutputText:
    """A small document to write."""

    name: str
    text: str


# Claims about dropped tensors that a plan relies on.
@record
class Equal:
    """Tensor ``tensor`` holds the elements of ``survivor``, each times 2**``exponent``."""

    tensor: TensorRecord
    survivor: TensorRecord
    exponent: int = 0


@record
class AllZero:
    """Every element of ``tensor`` is zero."""

    tensor: TensorRecord


@record
class Digest:
    """The elements of ``tensor``, in order, have this SHA-256, so a result computed from them still holds."""

    tensor: TensorRecord
    sha256: str


Proof = Equal | AllZero | Digest


def digest(blocks: Iterable[bytes | bytearray | memoryview]) -> str:
    """Return the SHA-256 of blocks of bytes."""
    import hashlib  # only plans with such a claim compute one

    sha256 = hashlib.sha256()
    for block in blocks:
        sha256.update(block)
    return sha256.hexdigest()


@record
class RemoteTransfer:
    """How a model gets into an object store, and the bytes that are read, uploaded and copied by the server.

    ``method`` is ``server_copy``, or ``upload`` for a model that tieconv writes locally first. ``why`` is then the
    reason.
    """

    method: Literal["server_copy", "upload"]
    bytes_read: int
    bytes_uploaded: int
    bytes_copied: int
    why: str = ""


@record
class RetieForecast:
    """The effects of a re-tie besides one table for both ends, from headers and config.

    ``sets_flag``: some loader reads the model as untied, so a re-tie sets the flag. ``exponent``: once tied, the class
    multiplies its logits by 2**exponent (T5 and related classes). ``refused`` says why `retie` refuses the model
    whatever the tensors hold. ``before`` says what to do before `retie` writes. Each is empty without an obstacle.
    """

    sets_flag: bool = False
    exponent: int = 0
    refused: str = ""
    before: str = ""


NOT_ASKED = RetieForecast()
"""The forecast if the effects of a re-tie do not matter."""
