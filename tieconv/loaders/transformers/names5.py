"""How transformers 5 takes names and ties them, beyond what the table says.

From `PreTrainedModel.tie_weights` and `rename_source_key` of transformers 5.23.0. Measured with it: every class of the
table that can be built, every set of its tied names stored, under each flag, and every spelling of its names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from tieconv.architectures.stored_names import locate, variants
from tieconv.checkpoint.family import Family, Role
from tieconv.checkpoint.inspection import Inspection, Tie

REFUSES_TIED = ("dbrx",)
"""Types whose config refuses a true flag."""

TAKES_ANY_FLAG = frozenset(
    (
        *("audioflamingo3", "blip-2", "encoder-decoder", "gemma3", "inkling2", "inkling2_text", "inkling_text"),
        *("instructblip", "instructblipvideo", "mllama", "muse_glimmer", "muse_spark", "musicflamingo"),
        *("nemo_speechlm", "nemotron_h_omni", "nomic_bert", "perceiver", "perception_lm", "pp_formulanet"),
        *("qwen2_audio", "speech-encoder-decoder", "step3p7", "t5", "umt5", "vibevoice", "vibevoice_asr"),
        *("vision-encoder-decoder", "voxtral"),
    )
)
"""Types whose config takes another value than true and false at its top level; every other type refuses it."""

_DECODER_FIRST = ("bart", "florence2", "m2m_100", "marian", "mbart", "pegasus")
"""Types that tie the decoder's table before the encoder's; the others keep the order of the table."""

_HEAD_FIRST = ("seamless_m4t", "seamless_m4t_v2")
"""Types that tie the head first although the tables of both halves stand outside the base model as well."""

_VISION = ("embed_tokens.weight", "model.model.language_model.embed_tokens.weight", "model.lm_head.weight")
_OCR = ("language_model.embed_tokens.weight", "model.model.language_model.embed_tokens.weight")
_UNREAD = {
    "bailing_hybrid": ("word_embeddings.weight", "model.model.word_embeddings.weight"),
    "cosmos3_edge": ("model.embed_tokens.weight",),
    "cosmos3_omni": ("model.embed_tokens.weight",),
    "deepseek_ocr2": _OCR,
    "hunyuan_vl": _VISION,
    "hyperclovax_vision_v2": ("model.model.language_model.lm_head.weight",),
    "inkling2": ("llm.embed.weight", "model.model.llm.embed.weight"),
    "inkling2_text": ("llm.embed.weight",),
    "llama4": ("model.language_model.model.embed_tokens.weight",),
    "mistral_large4": ("model.tok_embeddings.weight",),
    "nemo_speechlm": ("model.llm.model.embed_tokens.weight",),
    "nemotron_h_omni": (".language_model.backbone.embeddings.weight",),
    "paddleocr_vl": _VISION,
    "qwen2_5_omni_thinker": _VISION,
    "qwen2_5_vl": _VISION,
    "qwen2_vl": _VISION,
    "qwen3_omni_moe_thinker": _VISION,
    "step3p7": ("embed_tokens.weight", "model.model.embed_tokens.weight"),
    "t5gemma2": ("model.model.encoder.embed_tokens.weight",),
    "unlimited_ocr": _OCR,
}
"""By type: names that `locate` takes and this loader does not, since one of its renamings takes them elsewhere."""

_PASSAGE = frozenset(("language_model", "model", "transformer"))
"""Parts of a name that this loader's renamings add and take away."""


def unread(family: Family, stored: Collection[str]) -> frozenset[str]:
    """The stored names of the table's tensors that transformers 5 does not know."""
    found = {locate(family, name, stored) for name in _told(family)}
    return frozenset(name for name in _UNREAD.get(family.model_type, ()) if name in found)


def stranger(family: Family, stored: Collection[str]) -> tuple[str, str] | None:
    """A name of the table that is not stored, and a stored one that the loader may take for it.

    Renamings follow each other there, so more spellings are read than `locate` knows: those that end as the name
    does and are made of parts that the loader adds and takes away.
    """
    told = list(_told(family))
    held = {name: locate(family, name, stored) for name in told}
    memory = dict(family.renames)
    known = {*held.values(), *_outer(family)}
    parts = _PASSAGE.union(*(name.split(".") for name in (family.prefix, *told, *memory.values())))
    missing = [name for name in told if held[name] is None]
    for name in stored if missing else ():
        steps = name.split(".")
        if name in known or not parts.issuperset(steps):
            continue
        ends = (one for one in missing if steps[-2:] in (one.split(".")[-2:], memory.get(one, one).split(".")[-2:]))
        found = next(ends, None)
        if found is not None:
            return found, name
    return None


def twice(family: Family, stored: Collection[str]) -> tuple[str, ...]:
    """Stored names, more than one, that the loader takes for the same tensor; empty where there are none."""
    lost = _UNREAD.get(family.model_type, ())
    told = list(_told(family))
    for name in told:
        held = [other for other in dict.fromkeys(variants(family, name)) if other in stored and other not in lost]
        if len([other for other in held if other == name or other not in told]) > 1:
            return tuple(held)
    return ()


def _outer(family: Family) -> Iterator[str]:
    """Names of a head that is renamed which this loader is known not to take: the prefix added or taken away."""
    head, start = family.output_head, f"{family.prefix}."
    if head is not None and head in dict(family.renames):
        yield from (start + head, head.removeprefix(start))


def _told(family: Family) -> Iterator[str]:
    named = (family.input_embedding, family.output_head, *family.output_biases)
    words = (group for group in family.groups if group.role is Role.WORD_EMBEDDING)
    grouped = chain.from_iterable((group.canonical, *group.members) for group in words)
    yield from dict.fromkeys(name for name in (*named, *grouped) if name is not None)


def in_order(family: Family, names: Sequence[str]) -> list[str]:
    """The names but for the first in the order in which they are tied to it.

    What a class declares comes before what its body does.
    """
    start = f"{family.text_start}{family.text_prefix}."

    def rank(name: str) -> tuple[bool, bool]:
        late = name != family.output_head if family.text_type in _HEAD_FIRST else name.startswith(start)
        return late, family.text_type in _DECODER_FIRST and "encoder" in name.removeprefix(family.text_start).split(".")

    return sorted(names[1:], key=rank)


def steps(family: Family, names: Sequence[str], stored: Sequence[bool]) -> Iterator[tuple[str, str, bool]]:
    """Each pair that is tied: whose parameter is taken, by which name, and whether only where they are equal."""
    missing = {name for name, held in zip(names, stored, strict=True) if not held}
    source, targets = names[0], in_order(family, names)
    for place, target in enumerate(targets):
        if target in missing:
            backup = next((name for name in targets[place + 1 :] if name not in missing), source)
            give, take = (backup if source in missing else source), target
        else:
            give, take = (target, source) if source in missing else (source, target)
        yield give, take, take not in missing
        missing.discard(take)


def sources(family: Family, names: Sequence[str], stored: Sequence[bool]) -> tuple[int | None, ...]:
    """For each name of a group that is tied the place of the stored name whose values it has; ``None``: random."""
    found = {name: place if held else None for place, (name, held) in enumerate(zip(names, stored, strict=True))}
    for give, take, both in steps(family, names, stored):
        if not both:
            found[take] = found[give]
    return tuple(found[name] for name in names)


def giver(inspection: Inspection, tie: Tie, name: str) -> str | None:
    """The stored name whose values transformers 5 gives to ``name``, a name of a group that is tied."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    told = [(group.canonical, *group.members) for group in family.groups]
    held = [names for names in told if any(locate(family, one, tensors) is not None for one in names)]
    places = sources(family, held[inspection.ties.index(tie)], [member.stored for member in tie.members])
    found = next(place for place, member in zip(places, tie.members, strict=True) if member.name == name)
    return None if found is None else tie.members[found].name
