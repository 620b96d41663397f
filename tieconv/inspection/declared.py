"""Read what the config declares about tying, at every level, and derive the result."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from tieconv.architectures import effective, find, gate, unexplained
from tieconv.architectures.effective_flag import FLAG, cannot_build, foreign_flag, levels, nested, own_flag, reading_v4
from tieconv.architectures.lookup import WHY, is_draft, with_names
from tieconv.architectures.stored_names import in_training, locate, mlx_named, without_wrappers
from tieconv.checkpoint.family import Family, Knowledge, Role, TieGroup, Tying
from tieconv.checkpoint.inspection import ConfigView, Declared, Inspection, State, lists_float_head
from tieconv.checkpoint.model_files import Checkpoint
from tieconv.checkpoint.quantised_matrix import LEAVES
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.weight_file import FLOATS
from tieconv.errors import RefusedError, UnreadableError
from tieconv.text import Hint, call, close, shown

MAX_FLAGS = 1_000
"""Levels of a config that may declare the flag. Models with several parts have fewer than ten."""
_ABSENT = object()


def view_config(config: Mapping[str, object], family: Family) -> ConfigView:
    """Return the declared flags (top level first) and the tying that transformers 5 derives from them."""
    foreign = foreign_flag(config)
    if foreign is not None:
        return _foreign_view(config, *foreign)
    declared = tuple(_declared(config, family)) if config else ()
    levels = {entry.path.removesuffix(FLAG).rstrip("."): _as_flag(entry.value) for entry in declared}
    tied, why = effective(family, levels)
    architectures = config.get("architectures")
    names = tuple(str(name) for name in architectures if name) if isinstance(architectures, list) else ()
    known = family.knowledge is Knowledge.TABLE or any(value is not None for value in levels.values())
    if not config and not known:
        why = "Unknown: no config names the model's class."
    return ConfigView(str(config.get("model_type", "")), names, declared, tied, why, known)


def _foreign_view(config: Mapping[str, object], key: str, default: bool) -> ConfigView:
    """Return what the config of another program says under its own ``key``."""
    value = config.get(key, default)
    tied = bool(value)
    states = f"is {str(tied).lower()}" if key in config else f"is absent, which means {str(default).lower()}"
    declared = (Declared(key, value if key in config else None, key in config),)
    return ConfigView("", (), declared, tied, f"{'Tied' if tied else 'Untied'}: {key} {states}.")


def with_shared_storage(config: ConfigView, ties: tuple[Tie, ...]) -> ConfigView:
    """Return ``config`` with shared storage as the reason, if nothing else shows whether the model ties."""
    tie = next((tie for tie in ties if tie.role is Role.WORD_EMBEDDING), None)
    shared = tie and next((member for member in tie.members if member.state is State.ALIASED), None)
    if config.known or tie is None or not shared:
        return config
    pair = f"{shown(tie.canonical)} and {shown(shared.name)}"
    why = f"Unknown: {pair} share one storage, so the saved model was tied. tieconv does not know the class."
    return replace(config, why=why)


def gated(config: ConfigView, family: Family) -> bool:
    """Return whether the config ties the groups that its flag decides."""
    if not config.model_type and any(not entry.path.endswith(FLAG) for entry in config.declared):
        return config.effective  # the flag of another program
    return gate(family, {entry.path.removesuffix(FLAG).rstrip("."): _as_flag(entry.value) for entry in config.declared})


def _declared(config: Mapping[str, object], family: Family) -> Iterator[Declared]:
    flags = dict(_flags(config, "", 0))
    if len(flags) > MAX_FLAGS:
        problem = f"config.json declares {FLAG} at {len(flags):,} levels, but tieconv reads at most {MAX_FLAGS:,}"
        raise UnreadableError(problem, "remove the levels that no loader reads", "config.flags")
    for level in ("", *family.levels):
        path = f"{level}.{FLAG}" if level else FLAG
        if path not in flags and nested(config, level) is not None:
            flags[path] = _ABSENT
    for path in sorted(flags, key=lambda path: (path.count("."), path)):
        present = flags[path] is not _ABSENT
        yield Declared(path, flags[path] if present else None, present)


def _flags(config: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, object]]:
    flag = own_flag(config)
    if flag is not None:
        yield f"{prefix}{FLAG}", config[flag]
    for key, value in config.items():
        if key == FLAG and flag is None:
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and depth < 6 and key.isidentifier():  # an attribute, as loaders have it
            yield from _flags(value, f"{prefix}{key}.", depth + 1)


def _as_flag(value: object) -> bool | None:
    """Return the flag as Python readers take it: absent stays absent, any other value by its truth value."""
    return None if value is None else bool(value)


_PART = f"(?:{'|'.join(map(re.escape, LEAVES))})$"
"""Finds a part of a quantised matrix among names, one a line. A model may have 500,000 names, so it is one search."""
_EMBEDDING, _HEAD, _BIAS = "token_embd.weight", "output.weight", "output.bias"


def _shared_names(checkpoint: Checkpoint) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names that share one storage; empty for a format without storages."""
    if not any(file.storages for file in checkpoint.files):
        return ()
    from tieconv.inspection.storage import shared_names

    return shared_names(checkpoint.tensors)


def understand(checkpoint: Checkpoint, embed: str | None, head: str | None) -> tuple[Family, ConfigView]:
    """Return the family, and what the config implies for it; the user gave the names ``embed`` and ``head``."""
    if checkpoint.format == "gguf":
        return _gguf(checkpoint)
    if checkpoint.adapter is not None:
        why = "Unknown: the base model decides whether the pair is tied."
        return Family("", "", Knowledge.TABLE, Tying.HEADLESS), ConfigView("", (), (), False, why, known=False)
    if is_draft(checkpoint.config_values, checkpoint.tensors):
        drafted = view_config(checkpoint.config_values, Family("", "", Knowledge.TABLE, Tying.HEADLESS))
        architecture = drafted.architectures[0] if drafted.architectures else ""
        family = Family(architecture, drafted.model_type, Knowledge.TABLE, Tying.HEADLESS)
        return family, replace(drafted, why=WHY)
    shapes = {name: record.shape for name, record in checkpoint.tensors.items()}
    family = find(checkpoint.config_values, shapes, _shared_names(checkpoint))
    if family.knowledge is not Knowledge.TABLE and re.search(_PART, "\n".join(shapes), re.MULTILINE):
        from tieconv.inspection.quantised.survey_quantised import logical_shapes  # most models are not quantised

        family = find(checkpoint.config_values, {**shapes, **logical_shapes(checkpoint)}, _shared_names(checkpoint))
    if embed and not checkpoint.unread:
        _check_stored(checkpoint, family, embed)
    if embed or head:
        family = with_names(family, embed, head)
    elif checkpoint.table:
        family = in_training(family, shapes, checkpoint.table.starts)
    elif checkpoint.mlx and family.knowledge is Knowledge.TABLE:
        family = mlx_named(family, shapes)
    return family, view_config(checkpoint.config_values, family)


def _check_stored(checkpoint: Checkpoint, family: Family, embed: str) -> None:
    """Raise `RefusedError` if no tensor, and no part of a quantised one, has the name that the user gave."""
    start = f"{embed.removesuffix('.weight')}."
    bare = map(without_wrappers, checkpoint.tensors)
    if locate(family, embed, checkpoint.tensors) or any(n.endswith(embed) or n.startswith(start) for n in bare):
        return
    similar = close(embed, checkpoint.tensors)
    hint = Hint("see which tensors are stored: ", call("inspect", checkpoint.source))
    meant = f"did you mean {shown(similar[0])}?" if similar else hint
    raise RefusedError(f"{shown(checkpoint.source)} stores no tensor {shown(embed)}", meant, "names.embed")


_OF_MODEL = re.compile(r"output\.weight$|blk\.\d+\.[a-z_.]*\.(weight|bias)$")
"""A name in a language model. A projector has `v.blk.`, an adapter a suffix, and a control vector other names."""


def _gguf(checkpoint: Checkpoint) -> tuple[Family, ConfigView]:
    """Return family and config of a GGUF file: llama.cpp has no flag.

    llama.cpp uses the token embedding as the head if ``output.weight`` is absent. Some architectures need it: TIE003
    reports these. Without a token embedding a file ties nothing. TIE006 reports a model without it, and no projector or
    adapter. Source: llama-model.cpp (``TENSOR_NOT_REQUIRED``, then ``TENSOR_DUPLICATED``).
    """
    metadata = checkpoint.files[0].metadata or {}
    architecture = metadata.get("general.architecture", "")
    names = checkpoint.tensors
    headless = Family(architecture, architecture, Knowledge.TABLE, Tying.HEADLESS)
    if not names:
        why = "No output head: the file has a vocabulary but no tensors."
        return headless, ConfigView(architecture, (), (), False, why, known=False)
    is_model = metadata.get("general.type", "model") == "model" and any(map(_OF_MODEL.match, names))
    named = replace(headless, input_embedding=_EMBEDDING, output_head=_HEAD)
    if _EMBEDDING not in names:
        view = ConfigView(architecture, (), (), False, f"No input embedding: the file has no {_EMBEDDING}.")
        return replace(named, tying=Tying.NEVER) if is_model else headless, view
    tied = _HEAD not in names
    why = (
        f"Tied: {_HEAD} is absent, and llama.cpp then uses {_EMBEDDING} as the head."
        if tied
        else f"Untied: llama.cpp uses {_HEAD} as the head."
    )
    groups = (TieGroup(Role.WORD_EMBEDDING, _EMBEDDING, (_HEAD,), gated=not tied),)
    biases, tying = (_BIAS,) if (_BIAS in names) else (), Tying.ALWAYS if tied else Tying.CAN
    named = replace(named, output_biases=biases, tying=tying, groups=groups)
    return named, ConfigView(architecture, (), (), tied, why)


_DIFFERENT = frozenset({State.TRANSPOSED, State.SCALED, State.NEAR, State.DISTINCT})


def effect(inspection: Inspection) -> str:
    """Return whether transformers ties the head, and why, in one or two sentences."""
    family, why = inspection.family, inspection.config.why
    if cannot_build(inspection):
        name = shown(family.input_embedding or "its embedding")
        return f"Not loaded: transformers 5 cannot build {family.architecture} with this flag. Its embedding is {name}."
    if inspection.quantised is not None:
        from tieconv.inspection.quantised.survey_quantised import quantised_effect

        if unclear := quantised_effect(inspection, inspection.quantised):
            return unclear
    if lists_float_head(inspection) and family.output_head:
        return "Unknown: the config says that the output head is quantised, but no codes are stored for it."
    if names := unexplained(inspection):
        return f"Unknown: {shown(names[0])} may be part of the head or embedding, and tieconv does not know its form."
    if family.knowledge is not Knowledge.TABLE:
        lacks = family.output_head is None and inspection.config.declared and not inspection.config.effective
        return "Unknown: the config says untied, and tieconv found no output head." if lacks else why
    present = (entry for entry in inspection.config.declared if entry.present)
    refused = next((entry for entry in present if not isinstance(entry.value, bool)), None)
    if refused is not None and family.tying is Tying.CAN:
        flag = f"{shown(refused.path)} is {shown(json.dumps(refused.value), 60)}"
        return f"Unknown: {flag}, which is not a boolean, and loaders disagree about its meaning."
    transformers4_verdict = reading_v4(inspection)
    head = _head_member(inspection) if inspection.config.effective else None
    if head is not None and head.state is State.UNREAD:
        return f"Unknown: {shown(head.name)} is stored, and tieconv did not compare it with the embedding."
    if head is not None and head.relation.sign_of_zero_only:
        tied = "Tied in transformers 5" if transformers4_verdict is False else "Tied"
        name = shown(head.name)
        return f"{tied}: {name} differs from the embedding only in the sign of zeros. transformers 5.0 keeps both."
    if head is not None and (head.state in _DIFFERENT or head.relation.holds_nan):
        shape = inspection.checkpoint.tensors[head.name].shape
        turned = head.state is State.TRANSPOSED and shape != shape[::-1]
        if (turned or head.relation.shape_differs or head.relation.is_empty) and not family.misfit:
            return f"Not loaded: {shown(head.name)} has another shape than the embedding, which transformers refuses."
        differs = "holds a NaN, which differs from itself" if head.relation.holds_nan else "differs from the embedding"
        reason = f"{shown(head.name)} is stored and {differs}."
        in_4 = " Tied in transformers 4, which keeps one of the two." if transformers4_verdict else ""
        return f"Untied{' in transformers 5' if in_4 else ''}: {reason}{in_4}"
    if (
        family.tying is not Tying.CAN
        or transformers4_verdict in (None, inspection.config.effective)
        or not levels(inspection)
    ):
        return why
    verdict, _, reason = why.partition(": ")
    return f"{verdict} in transformers 5: {reason} {_in_transformers4(inspection)}."


def _head_member(inspection: Inspection) -> Member | None:
    """Return the stored head of a tied group. If its values differ, transformers 5 keeps both."""
    head = inspection.head.output_head
    members = (member for tie in inspection.ties for member in tie.members)
    return next((member for member in members if head is not None and member.name == head.name), None)


def _in_transformers4(inspection: Inspection) -> str:
    """Return whether transformers 4 ties, and the flag that it reads."""
    level = inspection.family.level_v4 or ""
    value = levels(inspection).get(level)
    verdict = "Tied" if reading_v4(inspection) else "Untied"
    says = "is absent" if value is None else f"is {str(value).lower()}"
    return f"{verdict} in transformers 4: {f'{level}.{FLAG}'.lstrip('.')} {says}"


# Find what loaders derive from the order of a model's stored tensors.
def same_order(a: Checkpoint, b: Checkpoint, names: Collection[str]) -> bool:
    """Return whether two models store ``names`` in one order, so that every loader reads them in one order."""
    return a.format == b.format and _among(a, names) == _among(b, names)


def type_may_change(a: Checkpoint, b: Checkpoint) -> tuple[str, ...]:
    """Return the types among which transformers 5 may choose differently for two models; empty if it does not."""
    types_a, types_b = _first_types(a), _first_types(b)
    types = tuple(sorted({*types_a, *types_b}))
    return types if len(types) > 1 and (types_a != types_b or a.format != b.format) else ()


def _among(checkpoint: Checkpoint, names: Collection[str]) -> list[str]:
    return [name for name in checkpoint.tensors if name in names]


def _first_types(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the types that transformers 5 may load every tensor in: the type of the first tensor that it reads.

    ``dtype="auto"``, its default, takes that type if the config sets none. safetensors reads the names of a file
    sorted, torch in the order of the file. Empty if the config sets a type.
    """
    config = checkpoint.config_values
    if not config or config.get("dtype") or config.get("torch_dtype"):
        return ()
    for file in sorted(checkpoint.files, key=lambda file: file.name):
        floats = [record for record in file.tensors if record.dtype in FLOATS]
        if floats:
            return floats[0].dtype, min(floats, key=lambda record: record.name).dtype
    return ()
