"""transformers 4: ties by the flag alone, under the embedding's name, whatever the file holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tieconv.architectures.flag_levels import cannot_build, reading_v4
from tieconv.checkpoint.family import Family, Role, Tying
from tieconv.checkpoint.inspection import Inspection, Member, State
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.relation.proved import Cast
from tieconv.loaders import classes
from tieconv.loaders import questions as facts
from tieconv.loaders import weight_files as files
from tieconv.loaders.as_read import as_read, without
from tieconv.loaders.interface import Consumer, Verdict, error, unknown
from tieconv.loaders.questions import Pair, listed, verdict
from tieconv.loaders.tie_groups import Group, biases, groups, is_zero, misshapen, two_vocabularies
from tieconv.loaders.transformers.names4 import corrupt, unread
from tieconv.loaders.transformers.shared_tables import last_read
from tieconv.loaders.transformers.ties4 import NO_VALUES, TIES_V4, sources
from tieconv.text import shown

_INNER_BIAS = (
    "albert",
    "bert-generation",
    "camembert",
    "data2vec-text",
    "fnet",
    "ibert",
    "longformer",
    "luke",
    "reformer",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)
"""Types whose outer bias is set to the inner one after loading; the others do it the other way round."""

_SHARED_UNCLEAR = ("longt5", "m2m_100", "nllb-moe", "seamless_m4t", "seamless_m4t_v2", "switch_transformers")
"""Types of which 4.48, with an untied head, fills the shared table from the others where it is not stored."""

_UNCLEAR = ("qwen2_5_omni", "qwen3_omni_moe", "vilt")
"""Types of which 4.57 was loaded, and what it made of some files was not understood."""

_FLAT_ONLY = ("qwen2_vl", "qwen2_5_vl")
"""Types whose config has no nested level in transformers 4.48."""


def judge(inspection: Inspection, *, version: str) -> Verdict:
    """What transformers 4 makes of the head, the embedding and the names tied to them."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    lost = unread(family, stored, version)
    found = _judge(as_read(inspection, lost), version, corrupt(family, stored, version))
    return without(inspection, f"transformers {version}", found, lost)


def _judge(inspection: Inspection, version: str, stops_at: str | None) -> Verdict:
    found = files.by_name(inspection, configured=version != "4.48") or _odd_metadata(inspection)
    if found is not None:
        return found
    tied, pair = reading_v4(inspection), facts.pair(inspection)
    if tied is None or not _knows(inspection, version):
        return unknown(_not_known(inspection.family, version))
    if pair is None:
        return unknown("the table does not name both the embedding and the head")
    if inspection.family.model_type in _UNCLEAR:
        return unknown(f"what transformers {version} does with {shown(inspection.family.architecture)} is not clear")
    if stops_at is not None:
        start = f"{inspection.family.prefix}."
        detail = f"{shown(stops_at)} is stored and no name starts with {shown(start)}: transformers 4 takes that for a"
        return error(f"{detail} corrupted file", stops_at)
    if tied and two_vocabularies(inspection):
        return unknown("encoder and decoder have vocabularies of their own, and tying them was not measured")
    if _too_new(inspection, version):
        return error(f"the config of {shown(inspection.family.model_type)} has no text_config in transformers 4.48")
    apart = inspection.family.misfit and not tied
    odd = (
        None if apart else next((name for group in groups(inspection) if (name := misshapen(inspection, group))), None)
    )
    if odd is not None:
        return error(f"{shown(odd)} has another shape than the tensor that it is tied to", odd)
    return _with_bias(inspection, version, _weights(inspection, version, tied, pair), pair)


def _odd_metadata(inspection: Inspection) -> Verdict | None:
    """The verdict for safetensors files that say of themselves something else than that they are of torch."""
    if inspection.checkpoint.format != facts.SAFETENSORS:
        return None
    for file in inspection.checkpoint.files:
        odd = file.refused_format
        if odd is not None:
            said = f"the format {shown(odd)}" if odd else "no format"
            return error(f"the metadata of {shown(file.name)} names {said}, which transformers 4 refuses")
        written = (file.metadata or {}).get("format")
        if written in ("tf", "flax"):
            return unknown(f"{shown(file.name)} was written by {written}, and transformers 4 needs that to read it")
    return None


def _knows(inspection: Inspection, version: str) -> bool:
    family = inspection.family
    return version != "4.48" or (
        not _unmeasured_448(family) and family.model_type in classes.listed("transformers 4.48", "types")
    )


def _unmeasured_448(family: Family) -> bool:
    return family.unlisted or (family.part is not None and not family.part.usual)


def _not_known(family: Family, version: str) -> str:
    if version == "4.48" and _unmeasured_448(family):
        part = f" on {shown(family.part.model_type)}" if family.part is not None else ""
        return f"what transformers 4.48 does with {shown(family.architecture)}{part} was not measured"
    return f"transformers {version} has no model of type {shown(family.model_type)}"


def _too_new(inspection: Inspection, version: str) -> bool:
    nested = "text_config" in inspection.checkpoint.config_values
    return version == "4.48" and nested and inspection.family.model_type in _FLAT_ONLY


def _weights(inspection: Inspection, version: str, tied: bool, pair: Pair) -> Verdict:
    words = [group for group in groups(inspection) if group.role is Role.WORD_EMBEDDING]
    head_group = next((group for group in words if inspection.family.output_head in group.names), None)
    if tied and (inspection.family.text_class in TIES_V4 or cannot_build(inspection)):
        return unknown("its head is tied in transformers 4 and not in 5, and was not compared with the embedding")
    tied = tied and head_group is not None and inspection.family.tying is not Tying.NEVER
    if version == "4.48" and _is_unclear(inspection, words, tied, pair):
        return unknown("what transformers 4.48 does where one of these tables is missing was not understood")
    found = _Found([], [], [])
    for group in words:
        gone = _sort(inspection, group, version, tied if group is head_group else tied or not group.gated, found)
        if gone is not None:
            return gone
    grouped = {member.name for group in words for member in group.members}
    held = ((pair.embedding, pair.has_embedding), (pair.head, pair.has_head))
    found.random += [name for name, stored in held if not stored and name not in grouped]
    one = head_group is not None and found.one(pair)
    return _verdict(one, pair, found)


@dataclass
class _Found:
    """What becomes of the names: ``random`` start so, ``lost`` are not used, ``taken`` have another one's values."""

    random: list[str]
    lost: list[str]
    taken: list[tuple[str, str]]

    def one(self, pair: Pair) -> bool:
        """Whether the head and the embedding have the same stored name's values."""
        given = dict(self.taken)
        return given.get(pair.head, pair.head) == given.get(pair.embedding, pair.embedding)


def _sort(inspection: Inspection, group: Group, version: str, tied: bool, found: _Found) -> Verdict | None:
    """Add what becomes of the names of one group to ``found``; a verdict where the loader gets no further."""
    members = group.members
    stored = [member.stored for member in members]
    last = last_read(inspection, group.names, [member.name for member in members])
    taken = sources(inspection.family, group.names, stored, version, tied=tied, last=last)
    if NO_VALUES in taken:
        return _without_values(
            [member.name for member, place in zip(members, taken, strict=True) if place == NO_VALUES]
        )
    for own, (member, place) in enumerate(zip(members, taken, strict=True)):
        if place is None:
            found.random.append(member.name)
        elif place != own or len(set(taken)) < len(taken):
            base = members[place]
            if State.UNREAD in (base.state, member.state):
                odd = member if member.state is State.UNREAD else base
                return unknown(f"{shown(odd.name)} was not compared with the tensor that it is tied to")
            found.taken.append((member.name, base.name))
            found.lost += [member.name] if member.stored and _differs(base, member) else []
    return None


def _is_unclear(inspection: Inspection, words: list[Group], tied: bool, pair: Pair) -> bool:
    """Whether encoder and decoder tables that BART and its kin share on construction are partly missing."""
    if not tied and inspection.family.text_type in _SHARED_UNCLEAR:
        return any(not group.members[0].stored for group in words)
    if not inspection.family.bias_is_row:
        return False
    if tied:
        return not pair.has_embedding and bool(facts.stored_bias(inspection))
    return pair.has_head and not all(member.stored for group in words for member in group.members)


def _verdict(tied: bool, pair: Pair, found: _Found) -> Verdict:
    random, lost = list(dict.fromkeys(found.random)), found.lost
    if random:
        one = len(random) == 1
        state = "is not stored and starts" if one else "are not stored and start"
        return verdict(Outcome.RANDOM, f"{listed(random)} {state} with random numbers", random)
    if lost:
        taken = shown(dict(found.taken)[lost[0]])
        detail = f"{listed(lost)} {'is' if len(lost) == 1 else 'are'} silently replaced by {taken}"
        return verdict(Outcome.DISCARDED, detail, lost)
    if tied:
        return verdict(Outcome.TIED, facts.tied(pair), (pair.head, pair.embedding))
    return verdict(Outcome.UNTIED, facts.separate(pair), (pair.head, pair.embedding))


def _differs(base: Member, member: Member) -> bool:
    """Whether a member's values are lost where it gets those of ``base``."""
    if member.name == base.name or (facts.same(base) and facts.same(member)):
        return False
    if isinstance(member.relation, Cast):
        return member.relation.exact == member.name
    return True


def _without_values(names: list[str]) -> Verdict:
    first, *others = names
    detail = (
        f"{shown(first)} is not stored, and a tied model reads no other name: {listed(names)} are left without values"
    )
    return error(detail, first, *others)


def _with_bias(inspection: Inspection, version: str, found: Verdict, pair: Pair) -> Verdict:
    """The verdict with what becomes of the head bias: of two names, the outer one counts."""
    if found.outcome in (Outcome.ERROR, Outcome.UNKNOWN):
        return found
    names = biases(inspection)
    if names is None:
        dropped = () if inspection.family.output_biases else facts.class_bias(inspection)
        return verdict(found.outcome, found.detail, found.tensors, dropped)
    used = _used_bias(inspection, version, names, pair)
    if used is None and version == "4.57" and any(member.stored for member in names.members):
        return _without_values([member.name for member in names.members])
    stored = [member for member in names.members if member.stored]
    if used is not None and all(facts.same(member) for member in stored):
        return found
    unused = (member.name for member in stored if member is not used)
    lost = tuple(name for name in unused if used is not None or not is_zero(inspection, name))
    return verdict(found.outcome, found.detail, found.tensors, lost)


def _used_bias(inspection: Inspection, version: str, names: Group, pair: Pair) -> Member | None:
    """The stored name of the bias whose values reach the logits; ``None`` where neither does.

    4.48 sets the head's whole module to zero where it counts a name of it as missing; a missing embedding turns that
    off. Measured, with torch 2.13.
    """
    outer, inner = names.members[0], names.members[-1]
    prefers_inner = inspection.family.text_type in _INNER_BIAS
    if version == "4.48" and not pair.has_embedding:
        order: tuple[Member, ...] = (inner, outer)
    elif version == "4.48":
        order = (inner,) if prefers_inner else (outer,)
    else:
        order = (inner, outer) if prefers_inner else (outer,)
    return next((member for member in order if member.stored), None)


CONSUMERS = (
    Consumer(
        "transformers",
        "4.48",
        since=(4, 45),
        before=(4, 49),
        measured=True,
        cited="transformers 4.48.3, src/transformers/modeling_utils.py, tie_weights and _load_pretrained_model",
        judge=partial(judge, version="4.48"),
    ),
    Consumer(
        "transformers",
        "4.57",
        since=(4, 49),
        before=(5, 0),
        measured=True,
        cited="transformers 4.57.6, src/transformers/modeling_utils.py, tie_weights and _load_pretrained_model",
        judge=partial(judge, version="4.57"),
    ),
)
