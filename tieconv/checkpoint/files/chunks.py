"""A tensor that several files store in chunks, as distributed checkpoints do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from tieconv.checkpoint.files.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.value_type import record


@record
class Chunk:
    """A rectangle of a tensor: its first index and its sides, and the bytes that store it.

    With ``archive``, the bytes at ``range`` are a file of `torch.save` that holds the chunk. Otherwise they are the
    chunk itself, in row-major order.
    """

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    range: ByteRange
    archive: bool


@record
class ChunkTable:
    """The chunks of every tensor by its name, and the tensors that are not the model's.

    ``overlapping`` are the tensors with chunks that share elements: every reader must check that they agree.
    ``training`` are tensors of the optimizer and of other training state. ``starts`` maps a tensor to the prefix of its
    state dict, such as ``model.``. ``stored_names`` maps a name to the name in the file, once prefixes are removed.
    ``outside`` are then the tensors that are not below the prefix.
    """

    chunks: Mapping[str, tuple[Chunk, ...]] = field(default_factory=dict)
    overlapping: frozenset[str] = frozenset()
    training: Mapping[str, TensorRecord] = field(default_factory=dict)
    starts: Mapping[str, str] = field(default_factory=dict)
    stored_names: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, TensorRecord] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.chunks)
