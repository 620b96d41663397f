"""Operations of a plan on each tensor, config value and file of a model."""

from __future__ import annotations

from tieconv.checkpoint.value_type import record


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
    | DropConfig
    | SetMetadata
    | DropFile
    | LinkFile
)
