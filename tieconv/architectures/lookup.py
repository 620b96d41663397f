"""Find the family of the architecture in a config."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tieconv.architectures import class_table as table
from tieconv.architectures.effective_flag import nested
from tieconv.architectures.stored_names import locate
from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Part, Role, TieGroup, Tying
from tieconv.text import shown, with_type

_HEADLESS = (
    "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice",
    "ForNextSentencePrediction", "ForImageClassification", "ForAudioClassification", "ForSequenceRegression",
    "ForRewardModel", "ForRetrieval", "ForSentenceEmbedding", "RewardModel", "ForRewardModeling",
)  # fmt: skip


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
        family = load(architecture, config)
        if family is not None:
            biases = tuple(table.newer_release()["biases"].get(architecture, ()))
            return replace(family, output_biases=biases) if biases and {*biases} <= {*(names or ())} else family
    # The family of the main language-model class of the config's type.
    sibling = load(main, config) if (main := table.main_class(model_type)) else None
    if not listed and sibling is not None:
        return sibling
    bare = next(filter(is_headless, listed), None)
    if sibling is not None and bare is not None:
        is_body = "For" not in bare and bare.endswith("Model") and not bare.endswith("RewardModel")
        if is_body and sibling.output_head and locate(sibling, sibling.output_head, names or ()):
            return replace(sibling, architecture=bare, body_of=sibling.architecture)  # a class with the head saved it
        return _without_head(bare, sibling)
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
    # transformers writes one entry of `architectures`.
    return tuple(name for name in listed[:64] if isinstance(name, str) and name)


def is_headless(name: str) -> bool:
    """Return whether a class has no output head, by the end of its name."""
    if name.endswith(_HEADLESS):
        return True
    return name.endswith("Model") and not name.endswith(("LMHeadModel", "ModelWithLMHead", "AdapterModel"))


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
        if group.role is Role.OUTPUT_BIAS or (group.role is Role.POSITION_EMBEDDING and not half):
            continue  # UdopModel does not tie its relative biases, UdopEncoderModel does
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
        body_of=sibling.architecture,
        tying=Tying.HEADLESS,
        input_embedding=rename(sibling.input_embedding) if sibling.input_embedding else None,
        output_head=None,
        output_biases=(),
        bias_is_row=False,
        groups=tuple(groups),
        renames=tuple((rename(stored), rename(memory)) for stored, memory in sibling.renames),
        truth="F" * len(sibling.truth),
        misfit=sibling.tying is Tying.NEVER,
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
        input_embedding=embedding,
        output_head=head,
        output_biases=biases,
        bias_is_row=any(len(names[name]) == 2 for name in biases),
        groups=groups,
        truth="FTF",  # transformers 5: absent means false
        default_v4=True,  # transformers 4: absent means true
        convention=pattern.convention(embedding, head),
    )


def _vocabularies(config: Mapping[str, object]) -> Iterator[int]:
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


# Compose the record of a class whose text part the config selects, from the rows of both classes.
#
# Keys of a record in ``data/composites.json``:
#
# - ``parts``: one object for each nested config that selects a model.
# - ``measured``: the record of each model type for which the composition differs from the measurement.
#
# Keys of a part:
#
# - ``level``: its path in the config.
# - ``default``: the model type with which the class was measured.
# - ``kind``: ``causal``, ``seq2seq`` or both for a language model with a head; ``body`` if the class has the head.
# - ``file`` and ``memory``: the prefix of the part's names. ``file`` is null if the file has no such names.
# - ``role``: ``input`` if the part has only the input embedding, ``head`` if another part has the embedding.
#
# The record with the empty name is the header. It maps model types to classes and to input embeddings of bodies.
# ``files`` are the names of those embeddings in a file, where they differ; null if no rule gives the names.

_STATES = (None, True, False)  # order of the letters in ``truth``
Record = Mapping[str, Any]


def load(architecture: str, config: Mapping[str, object]) -> Family | None:
    """Return the family of a class in the table, with the text part that ``config`` selects.

    ``None`` if the table lacks the class, or the part in its config.
    """
    own = table.described(architecture, _type(config)) if architecture else None
    if own is None:
        return None
    for path, value, changes in table.exceptions("switch").get(architecture, ()):
        level, _, key = path.rpartition(".")
        if (nested(config, level) or {}).get(key) is value:
            own = {**own, **changes}
    composite = table.composite(architecture) or {"parts": ()}
    record: Record | None = own
    text = None
    for part in composite["parts"]:
        model_type = _model_type(config, part)
        if model_type != part["default"]:
            measured = composite.get("measured", {})
            record = measured.get(f"{part['level']}={model_type}") or composed(own, part, model_type)
        if record is None:
            return None
        own = record
        if part.get("role") != "input":
            name = "" if "body" in part["kind"] else text_class(part, model_type) or ""
            row = table.record(5, name) if name else None
            prefix = row["prefix"] if row is not None else ""
            text = Part(
                part["level"], model_type, name, prefix, part["file"] or "", usual=model_type == part["default"]
            )
    return table.family(architecture, own, text)


def subject(architecture: str, config: Mapping[str, object]) -> str:
    """Return in words what the table lacks: the class, or the class with the selected model type or text part."""
    composite = table.composite(architecture)
    chosen = ((part, _model_type(config, part)) for part in composite["parts"]) if composite is not None else ()
    unusual = next((model_type for part, model_type in chosen if model_type != part["default"]), None)
    name = f"the architecture {shown(architecture)}"
    if table.record(5, architecture) is not None and table.described(architecture, _type(config)) is None:
        return f"{name} {with_type(_type(config))}"
    return name if unusual is None else f"{name} with a text part of type {shown(unusual)}"


def _type(config: Mapping[str, object]) -> str:
    return str(config.get("model_type") or "")


def _model_type(config: Mapping[str, object], part: Record) -> str:
    nested = config.get(part["level"])
    named = nested.get("model_type") if isinstance(nested, Mapping) else None
    return named if isinstance(named, str) and named else str(part["default"])


def text_class(part: Record, model_type: str) -> str | None:
    """Return the class of a model type at this part. For a body, it is the main class of the type."""
    if "body" in part["kind"]:
        return table.main_class(model_type)
    classes = table.composites()
    return next((classes[kind][model_type] for kind in part["kind"] if model_type in classes[kind]), None)


def composed(own: Record, part: Record, model_type: str) -> Record | None:
    """Return the record of a class with a part of ``model_type``, or ``None`` if the table has no such row."""
    name = text_class(part, model_type)
    row = table.record(5, name) if name else None
    if part["file"] is None:
        return None
    if "body" not in part["kind"]:
        return _with_model(own, part, row) if row is not None else None
    embedding = table.composites()["bodies"].get(model_type)
    stored = table.composites()["files"].get(model_type, embedding)
    if embedding is None or stored is None:
        return None
    if part.get("role") == "input":
        return {**own, "in": part["file"] + embedding} if stored == embedding else None
    # The part has no head: the class has head and flags, the part has tables. It calls its input embedding
    # ``embedding``, and a file ``stored``.
    start = part["file"]
    tied_to = next((group[1].removeprefix(start) for group in own["groups"] if own["out"] in group[2]), None)
    fits = tied_to == embedding
    tables = [name for name in _tables(row, embedding) if fits]
    memory = dict(map(tuple, own["renames"]))
    in_memory = list(dict.fromkeys([embedding, *tables]))
    names = [start + (stored if table == embedding else table) for table in in_memory]
    renames = [[name, part["memory"] + table] for name, table in zip(names, in_memory, strict=True)]
    renames += [[own["out"], memory[own["out"]]]] if own["out"] in memory else []
    truth = _truth(own, row, fits)
    gated = [group[3] for group in own["groups"] if own["out"] in group[2]]
    return {
        **{key: own[key] for key in ("type", "prefix", "levels", "out", "bias", "row", "means")},
        "in": names[0],
        "groups": [["word_embedding", names[0], [*names[1:], own["out"]], *gated]] if fits else [],
        "renames": sorted([old, new] for old, new in renames if old != new),
        "truth": truth,
        "tying": own["tying"] if "T" in truth else "never",
    }


def _with_model(own: Record, part: Record, row: Record) -> Record:
    """Return the record if the part is a language model: its row with the prefix. Only its config decides."""

    def name(old: str | None) -> str | None:
        return None if old is None else part["file"] + old

    mentioned = {row["in"], row["out"], *row["bias"], *(n for group in row["groups"] for n in (group[1], *group[2]))}
    memory = dict(row["renames"])
    renames = [(name(old), part["memory"] + memory.get(old, old)) for old in sorted(mentioned - {None})]
    keeps_input = part.get("role") == "head"
    return {
        **{key: value for key, value in own.items() if key in ("type", "prefix", "levels")},
        "in": own["in"] if keeps_input else name(row["in"]),
        "out": name(row["out"]),
        "bias": [name(bias) for bias in row["bias"]],
        "row": row["row"],
        "groups": sorted(
            [role, name(canonical), [name(n) for n in names], gated] for role, canonical, names, gated in row["groups"]
        ),
        "renames": sorted([old, new] for old, new in renames if old != new),
        "truth": row["truth"] * 3 if len(row["truth"]) == len(_STATES) else row["truth"],
        "tying": row["tying"],
        "means": row["means"],
        **{key: row[key] for key in ("unflippable", "misfit") if key in row},
    }


def _tables(row: Record | None, embedding: str) -> list[str]:
    """Return the other tables that the body ties to the input embedding, without the base model's prefix."""
    if row is None:
        return []
    start = f"{row['prefix']}."
    words = ([group[1], *group[2]] for group in row["groups"] if group[0] == "word_embedding")
    names = [[name.removeprefix(start) for name in group if name != row["out"]] for group in words]
    return next(([name for name in group if name != embedding] for group in names if embedding in group), [])


def _truth(own: Record, row: Record | None, fits: bool) -> str:
    """Return the truth of the class, with the default of the selected part's config.

    The letter is E if the part lacks the table to tie: transformers then cannot build the class.
    """
    truth: str = own["truth"]
    if len(truth) == len(_STATES):
        return truth if fits else truth.replace("T", "E")
    if row is not None:
        default = row["truth"][:1]
        columns = {"T": 1, "F": 2}
        truth = "".join(truth[3 * top + (nested or columns.get(default, 0))] for top in range(3) for nested in range(3))
    return truth if fits else truth.replace("T", "E")


def built_without_values(config: Mapping[str, object], names: Iterable[str]) -> str:
    """Return the class that transformers builds from the `model_type`, if no tensor has the name of its embedding."""
    built = table.main_class(str(config.get("model_type"))) or ""
    family = table.load(built)
    leaf = ".".join(((family and family.input_embedding) or "").split(".")[-2:])
    return "" if not leaf or "auto_map" in config or any(name.endswith(leaf) for name in names) else built
