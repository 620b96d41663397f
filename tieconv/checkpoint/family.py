"""Facts about an architecture: what it ties, names, renames, biases and scales."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.value_type import record


class Knowledge(StrEnum):
    """Where the facts about an architecture are from."""

    TABLE = "table"  # measured on the class itself, shipped as data
    PATTERN = "pattern"  # derived from names and shapes
    NONE = "none"


class Role(StrEnum):
    """The purpose of a tied group."""

    WORD_EMBEDDING = "word_embedding"
    OUTPUT_BIAS = "output_bias"
    POSITION_EMBEDDING = "position_embedding"
    OTHER = "other"


class Tying(StrEnum):
    """Whether the class can tie its output embedding to its input embedding."""

    CAN = "can"  # the flag decides
    ALWAYS = "always"  # always tied; config and file do not matter
    NEVER = "never"  # always a separate head; config and file do not matter
    HEADLESS = "headless"  # no output embedding by design


class FlagMeaning(StrEnum):
    """What the tie flag changes in the forward pass, besides storage."""

    STORAGE = "storage"  # nothing: equal tensors give equal logits under both values
    SCALES = "scales"  # the class multiplies logits by d_model**-0.5 exactly when the flag is true
    DERIVES = "derives"  # as SCALES, by `scale_decoder_outputs` if the config has that key


@record
class TieGroup:
    """Names (as stored in files) that the class makes one parameter.

    ``canonical`` is the name that ``save_pretrained`` keeps; ``members`` are the others. ``gated`` is true if
    ``tie_word_embeddings`` decides, false if the class always shares.
    """

    role: Role
    canonical: str
    members: tuple[str, ...]
    gated: bool


@record
class Part:
    """The model within a class that has the head; a nested ``model_type`` in the config chooses it.

    ``level`` is its path in the config, ``start`` the prefix of its names in the file. ``architecture`` is the class
    that transformers builds there, ``prefix`` that class's base model. Both are empty if the head belongs to the
    enclosing class. ``usual`` is true if this type of part is the default of the class.
    """

    level: str
    model_type: str
    architecture: str
    prefix: str
    start: str
    usual: bool


@record
class Family:
    """Everything tieconv knows about one architecture class.

    Names are names in the file. ``renames`` maps a file name to the loader's name in memory, for the tensors named
    here, if the two differ. ``levels`` are the nested config paths (dotted, without the top) that can hold a tie
    flag, the deciding one first. ``truth`` has one letter (``T``/``F``) for each (top, nested) pair, nested =
    ``levels[0]``. The values are absent, true and false, in this order; the nested one varies fastest. A flat config
    has three letters. ``default_v4`` is what transformers 4 does with an absent flag, ``None`` if transformers 4 has no
    such model.
    """

    architecture: str
    model_type: str
    knowledge: Knowledge
    tying: Tying
    prefix: str = ""
    input_embedding: str | None = None
    output_head: str | None = None
    output_biases: tuple[str, ...] = ()
    bias_is_row: bool = False  # the bias has shape [1, V] (a buffer), not [V]
    groups: tuple[TieGroup, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    levels: tuple[str, ...] = ()
    truth: str = ""
    default_v4: bool | None = None
    meaning_v4: FlagMeaning = FlagMeaning.STORAGE
    meaning_v5: FlagMeaning = FlagMeaning.STORAGE
    level_v4: str | None = None  # the one level that transformers 4 reads the flag from ("" is the top)
    named: bool = False  # the user named the pair, so tieconv does not guess
    unflippable: str | None = None  # why a change of the flag affects more than the tied names
    misfit: bool = False  # a separate head has, or may have, another shape than the table that a tied head uses
    part: Part | None = None  # the text part that the config chose
    pieces: tuple[str, ...] = ()  # stored tensors whose rows together are the input embedding
    unlisted: bool = False  # no auto mapping of transformers has the class; not measured with transformers 4.48
    since: str = ""  # the release that the facts were measured with, if it is newer than the table's
    mlx_names: bool = False  # mlx-lm or mlx-vlm named the tensors, so transformers does not find them
    convention: str = ""  # the public project that gives a guessed pair these names
    body_of: str = ""  # of a class outside the table: the class of its type that the facts were measured on

    @property
    def trusted(self) -> bool:
        """Whether tieconv knows what ties: measured on the class, or named by the user."""
        return self.named or self.knowledge is Knowledge.TABLE

    @property
    def text_type(self) -> str:
        """The model type of the language model: that of the part with the head, if the class has one."""
        return self.part.model_type if self.part is not None and self.part.architecture else self.model_type

    @property
    def text_class(self) -> str:
        """The class of the language model, chosen as in ``text_type``."""
        return (self.part.architecture if self.part is not None else "") or self.architecture

    @property
    def text_level(self) -> str:
        """The path of the language model's config within the config; empty if that is the whole config."""
        return self.part.level if self.part is not None and self.part.architecture else ""

    @property
    def text_start(self) -> str:
        """The prefix of the language model's names in the file."""
        return self.part.start if self.part is not None and self.part.architecture else ""

    @property
    def text_prefix(self) -> str:
        """The base model's prefix in the language model."""
        return self.part.prefix if self.part is not None and self.part.architecture else self.prefix

    @property
    def default_v5(self) -> bool:
        """What transformers 5 does if no level declares the flag."""
        return self.truth[:1] == "T"
