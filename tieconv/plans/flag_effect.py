"""Where flipping the flag changes the forward pass, and whether the weights can take it up exactly."""

from __future__ import annotations

from tieconv.architectures.flag_levels import DERIVED_KEY, FLAG, levels_read, reading_v4, text_config
from tieconv.checkpoint.family import FlagMeaning, Knowledge, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.phrases import is_apart
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.loaders.load import TRANSFORMERS_4, load, releases
from tieconv.plans.build import ALIKE
from tieconv.plans.guards import again, refuse
from tieconv.plans.meaning import Note
from tieconv.text import shown


def reads_false(inspection: Inspection) -> bool:
    """Whether some loader takes the flag as false, although the class may tie all the same (T5 in 5.x)."""
    levels = {f"{level}.{FLAG}".lstrip(".") for level in levels_read(inspection.family)}
    declared = [entry for entry in inspection.config.declared if entry.present]
    known = inspection.family.knowledge is Knowledge.TABLE
    values = [bool(entry.value) for entry in declared if not known or entry.path in levels]  # a null reads as false
    return False in values or (not values and inspection.family.default_v4 is False)


def scaling_exponent(inspection: Inspection, verb: str) -> int:
    """The power of two by which the head changes when the flag goes from true to false.

    0 where the flag is about storage alone. For T5 and its kin logits are multiplied by d_model**-0.5 exactly
    while the flag is true, so an untied head must hold E × d_model**-0.5; that is exact for d_model = 4**k.
    Refuses where it is not, or where transformers 4 and 5 want different heads. Source: the modelling code of
    T5, LongT5, Pop2Piano and Switch in transformers 4.57 and 5.23.
    """
    family = inspection.family
    meanings = {family.meaning_v5} | ({family.meaning_v4} if family.default_v4 is not None else set())
    if meanings == {FlagMeaning.STORAGE}:
        return 0
    label = family.architecture
    hint = again(inspection, verb, "--keep-flag") if verb == "untie" else "keep the head as it is"
    if FlagMeaning.STORAGE in meanings:
        refuse(
            f"{label} scales its logits by the flag in one transformers major version and not in the other, "
            f"so no single head is right in both",
            hint,
            "flag.forward",
        )
    if _derived_disagrees(inspection, verb):
        refuse(
            f"the config's {DERIVED_KEY}, which transformers 5 obeys, and its tie flag, which transformers 4 obeys, "
            "say different things, so the two compute different logits already",
            hint,
            "flag.forward",
        )
    width = text_config(inspection).get("d_model")
    exponent = _half_log2(width) if isinstance(width, int) else None
    if exponent is None:
        refuse(
            f"{label} multiplies its logits by d_model**-0.5 while the flag is true; "
            f"with d_model {shown(width)} the factor is not a power of two, so the head cannot take it exactly",
            hint,
            "flag.forward",
        )
    return -exponent


def apart_note(inspection: Inspection, tie: Tie, member: Member) -> tuple[Note, ...]:
    """What transformers 5 and 4 made of a stored member that differs, where one reads the config as tied."""
    if not tie.declared and not (tie.gated and reading_v4(inspection)):
        return ()
    known = TRANSFORMERS_4 in releases(inspection)
    discarded = known and load(inspection, TRANSFORMERS_4).source(member.name) != member.name
    says = "the config says tied" if tie.declared else "transformers 4 reads the config as tied"
    fact = f"{shown(member.name)} was stored apart although {says} ({is_apart(member)})"
    discards = "; transformers 4 discards it" if discarded else ""
    text = f"{fact}: it stays as stored, which is how transformers 5 reads it{discards}"
    return (Note(text, (member.name,), (TRANSFORMERS_4,)),)


def guard_flip(inspection: Inspection, verb: str) -> None:
    """Refuse to flip the flag of a class that ties more than the table can list, or differently shaped tables."""
    family = inspection.family
    if family.unflippable:
        change = "store its head as a tensor of its own" if family.misfit else "have its tie flag changed"
        refuse(
            f"{family.architecture} cannot {change}: {family.unflippable}",
            _instead(inspection, verb),
            "tie.unflippable",
        )


def always_tied(inspection: Inspection) -> str:
    """The sentence that a false flag unties nothing, for a class that ties an equal or missing head; else empty."""
    family, head = inspection.family, inspection.head.output_head
    own = (
        member.stored and member.state not in ALIKE
        for tie in inspection.ties
        for member in tie.members
        if head is not None and member.name == head.name
    )
    if family.tying is not Tying.ALWAYS or any(own):
        return ""
    return f"{family.architecture} ties its head whatever the config says, so a false flag unties nothing"


def _instead(inspection: Inspection, verb: str) -> str:
    if verb != "untie":
        return "keep it untied"
    if inspection.family.misfit:
        return "keep it tied: loaders refuse the table under the head's name"
    return f"write the head out and leave the flag: {again(inspection, 'untie', '--keep-flag')}"


def _derived_disagrees(inspection: Inspection, verb: str) -> bool:
    """Whether the key that transformers 5 derives from the flag is there and says something else than the flag."""
    config = text_config(inspection)
    return DERIVED_KEY in config and config[DERIVED_KEY] is not (verb == "untie")


def _half_log2(width: int) -> int | None:
    """k where ``width`` = 4**k."""
    exponent = width.bit_length() - 1
    return exponent // 2 if width > 0 and width == 1 << exponent and exponent % 2 == 0 else None
