"""Say whether the loaded model is tied, and why: for the files at hand, not only for the config."""

from __future__ import annotations

import json

from tieconv.architectures import unexplained
from tieconv.architectures.flag_levels import FLAG, cannot_build, levels, reading_v4
from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.inspection import Declared, Inspection, State
from tieconv.checkpoint.quantised import lists_float_head
from tieconv.checkpoint.tie_group import Member
from tieconv.text import shown

_DIFFERENT = frozenset({State.TRANSPOSED, State.SCALED, State.NEAR, State.DISTINCT})


def effect(inspection: Inspection) -> str:
    """Return whether transformers ties the head, and why, in one or two sentences."""
    family, why = inspection.family, inspection.config.why
    if cannot_build(inspection):
        name = shown(family.input_embedding or "its embedding")
        return f"Not loaded: transformers 5 cannot build {family.architecture} with this flag. Its embedding is {name}."
    if inspection.quantised is not None:
        from tieconv.inspection.quantised.quantised_effect import quantised_effect

        unclear = quantised_effect(inspection, inspection.quantised)
        if unclear:
            return unclear
    if lists_float_head(inspection):
        return "Unknown: the config says that the output head is quantised, but no codes are stored for it."
    names = unexplained(inspection)
    if names:
        return f"Unknown: {shown(names[0])} may be part of the head or embedding, and tieconv does not know its form."
    if family.knowledge is not Knowledge.TABLE:
        lacks = family.output_head is None and inspection.config.declared and not inspection.config.effective
        return "Unknown: the config says untied, and tieconv found no output head." if lacks else why
    refused = next((entry for entry in inspection.config.declared if _not_boolean(entry)), None)
    if refused is not None and family.tying is Tying.CAN:
        flag = f"{shown(refused.path)} is {shown(json.dumps(refused.value), 60)}"
        return f"Unknown: {flag}, which is not a boolean, and loaders disagree about its meaning."
    transformers4_verdict = reading_v4(inspection)
    head = _differing_head(inspection) if inspection.config.effective else None
    if head is not None:
        reason = f"{shown(head.name)} is stored and differs from the embedding."
        in_4 = " Tied in transformers 4, which discards the stored head." if transformers4_verdict else ""
        return f"Untied{' in transformers 5' if in_4 else ''}: {reason}{in_4}"
    if (
        family.tying is not Tying.CAN
        or transformers4_verdict in (None, inspection.config.effective)
        or not levels(inspection)
    ):
        return why
    verdict, _, reason = why.partition(": ")
    return f"{verdict} in transformers 5: {reason} {_in_transformers4(inspection)}."


def _not_boolean(entry: Declared) -> bool:
    return entry.present and not isinstance(entry.value, bool)


def _differing_head(inspection: Inspection) -> Member | None:
    """Return the stored head if its values differ from those of the embedding: transformers 5 then keeps both."""
    head = inspection.head.output_head
    members = (member for tie in inspection.ties for member in tie.members)
    head_member = next((member for member in members if head is not None and member.name == head.name), None)
    return head_member if head_member is not None and head_member.state in _DIFFERENT else None


def _in_transformers4(inspection: Inspection) -> str:
    """Return whether transformers 4 ties, and the flag that it reads."""
    level = inspection.family.level_v4 or ""
    value = levels(inspection).get(level)
    verdict = "Tied" if reading_v4(inspection) else "Untied"
    says = "is absent" if value is None else f"is {str(value).lower()}"
    return f"{verdict} in transformers 4: {f'{level}.{FLAG}'.lstrip('.')} {says}"
