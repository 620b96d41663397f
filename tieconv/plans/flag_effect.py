"""Find out if a new flag value changes the forward pass, and if the weights can compensate for it exactly."""

from __future__ import annotations

from tieconv.architectures.effective_flag import DERIVED_KEY, FLAG, levels_read, reading_v4, scales_v5, text_config
from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Tying
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.phrases import difference_clause
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.load import TRANSFORMERS_4, load, releases
from tieconv.plans.build import has_own_head
from tieconv.plans.guards import again, refuse
from tieconv.plans.meaning import Note
from tieconv.text import Hint, shown


def reads_false(inspection: Inspection) -> bool:
    """Return whether a loader reads the flag as false, even if the class then ties anyway (T5 in 5.x)."""
    levels = {f"{level}.{FLAG}".lstrip(".") for level in levels_read(inspection.family)}
    declared = [entry for entry in inspection.config.declared if entry.present]
    known = inspection.family.knowledge is Knowledge.TABLE
    values = [bool(entry.value) for entry in declared if not known or entry.path in levels]  # a null reads as false
    return False in values or (not values and inspection.family.default_v4 is False)


def scales(family: Family) -> bool:
    """Return whether the flag scales the logits in a major version of transformers that has the class."""
    return _meanings(family) != {FlagMeaning.STORAGE}


def _meanings(family: Family) -> set[FlagMeaning]:
    return {family.meaning_v5} | ({family.meaning_v4} if family.default_v4 is not None else set())


def scaling_exponent(inspection: Inspection, verb: str) -> int:
    """Return the power of two by which the head must change when the flag changes from true to false.

    The exponent is 0 if the flag only decides what is stored. T5 and its relatives multiply the logits by d_model**-0.5
    while the flag is true. So an untied head must hold E × d_model**-0.5, which is exact for d_model = 4**k.
    Raises `RefusedError` for another d_model, or if transformers 4 and 5 need different heads. Source: the modelling
    code of T5, LongT5, Pop2Piano and Switch in transformers 4.57 and 5.23. The exponent is also 0 if transformers 5
    does not scale the logits already: untied, transformers 4 computes the same.
    """
    family = inspection.family
    if verb == "untie" and scales_v5(inspection) is False:
        return 0
    if not scales(family):
        return 0
    label = family.architecture
    hint = again(inspection, verb, keep_flag=True) if verb == "untie" else "do not change the head"
    if verb == "untie" and has_own_head(inspection):
        hint = keep_untied(inspection)
    if FlagMeaning.STORAGE in _meanings(family):
        problem = f"{label} scales its logits by the flag in one transformers major version only"
        refuse(f"{problem}, so no one head fits both", hint, "flag.forward")
    # Whether the config has the key that transformers 5 derives from the flag, with the opposite value.
    config = text_config(inspection)
    if DERIVED_KEY in config and config[DERIVED_KEY] is not (verb == "untie"):
        problem = f"{DERIVED_KEY} (for transformers 5) contradicts the tie flag (for transformers 4)"
        if verb == "retie":
            hint = Hint("to compute what transformers 5 does: ", again(inspection, "set-tie true"))
        refuse(f"{problem}, so the two already compute different logits", hint, "flag.forward")
    width = text_config(inspection).get("d_model")
    exponent = _half_log2(width) if isinstance(width, int) else None
    if exponent is None:
        problem = f"the head of {label} cannot be scaled exactly"
        refuse(f"{problem}: d_model**-0.5 is not a power of two for d_model {shown(width)}", hint, "flag.forward")
    return -exponent


def apart_note(inspection: Inspection, tie: Tie, member: Member, *, keep_flag: bool = False) -> tuple[Note, ...]:
    """Return the note about a stored member that differs, if transformers 4 or 5 reads the config as tied.

    The note describes the model as the plan leaves it. Without ``keep_flag`` the new config says untied.
    """
    if not tie.declared and not (tie.gated and reading_v4(inspection)):
        return ()
    differs = "is not the embedding" if member.relation.is_lossless_cast else "differs from the embedding"
    fact = f"the stored {shown(member.name)} {differs} ({difference_clause(member)})"
    if evidence.misshapen(inspection) == member.name:
        return (
            Note(f"{fact}. It stays as stored, and transformers refuses its shape", (member.name,), (TRANSFORMERS_4,)),
        )
    known = TRANSFORMERS_4 in releases(inspection)
    discarded = known and load(inspection, TRANSFORMERS_4).source(member.name) != member.name
    ignored = keep_flag or inspection.family.text_type in release_tables.names("transformers-4.57", "always tied")
    old = ". transformers 4.57 ignores it" if ignored else ". With the new config, transformers 4 uses it too"
    text = f"{fact}. It stays as stored, and transformers 5 uses it{old * discarded}"
    return (Note(text, (member.name,), (TRANSFORMERS_4,)),)


def guard_flip(inspection: Inspection, verb: str) -> None:
    """Refuse to change the flag of a class with `Family.unflippable`."""
    family = inspection.family
    if family.unflippable:
        change = "store its head as a separate tensor" if family.misfit else "have its tie flag changed"
        problem = f"{family.architecture} cannot {change}: {family.unflippable}"
        refuse(problem, _instead(inspection, verb), "tie.unflippable")


def always_tied(inspection: Inspection) -> str:
    """Return why a false flag has no effect for a class that always ties. Else return an empty string.

    The class ties a head that is absent or equal to the embedding; a head with other values stays untied. The flag has
    an effect in transformers 4 if only transformers 4 scales the logits.
    """
    family = inspection.family
    if family.tying is not Tying.ALWAYS or has_own_head(inspection) or scales_v5(inspection) is False:
        return ""
    return f"{family.architecture} ties its head whatever the config says, so a false flag has no effect"


def keep_untied(inspection: Inspection) -> Hint:
    """Return how to keep a head that differs. Only the user knows whether it was trained with scaled logits."""
    head = inspection.head.output_head
    if head is not None and scales(inspection.family) and has_own_head(inspection):
        if any(tie.gated and not member.stored for tie in inspection.ties for member in tie.members):
            return Hint("first store the names that are absent: ", again(inspection, "untie", keep_flag=True))
        accepted = again(inspection, "set-tie false", force=True)
        return Hint(f"if {shown(head.name)} was trained with the flag false, set it: ", accepted)
    return Hint("keep them untied with: ", again(inspection, "untie"))


def _instead(inspection: Inspection, verb: str) -> str:
    if verb != "untie":
        return "keep the model untied"
    if inspection.family.misfit:
        return "keep the model tied: loaders refuse the embedding under the head's name"
    return Hint("store the head and keep the flag: ", again(inspection, "untie", keep_flag=True))


def _half_log2(width: int) -> int | None:
    """Return k if ``width`` = 4**k, else ``None``."""
    exponent = width.bit_length() - 1
    return exponent // 2 if width > 0 and width == 1 << exponent and exponent % 2 == 0 else None
