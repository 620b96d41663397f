"""What an inspection found: evidence, as frozen dataclasses that serialise to `tieconv.inspect/1`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING

from tieconv.checkpoint.family import Family, Role
from tieconv.checkpoint.record import record
from tieconv.checkpoint.records import Checkpoint
from tieconv.text import shell_word

if TYPE_CHECKING:
    from tieconv.checkpoint.prediction import Prediction

Detail = Mapping[str, object]


class Depth(StrEnum):
    """How much an inspection reads."""

    HEADER = "header"  # headers and documents only
    CANDIDATES = "candidates"  # plus the bytes of tied names and of tensors shaped like them
    FULL = "full"  # plus whatever proves every duplicate


class State(StrEnum):
    """How a tied name's tensor relates to the canonical one."""

    CANONICAL = "canonical"
    ABSENT = "absent"
    ALIASED = "aliased"
    IDENTICAL = "identical"
    TRANSPOSED = "transposed"
    CAST = "cast"
    SCALED = "scaled"
    NEAR = "near"
    DISTINCT = "distinct"
    UNREAD = "unread"


class BiasState(StrEnum):
    """What a head bias holds."""

    ABSENT = "absent"
    ZERO = "zero"
    NONZERO = "nonzero"
    UNREAD = "unread"


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@record
class Relation:
    """What comparing two tensors proved. ``detail`` holds the figures the state carries."""

    state: State
    detail: Detail = field(default_factory=dict)


@record
class Member:
    """One name of a tie group; ``loads_as`` where the loader gives it another name."""

    name: str
    stored: bool
    state: State
    detail: Detail = field(default_factory=dict)
    loads_as: str | None = None


@record
class Tie:
    """Names that the architecture makes one parameter.

    ``declared`` says whether the config makes this group tied, ``consistent`` whether the stored
    tensors agree with that (``None`` where a needed comparison was not made). ``canonical`` is the
    name that is, or should be, stored.
    """

    role: Role
    canonical: str
    canonical_stored: bool
    declared: bool
    consistent: bool | None
    gated: bool
    bytes_wasted: int
    members: tuple[Member, ...]

    @property
    def stored_members(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.stored)


@record
class Duplicate:
    """Tensors outside the tie groups that hold the same values; ``kind`` is a `State` value."""

    kind: State
    tensors: tuple[str, ...]
    bytes_wasted: int


@record
class Declared:
    """A tie flag found in the config; ``present`` is false where a level that could hold one has none.

    A flag that is present and ``None`` is a JSON null.
    """

    path: str
    value: object
    present: bool = True


@record
class ConfigView:
    """What the config declares and what follows from it in transformers 5."""

    model_type: str
    architectures: tuple[str, ...]
    declared: tuple[Declared, ...]
    effective: bool
    why: str


@record
class TensorView:
    """A tensor that plays a part in the head."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@record
class OutputHead:
    """The output embedding: stored, or absent because tied (``tied_to``), or simply missing."""

    name: str
    stored: bool
    tied_to: str | None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None


@record
class OutputBias:
    """The head's bias: one name (the one that is, or would be, read)."""

    name: str
    state: BiasState
    max_abs: float | None = None


@record
class Head:
    """Input embedding, output embedding and bias, by their names in the file."""

    input_embedding: TensorView | None
    output_head: OutputHead | None
    output_bias: OutputBias | None


@record
class Shadow:
    """A tensor's name in a weight file that the model does not use; ``differs`` is ``None`` where nothing compared."""

    name: str
    file: str
    differs: bool | None


@record
class Overlap:
    """Tensors of one storage that share bytes.

    ``kind`` is that of the pair that shares in the least plain way: `aliased` (the same elements), `transposed`,
    `view` (the same bytes in another shape), `slice` (one within the other), `overlap` (neither within the other).
    """

    kind: str
    tensors: tuple[str, ...]


@record
class Slack:
    """A storage with bytes that no tensor uses: at least ``unused`` of its ``stored``."""

    file: str
    tensors: tuple[str, ...]
    stored: int
    unused: int


@record
class StorageUse:
    """How the tensors lie in their storages, for a format that lets them share."""

    storages: int
    stored: int
    overlaps: tuple[Overlap, ...]
    slack: tuple[Slack, ...]

    @property
    def unused(self) -> int:
        """Bytes that no tensor uses."""
        return sum(entry.unused for entry in self.slack)


@record
class Action:
    """A writing command as data: ``verb`` such as ``retie`` or ``bias unify``, its options as flags and values."""

    verb: str
    source: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def command(self) -> str:
        """The command to copy to a shell, with OUT for the path that the user chooses."""
        options = [word for flag, value in self.options for word in (flag, shell_word(value))]
        return " ".join(("tieconv", self.verb, shell_word(self.source), *options, "-o", "OUT"))


@record
class Remedy:
    """The next command; ``safe`` where it provably keeps the function. ``action`` is the command as data."""

    command: str
    safe: bool
    action: Action | None = None


@record
class Finding:
    """One thing that a rule says about an inspection."""

    rule: str
    level: Level
    message: str
    tensors: tuple[str, ...] = ()
    remedy: Remedy | None = None


@record
class Inspection:
    """Evidence about one model. ``str()`` gives the `tieconv.inspect/1` JSON.

    ``base`` is the header-level evidence about an adapter's base model, where that is here; ``consumers`` what each
    loader will do with the model, where that was asked for.
    """

    checkpoint: Checkpoint
    family: Family
    depth: Depth
    config: ConfigView
    head: Head
    ties: tuple[Tie, ...]
    duplicates: tuple[Duplicate, ...]
    bytes_stored: int
    bytes_unique: int
    bytes_read: int
    findings: tuple[Finding, ...] = ()
    shadows: tuple[Shadow, ...] = ()
    base: Inspection | None = None
    storage: StorageUse | None = None
    consumers: tuple[Prediction, ...] = ()

    @property
    def word_tie(self) -> Tie | None:
        """The group that holds the input and the output embedding, where there is one."""
        return next((tie for tie in self.ties if tie.role is Role.WORD_EMBEDDING), None)

    def to_dict(self) -> dict[str, object]:
        """The document of schema `tieconv.inspect/1`."""
        from tieconv.checkpoint.documents import inspection_document

        return inspection_document(self)

    def __str__(self) -> str:
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=True)
