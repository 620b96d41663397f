"""The remedy commands of findings. A remedy is a command that its planner accepts for this model."""

from __future__ import annotations

from pathlib import PurePath

from tieconv.architectures.effective_flag import is_foreign, scales_v5
from tieconv.architectures.stored_names import unexplained, unwrapping
from tieconv.checkpoint.family import FlagMeaning, Knowledge, Role, Tying
from tieconv.checkpoint.finding import Action, Remedy
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import (
    BLOCKING,
    NOT_ALONE,
    TRAINING,
    TWO_FORMATS,
    Checkpoint,
    Layout,
    unlisted_parts,
)
from tieconv.checkpoint.tie_group import Member, Tie
from tieconv.checkpoint.weight_file import FLOATS
from tieconv.checks import EMA, evidence
from tieconv.loaders.llama_cpp import TIES, head_rule
from tieconv.text import shown

_INDEXED = ("safetensors", "torch")
"""Formats that have shards and an index."""


def untie(inspection: Inspection, *, safe: bool, **options: object) -> Remedy | None:
    """Return `tieconv untie`, or ``None`` if it would refuse."""
    for tie in inspection.ties:
        for member in tie.members:
            empty = evidence.is_empty(inspection, member.name)
            if empty or member.state is State.TRANSPOSED or evidence.shapes_differ(inspection, tie, member):
                return None
    flips = inspection.config.effective and not evidence.unheeded_false(inspection)
    free = flag_is_storage(inspection) or scales_v5(inspection) is False  # transformers 5 computes the same after it
    if flips and not options.get("keep_flag") and not free:
        return None
    return _remedy(inspection, "untie", safe=safe, **options)


def retie(inspection: Inspection, *, safe: bool, **options: object) -> Remedy | None:
    """Return `tieconv retie`, or ``None`` if it would refuse.

    It refuses copies that differ, and a flag that also scales the logits. It must be forced to drop the same values in
    another dtype. The same is true of a tied head with the first rows of the embedding.
    """
    if inspection.checkpoint.format == "gguf":
        checkpoint = inspection.checkpoint
        ties = head_rule(inspection.family.architecture) == TIES and not unequal(inspection)
        if _blocked(checkpoint) or not ties or checkpoint.layout is Layout.SHARDED:
            return None
        return _over_formats(checkpoint, "retie", checkpoint.source, safe=safe)
    differing = [member for tie in filter(is_merged, inspection.ties) for member in _unequal(tie)]
    flips = (
        not inspection.config.effective or evidence.unheeded_false(inspection) or evidence.levels_disagree(inspection)
    )
    lossless = all(
        member.relation.is_lossless_cast or (member.relation.is_row_prefix and not flips) for member in differing
    )
    if not lossless or (flips and not flag_is_storage(inspection)):
        return None
    if differing:
        options |= {"survivor": "embed", "force": True}
    return _remedy(inspection, "retie", safe=safe, **options)


def of_parts(inspection: Inspection, verb: str) -> Remedy | None:
    """Return a command for a quantised embedding and head; ``None`` if it would refuse the files or the class."""
    checkpoint, source = inspection.checkpoint, _source(inspection)
    known = inspection.family.knowledge is Knowledge.TABLE and not inspection.family.unflippable
    blocked = checkpoint.read_only or _blocked(checkpoint) or checkpoint.config is None
    if source is None or blocked or unexplained(inspection) or not known or not flag_is_storage(inspection):
        return None
    return _over_formats(checkpoint, verb, source, safe=False)


def set_untied(inspection: Inspection, *, safe: bool) -> Remedy | None:
    """Return `tieconv set-tie false` if every name is stored, else `tieconv untie`; ``None`` if both would refuse."""
    stored = all(member.stored for tie in inspection.ties if tie.gated for member in tie.members)
    if not flag_is_storage(inspection):
        # Only the user knows whether a head that differs was trained with scaled logits.
        transposed = any(m.state is State.TRANSPOSED for tie in inspection.ties for m in tie.members)
        if transposed or not unequal(inspection) or not all(tie.canonical_stored for tie in inspection.ties):
            return None
        verb, option = ("set-tie false", {"force": True}) if stored else ("untie", {"keep_flag": True})
        return _remedy(inspection, verb, safe=False, **option)
    if not stored or inspection.checkpoint.config is None:
        return untie(inspection, safe=safe)
    flags = evidence.levels(inspection).values()
    if flags and not any(flags) and not evidence.versions_differ(inspection):  # the config already says untied
        return None
    return _remedy(inspection, "set-tie false", safe=safe) if untie(inspection, safe=safe) else None


def set_scaled(inspection: Inspection) -> Remedy | None:
    """Return `tieconv set-tie true` if transformers 5 scales the logits already; ``None`` if it would lose a head."""
    if not scales_v5(inspection) or unequal(inspection):
        return None
    head = inspection.head.output_head
    return _remedy(inspection, "set-tie true", safe=False, **({"force": True} if head and head.stored else {}))


def bias(inspection: Inspection, verb: str, *, safe: bool, **options: object) -> Remedy | None:
    """Return `tieconv bias VERB`, or ``None`` if it would refuse."""
    return _remedy(inspection, f"bias {verb}", safe=safe, **options)


def resize(inspection: Inspection, *, safe: bool, **options: object) -> Remedy | None:
    """Return `tieconv resize`, or ``None`` if it would refuse.

    It refuses a model without config, quantised tables, and names that share a storage.
    """
    checkpoint, source = inspection.checkpoint, _source(inspection)
    blocked = checkpoint.read_only or _blocked(checkpoint)
    aliased = any(member.state is State.ALIASED for tie in inspection.ties for member in tie.members)
    if source is None or blocked or aliased or checkpoint.config is None or checkpoint.layout is Layout.FILE:
        return None
    return _over_formats(checkpoint, "resize", source, safe=safe, **options)


def reindex(inspection: Inspection, *, safe: bool, **options: object) -> Remedy | None:
    """Return `tieconv reindex`, or ``None`` if it would refuse: a shard is missing or torn, or two shards differ.

    Also ``None`` if no shard holds a listed tensor that the model needs: only the index shows the loss.
    """
    checkpoint = inspection.checkpoint
    repeated, parts = any(evidence.cautions(inspection, "index.repeated")), unlisted_parts(inspection.checkpoint)
    repeated = repeated or any(shadow.differs and shadow.file in parts for shadow in inspection.shadows)
    if checkpoint.format not in _INDEXED or checkpoint.special or repeated or not all(parts.values()):
        return None
    if checkpoint.index is None and (checkpoint.layout is not Layout.SHARDED or not checkpoint.complete):
        return None
    if evidence.lost_tensors(inspection):
        return None
    # The command writes the whole index, so it is as safe as the least safe of its changes.
    absent = {name for caution in evidence.cautions(inspection, "index.absent-tensor") for name in caution.tensors}
    changes = any(evidence.cautions(inspection, "index.extra-tensor")) or not absent.isdisjoint(checkpoint.tensors)
    safe = safe and not changes and not parts
    return _command("reindex", checkpoint.source, safe=safe, **options)


def add_format(inspection: Inspection, *, safe: bool) -> Remedy | None:
    """Return `tieconv reindex --add-format`, which changes no tensor; ``None`` if it would refuse."""
    checkpoint, source = inspection.checkpoint, _source(inspection)
    if checkpoint.layout is Layout.SHARDED:
        return reindex(inspection, add_format=True, safe=safe)
    if source is None or _blocked(checkpoint):
        return None
    return _over_formats(checkpoint, "reindex", source, safe=safe, add_format=True)


def strip_prefix(inspection: Inspection) -> Remedy | None:
    """Return `tieconv reindex --strip-prefix`, which changes only names; ``None`` if it would refuse."""
    checkpoint, source = inspection.checkpoint, _source(inspection)
    unwraps = checkpoint.format in _INDEXED and unwrapping(checkpoint.tensors)
    if source is None or _blocked(checkpoint) or not unwraps:
        return None
    return _over_formats(checkpoint, "reindex", source, safe=True, strip_prefix=True)


def convert(inspection: Inspection, to: str = "", *, safe: bool = True) -> Remedy | None:
    """Return `tieconv convert` to the same format or ``to``, under the usual names; ``None`` if it would refuse."""
    checkpoint = inspection.checkpoint
    taken = {TRAINING} if to == "safetensors" else set()
    blocked = any(caution.code in BLOCKING and caution.code not in taken for caution in checkpoint.cautions)
    if checkpoint.format not in _INDEXED or checkpoint.special or blocked:
        return None
    return _command("convert", checkpoint.source, safe=safe, to=to or checkpoint.format)


def dedup(inspection: Inspection) -> Remedy | None:
    """Return `tieconv dedup`, which keeps every name and value; ``None`` if it would refuse."""
    checkpoint, source = inspection.checkpoint, _source(inspection)
    return None if source is None or _blocked(checkpoint) else _over_formats(checkpoint, "dedup", source, safe=True)


def merge(inspection: Inspection, tie: Tie) -> Remedy | None:
    """Return `tieconv retie` for one group, which keeps the outputs; ``None`` if it does not change the group.

    A distributed checkpoint is converted instead. `check --fix` never does that, because the format changes.
    """
    checkpoint = inspection.checkpoint
    if checkpoint.table and is_merged(tie) and not any(caution.code in BLOCKING for caution in checkpoint.cautions):
        # Beside an average of weights, convert needs the name of the model.
        embedding, averaged = inspection.head.input_embedding, any(name.startswith(EMA) for name in checkpoint.tensors)
        named = {"embed": embedding.name} if embedding is not None and averaged else {}
        return Remedy(_command("convert", checkpoint.source, safe=True, to="safetensors", **named).command, True)
    return retie(inspection, safe=True) if is_merged(tie) else None


def is_merged(tie: Tie) -> bool:
    """Return whether `tieconv retie` stores the group once."""
    return tie.gated or tie.role is Role.WORD_EMBEDDING


def flag_is_storage(inspection: Inspection) -> bool:
    """Return whether the flag decides only storage, in both major versions of transformers."""
    return {inspection.family.meaning_v5, inspection.family.meaning_v4} == {FlagMeaning.STORAGE}


def unequal(inspection: Inspection) -> bool:
    """Return whether a stored name of a tied group differs from the canonical one."""
    return any(map(_unequal, inspection.ties))


def _unequal(tie: Tie) -> list[Member]:
    """Return the stored names with elements that do not hold the same bytes as the canonical one."""
    return [
        member for member in tie.stored_members if member.state not in evidence.EQUAL and not member.relation.is_empty
    ]


def _remedy(inspection: Inspection, verb: str, *, safe: bool, **options: object) -> Remedy | None:
    source, names = _source(inspection), _names(inspection)
    planned = _may_be_planned(inspection) and not is_foreign(inspection.checkpoint.config_values)
    if source is None or names is None or not planned:
        return None
    # What a guess says is for the user to confirm: `check --fix` never applies it.
    return _over_formats(inspection.checkpoint, verb, source, safe=safe and not names, **names, **options)


def _over_formats(checkpoint: Checkpoint, verb: str, source: str, *, safe: bool, **options: object) -> Remedy:
    """Return the command, with an option that leaves out a second format. Only the user can decide that."""
    drop = {"drop_other_formats": True} if checkpoint.others else {}
    return _command(verb, source, safe=safe and not drop, **options, **drop)


def _command(verb: str, source: str, *, safe: bool, **options: object) -> Remedy:
    action = Action(verb, source, tuple(options.items()))
    return Remedy(action.command, safe, action)


def _may_be_planned(inspection: Inspection) -> bool:
    family, checkpoint = inspection.family, inspection.checkpoint
    return not (
        checkpoint.read_only
        or _blocked(checkpoint)
        or family.tying in (Tying.HEADLESS, Tying.NEVER)
        or family.unflippable
        or inspection.word_tie is None
        or unexplained(inspection)
        or not all(_is_plain(inspection, tie) for tie in inspection.ties if tie.role is Role.WORD_EMBEDDING)
    )


def _blocked(checkpoint: Checkpoint) -> bool:
    """Return whether planners refuse the files: not all are regular, or a caution leaves open what the model is."""
    codes = BLOCKING.keys() - {TWO_FORMATS}
    repeated = (caution for caution in checkpoint.cautions if caution.code == "config.repeated-key")
    return (
        bool(checkpoint.special)
        or any(caution.code in codes for caution in checkpoint.cautions)
        or any(evidence.FLAG in caution.message for caution in repeated)
    )


def _is_plain(inspection: Inspection, tie: Tie) -> bool:
    tensors = inspection.checkpoint.tensors
    return all(
        not evidence.is_quantised(inspection, member.name)
        and (not member.stored or tensors[member.name].dtype in FLOATS)
        for member in tie.members
    )


def _source(inspection: Inspection) -> str | None:
    """Return the model's path for the command: the directory, if a single file has its config beside it.

    Return ``None`` if that directory holds other weights too.
    """
    checkpoint = inspection.checkpoint
    if any(evidence.cautions(inspection, NOT_ALONE)):
        return None
    if checkpoint.layout is not Layout.FILE or checkpoint.config is None:
        return checkpoint.source
    path = PurePath(checkpoint.source)
    return str(path.parent) if path.name in ("model.safetensors", "pytorch_model.bin") else None


def _names(inspection: Inspection) -> dict[str, object] | None:
    """Return `--embed` and `--head` for an architecture that is not in the table."""
    family = inspection.family
    if family.knowledge is Knowledge.TABLE:
        return {}
    embed, head = family.input_embedding, family.output_head
    # A command cannot contain a name with control characters.
    if embed is None or head is None or shown(embed) != embed or shown(head) != head:
        return None
    return {"embed": embed, "head": head}
