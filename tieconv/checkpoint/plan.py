"""A plan: what will be written, from which bytes, and what is promised about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field

from tieconv.checkpoint.record import record
from tieconv.checkpoint.records import ByteRange, Checkpoint, FileState


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
class LinkFile:
    """A file comes along unchanged."""

    name: str
    bytes: int


Operation = (
    KeepTensor | DropTensor | CopyTensor | RenameTensor | FillTensor | ScaleTensor | SetConfig | SetMetadata | LinkFile
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


Content = ByteRange | Zeros | Scaled


@record
class OutputTensor:
    """A tensor of a file to write, and where its bytes come from (ranges are of the source's files)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: Content

    @property
    def nbytes(self) -> int:
        return self.content.size if not isinstance(self.content, Scaled) else self.content.range.size


@record
class OutputWeights:
    """A safetensors file to write, its tensors in the order of their bytes."""

    name: str
    tensors: tuple[OutputTensor, ...]
    metadata: Mapping[str, str] | None


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
        tensors = sum(tensor.nbytes for file in self.weights for tensor in file.tensors)
        return tensors + sum(len(text.text.encode()) for text in self.texts)

    @property
    def bytes_read(self) -> int:
        """Bytes of source tensors that the changed files are made from."""
        return sum(
            tensor.nbytes for file in self.weights for tensor in file.tensors if not isinstance(tensor.content, Zeros)
        )

    @property
    def bytes_linked(self) -> int:
        """Bytes of files that come along unchanged."""
        return sum(link.bytes for link in self.links)


@record
class Outcome:
    """What became of a plan. ``str()`` gives the `tieconv.plan/1` JSON."""

    plan: Plan
    executed: bool
    verified: bool
    output: str | None

    def to_dict(self) -> dict[str, object]:
        """The document of schema `tieconv.plan/1`."""
        from tieconv.checkpoint.documents import outcome_document

        return outcome_document(self)

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)
