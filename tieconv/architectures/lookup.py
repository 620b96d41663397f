"""Find the family of the architecture in a config."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from tieconv.architectures import class_table as table
from tieconv.architectures import compose
from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Role, TieGroup, Tying

_HEADLESS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForImageClassification",
    "ForAudioClassification",
    "ForSequenceRegression",
    "ForRewardModel",
    "ForRetrieval",
    "ForSentenceEmbedding",
    "RewardModel",
    "ForRewardModeling",
)


def find(
    config: Mapping[str, object],
    names: Mapping[str, tuple[int, ...]] | None = None,
    shared: Iterable[Collection[str]] = (),
) -> Family:
    """Return the family of a config: measured, else from a class of the same type, else guessed from tensor names.

    ``names`` maps each tensor name of the file to its shape. Without it an unknown architecture stays unknown.
    ``shared`` are groups of names with shared storage.
    """
    listed = _architectures(config)
    model_type = str(config.get("model_type") or "")
    for architecture in listed:
        family = compose.load(architecture, config)
        if family is not None:
            return family
    sibling = _sibling(config, model_type)
    if not listed and sibling is not None:
        return sibling
    if sibling is not None and any(map(is_headless, listed)):
        return _without_head(next(name for name in listed if is_headless(name)), sibling)
    architecture = listed[0] if listed else ""
    guessed = _guessed(architecture, model_type, names or {}, config, shared)
    if guessed.knowledge is Knowledge.NONE and sibling is not None and not names:
        # A new class of a known type most likely has the same layout.
        return replace(sibling, architecture=architecture, knowledge=Knowledge.PATTERN)
    return guessed


def _architectures(config: Mapping[str, object]) -> tuple[str, ...]:
    listed = config.get("architectures")
    if not isinstance(listed, list):
        return ()
    return tuple(name for name in listed[:_MOST_ARCHITECTURES] if isinstance(name, str))


_MOST_ARCHITECTURES = 64
"""Most entries of `architectures` that are looked up. transformers writes one."""


def _sibling(config: Mapping[str, object], model_type: str) -> Family | None:
    """Return the family of the main language-model class of the config's type."""
    name = table.main_class(model_type)
    return compose.load(name, config) if name else None


def is_headless(name: str) -> bool:
    """Return whether a class has no output head, by the end of its name."""
    if name.endswith(_HEADLESS):
        return True
    return name.endswith("Model") and not name.endswith(("LMHeadModel", "ModelWithLMHead"))


def _without_head(architecture: str, sibling: Family) -> Family:
    """Return the family of a class with the sibling's body and no output head."""
    bare = "For" not in architecture and architecture.endswith("Model")
    start = sibling.prefix + "." if bare and sibling.prefix else ""
    # A class with only the encoder has no decoder tensor.
    half = "decoder." if architecture.endswith("EncoderModel") else None

    def rename(name: str) -> str:
        return name.removeprefix(start)

    groups = []
    for group in sibling.groups:
        if group.role is Role.OUTPUT_BIAS:
            continue
        shared_names = [
            rename(name)
            for name in (group.canonical, *group.members)
            if name != sibling.output_head and not (half and rename(name).startswith(half))
        ]
        if len(shared_names) > 1:
            groups.append(TieGroup(group.role, shared_names[0], tuple(shared_names[1:]), group.gated))
    return replace(
        sibling,
        architecture=architecture,
        tying=Tying.HEADLESS,
        input_embedding=rename(sibling.input_embedding) if sibling.input_embedding else None,
        output_head=None,
        output_biases=(),
        bias_is_row=False,
        groups=tuple(groups),
        renames=tuple((rename(stored), rename(memory)) for stored, memory in sibling.renames),
        truth="F" * len(sibling.truth),
        meaning_v4=FlagMeaning.STORAGE,
        meaning_v5=FlagMeaning.STORAGE,
    )


def _guessed(
    architecture: str,
    model_type: str,
    names: Mapping[str, tuple[int, ...]],
    config: Mapping[str, object],
    shared: Iterable[Collection[str]],
) -> Family:
    from tieconv.architectures import guess as pattern  # a known class needs no guess

    embedding, head = pattern.guess(names, next(_vocabularies(config), None), shared)
    known = embedding is not None or head is not None
    groups = (TieGroup(Role.WORD_EMBEDDING, embedding, (head,), True),) if embedding and head else ()
    biases = pattern.biases(names, head)
    return Family(
        architecture=architecture,
        model_type=model_type,
        knowledge=Knowledge.PATTERN if known else Knowledge.NONE,
        tying=Tying.CAN,
        prefix="",
        input_embedding=embedding,
        output_head=head,
        output_biases=biases,
        bias_is_row=any(len(names[name]) == 2 for name in biases),
        groups=groups,
        renames=(),
        levels=(),
        truth="FTF",  # transformers 5: absent means false
        default_v4=True,  # transformers 4: absent means true
        meaning_v4=FlagMeaning.STORAGE,
        meaning_v5=FlagMeaning.STORAGE,
        convention=pattern.convention(embedding, head),
    )


def _vocabularies(config: Mapping[str, object]) -> Iterator[int]:
    """Yield the vocabulary sizes in the config, outermost first."""
    for key in ("vocab_size", "padded_vocab_size"):
        size = config.get(key)
        if isinstance(size, int) and size > 0:
            yield size
    for key in ("text_config", "llm_config", "language_config", "decoder"):
        inner = config.get(key)
        if isinstance(inner, Mapping):
            yield from _vocabularies(inner)


# Recognise draft models for speculative decoding, which use tensors of their target model.


WHY = "Untied: a draft model takes its embedding, and often its head, from its target model."
_MAPS = frozenset({"d2t", "t2d"})
"""EAGLE-3 maps its smaller vocabulary to the target's with these tensors."""
_FUSIONS = frozenset({"fc.weight", "model.fc.weight"})
"""The layer that joins the hidden states of target and draft. Vision-language models named Eagle lack it."""


def is_draft(config: Mapping[str, object], names: Collection[str]) -> bool:
    """Return whether config or tensors are those of an EAGLE (SpecForge, vLLM speculators) or Medusa draft."""
    listed = config.get("architectures")
    classes = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    fused = any("eagle" in name.lower() for name in classes) and not _FUSIONS.isdisjoint(names)
    counted = any(type(config.get(key)) is int for key in ("draft_vocab_size", "medusa_num_heads"))
    return fused or counted or _MAPS.issubset(names) or _is_first_eagle(names)


def _is_first_eagle(names: Collection[str]) -> bool:
    """Return whether it is EAGLE-1 or 2, whose config has the target's class: fused layer, no norm, no head."""
    ends = ("norm.weight", "model.norm.weight", "lm_head.weight")
    return not _FUSIONS.isdisjoint(names) and "embed_tokens.weight" in names and not any(end in names for end in ends)


# Change a family to the names of input embedding and output head that the user gave.


def with_names(family: Family, embed: str | None, head: str | None) -> Family:
    """Return ``family`` with the given names as its word-embedding pair; ``None`` keeps the family's name."""
    embedding = embed or family.input_embedding
    output = head or family.output_head
    others = tuple(group for group in family.groups if group.role is not Role.WORD_EMBEDDING)
    pair = (TieGroup(Role.WORD_EMBEDDING, embedding, (output,), True),) if embedding and output else ()
    return replace(
        family,
        input_embedding=embedding,
        output_head=output,
        tying=Tying.CAN,
        named=bool(embed and head),
        groups=pair + others,
        truth=family.truth or "FTF",
    )
