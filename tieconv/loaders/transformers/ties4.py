"""Whose values each name of a tie group has after transformers 4 has loaded a file.

Measured with 4.48.3 and 4.57.6: every class of the table that they have, every set of names of its word embeddings
stored, each filled with a number of its own, the flag true, false and absent.
"""

from __future__ import annotations

from collections.abc import Sequence

from tieconv.checkpoint.family import Family
from tieconv.loaders.transformers.shared_tables import LAST_WINS

NO_VALUES = -1
"""The name is left without values: the loader moved nothing into the place that it made for it."""

_ONE_MODULE = frozenset({*LAST_WINS, "blenderbot-small", "mvp", "pop2piano", "prophetnet", "udop"})
_ONE_MODULE_IN = {"4.48": _ONE_MODULE | {"bigbird_pegasus"}, "4.57": _ONE_MODULE}
"""Types whose encoder and decoder are given one embedding module, whatever the flag says."""

_GIVES_ITS_TABLE = ("blip-2", "instructblip", "instructblipvideo")
"""Types that give the shared table of their text part to its encoder and decoder, whatever the flag says."""

_FROM = {"blt": "model.local_encoder.embed_tokens.weight", "fsmt": "model.encoder.embed_tokens.weight"}
"""Types whose tied names take the values of another name than the one that transformers 5 keeps."""

_FROM_DECODER = ("bart",)
"""Types of which 4.57 takes the decoder's table where the shared one is not stored."""

_ALWAYS = ("lxmert",)
"""Types whose head is made of the embedding's parameter, whatever the flag says."""

TIES_V4 = frozenset(
    (
        "BigBirdPegasusForCausalLM",
        "CpmAntForCausalLM",
        "EvollaForProteinText2Text",
        "LukeForMaskedLM",
        "MoshiForCausalLM",
        "Pop2PianoForConditionalGeneration",
        "Qwen2AudioForConditionalGeneration",
        "ReformerForMaskedLM",
        "ReformerModelWithLMHead",
        "VoxtralForConditionalGeneration",
        "xLSTMForCausalLM",
    )
)
"""Classes whose head the flag ties in transformers 4 alone; it is in no group of the table, so nothing was compared."""

_NEVER_448 = ("blip", "emu3")
"""Types of which 4.48 ties nothing, whatever the flag says."""

_NOT_FROM_HEAD_448 = frozenset(
    (
        "AriaForConditionalGeneration",
        "Blip2ForConditionalGeneration",
        "FlaubertWithLMHeadModel",
        "Idefics2ForConditionalGeneration",
        "Idefics3ForConditionalGeneration",
        "InstructBlipForConditionalGeneration",
        "InstructBlipVideoForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaNextVideoForConditionalGeneration",
        "LlavaOnevisionForConditionalGeneration",
        "MoonshineForConditionalGeneration",
        "MraForMaskedLM",
        "Pix2StructForConditionalGeneration",
        "Speech2TextForConditionalGeneration",
        "SpeechT5ForSpeechToText",
        "WhisperForConditionalGeneration",
        "XLMWithLMHeadModel",
        "XLNetLMHeadModel",
    )
)
"""Classes of which 4.48 leaves a tied embedding random where only the head is stored; the others' takes the head's."""


def sources(
    family: Family, names: Sequence[str], stored: Sequence[bool], version: str, *, tied: bool, last: int | None = None
) -> tuple[int | None, ...]:
    """For each of ``names`` the place of the name whose stored values it has, ``None`` where they are random.

    ``names`` are those of the table, the canonical one first; ``last`` is the place of the table, no head, that comes
    last in the file.
    """
    kind = family.text_type
    own = _own(family, names, stored, version, last)
    tied = (tied or kind in _ALWAYS) and not (version == "4.48" and kind in _NEVER_448)
    if kind == "fsmt" and not tied:
        return _fsmt_untied(names, own, version)
    if not tied or not any(stored):
        # Of this class, whose tie no flag undoes, only what is missing is taken from the shared table.
        alone = family.model_type not in _GIVES_ITS_TABLE
        fills = kind == "longt5" and version == "4.57" and stored[0] and alone
        return tuple(0 if fills and place is None else place for place in own)
    base = _base(family, names, own, version)
    return tuple(base for _ in names)


def source_name(family: Family, names: Sequence[str]) -> str:
    """The one of ``names`` whose values the others have where they are tied."""
    start = family.text_start + _FROM.get(family.text_type, names[0])
    return start if start in names else names[0]


def _own(
    family: Family, names: Sequence[str], stored: Sequence[bool], version: str, last: int | None
) -> list[int | None]:
    """The sources before anything is tied: each name its own, but for a module that several names share."""
    own: list[int | None] = [place if held else None for place, held in enumerate(stored)]
    if family.text_type not in _ONE_MODULE_IN[version] and family.model_type not in _GIVES_ITS_TABLE:
        return own
    body = [place for place, name in enumerate(names) if name != family.output_head]
    first = next((place for place in body if stored[place]), None)
    kept = last if last is not None and family.text_type in LAST_WINS else first
    for place in body:
        own[place] = kept
    return own


def _base(family: Family, names: Sequence[str], own: list[int | None], version: str) -> int | None:
    """The place whose values tied names have."""
    place = names.index(source_name(family, names))
    if own[place] is not None:
        return own[place]
    if version == "4.57":
        decoder = (other for other, name in enumerate(names) if "decoder" in name.split("."))
        found = next((own[other] for other in decoder if own[other] is not None), None)
        return found if family.text_type in _FROM_DECODER and found is not None else NO_VALUES
    body = [own[other] for other, name in enumerate(names) if name != family.output_head and own[other] is not None]
    if body and family.text_type != "fsmt":
        return body[0]
    head = own[names.index(family.output_head)] if family.output_head in names else None
    if head is not None and not {family.architecture, family.text_class} & _NOT_FROM_HEAD_448:
        return head
    return body[0] if body else None


def _fsmt_untied(names: Sequence[str], own: list[int | None], version: str) -> tuple[int | None, ...]:
    """FSMT's decoder has one parameter for its table and for the head, and it is the head's."""
    decoder = [place for place, name in enumerate(names) if "decoder" in name.split(".")]
    head = next(own[place] for place in decoder if names[place].endswith("output_projection.weight"))
    if head is None and version == "4.57" and any(own[place] is not None for place in decoder):
        head = NO_VALUES
    return tuple(head if place in decoder else own[place] for place in range(len(names)))
