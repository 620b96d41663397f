"""What a plan does to the model in transformers 4 where that is not what it does in transformers 5."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from tieconv.architectures import locate
from tieconv.architectures.flag_levels import reading_v4
from tieconv.checkpoint.family import Role, TieGroup
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.transformers.ties4 import NO_VALUES, TIES_V4, source_name, sources
from tieconv.text import shown

_BUT = "not function-preserving in transformers 4, which"


def older_notes(inspection: Inspection, stored: Collection[str], tied: bool | None) -> Iterator[str]:
    """The notes of a plan after which ``stored`` is stored and the flag says ``tied`` (``None``: as before)."""
    before, family = reading_v4(inspection), inspection.family
    if before is None:
        return
    after = before if tied is None else tied
    if family.text_class in TIES_V4 and before is not after:
        yield f"{_BUT} ties the head of {shown(family.architecture)} while the flag is true"
    for group in family.groups:
        if group.role is not Role.WORD_EMBEDDING:
            continue
        had = _lacks_values(inspection, group, inspection.checkpoint.tensors, before)
        if not had and _lacks_values(inspection, group, stored, after):
            name = source_name(family, (group.canonical, *group.members))
            yield f"{_BUT} takes the tied values from {shown(name)} alone: without it the model has none"


def _lacks_values(inspection: Inspection, group: TieGroup, stored: Collection[str], tied: bool) -> bool:
    """Whether transformers 4 leaves names of the group without values."""
    family, names = inspection.family, (group.canonical, *group.members)
    held = [locate(family, name, stored) is not None for name in names]
    tied = tied if family.output_head in names else tied or not group.gated
    return NO_VALUES in sources(family, names, held, "4.57", tied=tied)
