"""What an architecture ties, names, renames, biases and scales."""

from __future__ import annotations

from enum import StrEnum

from tieconv.checkpoint.record import record


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
    convention: str = ""  # the public project that gives a guessed pair these names

    @property
    def trusted(self) -> bool:
        """Whether what ties is known: measured on the class, or named by the user."""
        return self.named or self.knowledge is Knowledge.TABLE

    @property
    def default_v5(self) -> bool:
        """What transformers 5 does where no level declares the flag."""
        return self.truth[:1] == "T"
