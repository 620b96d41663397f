"""What an architecture ties, names, renames, biases and scales."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.value_type import record


class Knowledge(StrEnum):
    """Where the facts about an architecture come from."""

    TABLE = "table"  # measured on the class itself, shipped as data
    PATTERN = "pattern"  # guessed from names and shapes
    NONE = "none"


class Role(StrEnum):
    """What a tie group is for."""

    WORD_EMBEDDING = "word_embedding"
    OUTPUT_BIAS = "output_bias"
    POSITION_EMBEDDING = "position_embedding"
    OTHER = "other"


class Tying(StrEnum):
    """Whether the class can tie its output embedding to its input embedding."""

    CAN = "can"  # the flag decides
    ALWAYS = "always"  # tied whatever the file says
    NEVER = "never"  # a head of its own whatever the file says
    HEADLESS = "headless"  # no output embedding by design


class FlagMeaning(StrEnum):
    """What the tie flag does to the forward pass, beyond storage."""

    STORAGE = "storage"  # nothing: equal tensors give equal logits under both values
    SCALES = "scales"  # logits are multiplied by d_model**-0.5 exactly when the flag is true
    DERIVES = "derives"  # as SCALES, through `scale_decoder_outputs` where the config names that key


@record
class TieGroup:
    """Names (as stored in files) that the class makes one parameter.

    ``canonical`` is the name that ``save_pretrained`` keeps; ``members`` are the others.
    ``gated`` is true where ``tie_word_embeddings`` decides, false where the class always shares.
    """

    role: Role
    canonical: str
    members: tuple[str, ...]
    gated: bool


@record
class Part:
    """The model inside a class that the config chooses by a nested ``model_type``, and that holds the head.

    ``level`` is its path in the config, ``start`` the prefix of its names in the file. ``architecture`` is the class
    that transformers builds there and ``prefix`` that class's base model; both are empty where the head belongs to the
    class around it. ``usual`` says that the class has this type of part by default.
    """

    level: str
    model_type: str
    architecture: str
    prefix: str
    start: str
    usual: bool


@record
class Family:
    """What is known of one architecture class.

    Names are names in the file. ``renames`` maps a file name to the name that the loader gives it in
    memory, for the tensors named here, where the two differ. ``levels`` are the nested config paths
    (dotted, without the top level) that hold or govern a tie flag, the governing one first. ``truth``
    has one letter (``T``/``F``) for each (top, nested) pair, top running over absent, true, false and
    for each of them nested over absent, true, false (nested = ``levels[0]``); three letters where the
    config is flat. ``default_v4`` is what transformers 4 does with an absent flag, ``None`` where
    transformers 4 has no such model.
    """

    architecture: str
    model_type: str
    knowledge: Knowledge
    tying: Tying
    prefix: str
    input_embedding: str | None
    output_head: str | None
    output_biases: tuple[str, ...]
    bias_is_row: bool  # the bias has shape [1, V] (a buffer), not [V]
    groups: tuple[TieGroup, ...]
    renames: tuple[tuple[str, str], ...]
    levels: tuple[str, ...]
    truth: str
    default_v4: bool | None
    meaning_v4: FlagMeaning
    meaning_v5: FlagMeaning
    level_v4: str | None = None  # the one level that transformers 4 reads the flag from ("" is the top)
    named: bool = False  # the user named the pair: no guess is left
    unflippable: str | None = None  # why a change of the flag means more than its tied names say
    misfit: bool = False  # a head of its own has another shape than the table that the tied one uses
    part: Part | None = None  # the text part that the config chose
    pieces: tuple[str, ...] = ()  # stored tensors whose rows together are the input embedding
    unlisted: bool = False  # no auto mapping of transformers has the class; transformers 4.48 was not measured with it
    convention: str = ""  # the public project that gives a guessed pair these names

    @property
    def trusted(self) -> bool:
        """Whether what ties is known: measured on the class, or named by the user."""
        return self.named or self.knowledge is Knowledge.TABLE

    @property
    def text_type(self) -> str:
        """The model type of the language model: that of the part which holds the head, where the class has one."""
        return self.part.model_type if self.part is not None and self.part.architecture else self.model_type

    @property
    def text_class(self) -> str:
        """The class of the language model, as ``text_type``."""
        return (self.part.architecture if self.part is not None else "") or self.architecture

    @property
    def text_level(self) -> str:
        """The path in the config of the language model's own config; empty where that is the whole config."""
        return self.part.level if self.part is not None and self.part.architecture else ""

    @property
    def text_start(self) -> str:
        """What the file's names of the language model start with."""
        return self.part.start if self.part is not None and self.part.architecture else ""

    @property
    def text_prefix(self) -> str:
        """The base model's prefix in the language model."""
        return self.part.prefix if self.part is not None and self.part.architecture else self.prefix

    @property
    def default_v5(self) -> bool:
        """What transformers 5 does where no level declares the flag."""
        return self.truth[:1] == "T"
