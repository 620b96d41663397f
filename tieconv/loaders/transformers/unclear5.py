"""Say when transformers 5 refuses a flag, and when tieconv makes no claim about names."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.architectures.effective_flag import FLAG
from tieconv.checkpoint.family import FlagMeaning, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import head_pair, listed
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.loaders.transformers.names5 import RELEASE, mistakable, twice
from tieconv.text import shown


def flag_refusals(inspection: Inspection, *, null: bool = True) -> Iterator[Refusal]:
    """Yield the refusal of a flag that is neither true nor false, at a level that transformers 5 reads.

    ``null`` says that the release refuses null too.
    """
    family = inspection.family
    levels = [f"{level}.{FLAG}".lstrip(".") for level in ("", *family.levels)]
    for entry in inspection.config.declared:
        if entry.path not in levels or not entry.present or isinstance(entry.value, bool):
            continue
        if entry.value is None and not null:
            continue
        if entry.path == FLAG and family.model_type not in release_tables.names(RELEASE, "takes any flag"):
            sentence = f"transformers 5 refuses the config: {entry.path} is neither true nor false"
            yield Refusal(Cause.FLAG, sentence)
        elif family.tying is Tying.CAN:
            yield unknown(f"{shown(entry.path)} in the config is neither true nor false")


def unclear_names(inspection: Inspection) -> Iterator[Refusal]:
    """Yield why tieconv cannot tell which parameter gets a stored tensor."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    doubled = twice(family, stored)
    if doubled:
        yield unknown(f"{listed(doubled)} are names of one parameter, and transformers 5 reads only one of them")
    mistaken = mistakable(family, stored)
    if mistaken is not None:
        missing, name = map(shown, mistaken)
        yield unknown(f"{missing} is not stored, and transformers 5 may rename {name} to it")


def remark(inspection: Inspection, *, compares: bool) -> str:
    """Return a remark about a head that is a separate parameter; often empty.

    ``compares`` says that the release compares the values. 5.0 to 5.3 only look at which names are stored.
    """
    pair = head_pair(inspection)
    head = "" if pair is None else pair.head
    tie = next((tie for tie in inspection.ties if any(member.name == head for member in tie.members)), None)
    if tie is not None and tie.declared and not compares:
        stored = len(tie.stored_members) > 1
        return "the config says tied, but both are stored, and transformers 5.0 does not compare them" if stored else ""
    if tie is not None and tie.declared:
        return "the config says tied, but their values differ, so transformers 5 warns"
    return "transformers 5 does not scale the logits" if inspection.family.meaning_v5 is FlagMeaning.SCALES else ""
