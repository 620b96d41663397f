"""Files to write, and the source of each of their bytes."""

from __future__ import annotations

from collections.abc import Mapping

from tieconv.checkpoint.files.chunks import Chunk
from tieconv.checkpoint.files.dtypes import nbytes
from tieconv.checkpoint.files.weight_file import ByteRange, GgufHeader, TensorRecord
from tieconv.checkpoint.value_type import record


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
        return self.content.size if not isinstance(self.content, Scaled) else self.content.range.size

    @property
    def parts(self) -> tuple[Content, ...]:
        """The content as bytes of one kind each, one after the other."""
        return parts(self.content)


@record
class OutputWeights:
    """A weight file to write, its tensors in the order of their bytes. ``gguf`` is the header of a GGUF source."""

    name: str
    tensors: tuple[OutputTensor, ...]
    metadata: Mapping[str, str] | None
    gguf: GgufHeader | None = None

    @property
    def format(self) -> str:
        """`safetensors`, `torch` or `gguf`."""
        if self.gguf is not None:
            return "gguf"
        return "safetensors" if self.name.endswith(".safetensors") else "torch"

    @property
    def contents(self) -> tuple[Content | Padded, ...]:
        """The stored contents, in order: a storage that several tensors share is in it once."""
        contents: dict[object, Content | Padded] = {}
        for index, tensor in enumerate(self.tensors):
            contents.setdefault(tensor.storage or index, tensor.storage.range if tensor.storage else tensor.content)
        return tuple(contents.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored (headers not counted)."""
        return sum(_stored(content) for content in self.contents)


def parts(content: Content | Padded) -> tuple[Content, ...]:
    """Return a content as bytes of one kind each, one after the other."""
    return (content.range, content.tail) if isinstance(content, Padded) else (content,)


def _stored(content: Content | Padded) -> int:
    return content.range.size if isinstance(content, Scaled) else content.size


def bytes_taken(content: Content | Padded) -> int:
    """Return the bytes of the source that a content reads."""
    if isinstance(content, (Zeros, InlineBytes)):
        return 0
    if isinstance(content, Averaged):
        return content.range.size + content.second.size
    return content.size if isinstance(content, ByteRange) else content.range.size


@record
class OutputText:
    """A small document to write."""

    name: str
    text: str
