"""Where transformers 5 refuses a flag, and where nobody can say what it makes of a model's names."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.flag_levels import FLAG
from tieconv.checkpoint.family import FlagMeaning, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import head_pair, listed
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.loaders.transformers.names5 import RELEASE, mistakable, twice
from tieconv.text import shown


def flag_refusals(inspection: Inspection) -> Iterator[Refusal]:
    """Yield the refusal of a flag that is neither true nor false, at a level that is read."""
    family = inspection.family
    levels = [f"{level}.{FLAG}".lstrip(".") for level in ("", *family.levels)]
    for entry in inspection.config.declared:
        if entry.path not in levels or not entry.present or isinstance(entry.value, bool):
            continue
        if entry.path == FLAG and family.model_type not in release_tables.names(RELEASE, "takes any flag"):
            sentence = f"{entry.path} in the config is neither true nor false, which transformers 5 refuses"
            yield Refusal(Cause.FLAG, sentence)
        elif family.tying is Tying.CAN:
            yield unknown(f"{shown(entry.path)} in the config is neither true nor false")


def unclear_names(inspection: Inspection) -> Iterator[Refusal]:
    """Yield why it is not clear which tensor a name is."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    doubled = twice(family, stored)
    if doubled:
        yield unknown(f"{listed(doubled)} are names of one tensor, of which one is taken")
    mistaken = mistakable(family, stored)
    if mistaken is not None:
        missing, name = map(shown, mistaken)
        yield unknown(f"{missing} is not stored, and {name} may be taken for it: renamings follow each other there")


def remark(inspection: Inspection) -> str:
    """Return what else a head means that is a parameter of its own."""
    pair = head_pair(inspection)
    head = "" if pair is None else pair.head
    tie = next((tie for tie in inspection.ties if any(member.name == head for member in tie.members)), None)
    if tie is not None and tie.declared:
        return "they count as tied, but their values differ, which is warned of"
    return "the logits are not scaled" if inspection.family.meaning_v5 is FlagMeaning.SCALES else ""
