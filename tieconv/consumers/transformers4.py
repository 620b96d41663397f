"""transformers 4: ties by the flag alone, under the embedding's name, whatever the file holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tieconv.checkpoint.family import Role, Tying
from tieconv.checkpoint.inspection import Inspection, Member, State
from tieconv.checkpoint.prediction import Outcome
from tieconv.consumers import classes, facts, files
from tieconv.consumers.facts import Pair, listed, verdict
from tieconv.consumers.groups import Group, biases, groups, is_zero, misshapen
from tieconv.consumers.interface import Consumer, Verdict, error, unknown
from tieconv.families import beside_base, is_bare
from tieconv.families.last import DECODER_IS_HEAD, LAST_WINS, reads_half
from tieconv.families.reading import reading_v4
from tieconv.text import shown

_ONE_MODULE = frozenset({*LAST_WINS, "blenderbot-small", "mvp", "pop2piano", "udop"})
"""Types whose encoder and decoder are given one embedding module, whatever the flag says. Measured by loading files
that hold the shared table alone; those of the other types then start with random numbers."""
_ONE_MODULE_IN = {"4.48": _ONE_MODULE | {"bigbird_pegasus"}, "4.57": _ONE_MODULE | {"longt5"}}

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

_FLAT_ONLY = ("qwen2_vl", "qwen2_5_vl")
"""Types whose config has no nested level in transformers 4.48."""


def judge(inspection: Inspection, *, version: str) -> Verdict:
    """What transformers 4 makes of the head, the embedding and the names tied to them."""
    found = files.by_name(inspection, configured=version != "4.48") or _odd_metadata(inspection)
    if found is not None:
        return found
    tied, pair = reading_v4(inspection), facts.pair(inspection)
    if tied is None or not _knows(inspection, version):
        return unknown(f"transformers {version} has no model of type {shown(inspection.family.model_type)}")
    if pair is None:
        return unknown("the table does not name both the embedding and the head")
    if _too_new(inspection, version):
        return error(f"the config of {shown(inspection.family.model_type)} has no text_config in transformers 4.48")
    if (mixed := _mixed_prefix(inspection)) is not None:
        return mixed
    odd = next((name for group in groups(inspection) if (name := misshapen(inspection, group))), None)
    if odd is not None:
        return error(f"{shown(odd)} has another shape than the tensor that it is tied to", odd)
    return _with_bias(inspection, version, _weights(inspection, version, tied, pair), pair)


def _odd_metadata(inspection: Inspection) -> Verdict | None:
    """The verdict for safetensors files that say of themselves something else than that they are of torch."""
    if inspection.checkpoint.format != facts.SAFETENSORS:
        return None
    for file in inspection.checkpoint.files:
        written = None if file.metadata is None else file.metadata.get("format", "")
        if written not in (None, "pt", "tf", "flax", "mlx"):
            said = f"the format {shown(written)}" if written else "no format"
            return error(f"the metadata of {shown(file.name)} names {said}, which transformers 4 refuses")
        if written in ("tf", "flax"):
            return unknown(f"{shown(file.name)} was written by {written}, and transformers 4 needs that to read it")
    return None


def _mixed_prefix(inspection: Inspection) -> Verdict | None:
    """The verdict for a head beside a base model without its prefix. Measured with 4.48.3 and 4.57.6."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    name = next((name for name in beside_base(family) if name in tensors), None) if is_bare(family, tensors) else None
    if name is None:
        return None
    return error(
        f"{shown(name)} stands beside names without {shown(family.prefix)}., which transformers 4 refuses", name
    )


def _knows(inspection: Inspection, version: str) -> bool:
    return version != "4.48" or inspection.family.model_type in classes.listed("transformers 4.48", "types")


def _too_new(inspection: Inspection, version: str) -> bool:
    nested = "text_config" in inspection.checkpoint.config_values
    return version == "4.48" and nested and inspection.family.model_type in _FLAT_ONLY


def _weights(inspection: Inspection, version: str, tied: bool, pair: Pair) -> Verdict:
    words = [group for group in groups(inspection) if group.role is Role.WORD_EMBEDDING]
    if not tied and inspection.family.model_type in DECODER_IS_HEAD and words:
        return _decoder_is_head(words[0], pair, version)
    head_group = next((group for group in words if inspection.family.output_head in group.names), None)
    tied = tied and head_group is not None and inspection.family.tying is not Tying.NEVER
    if version == "4.48" and _is_unclear(inspection, words, tied, pair):
        return unknown("what transformers 4.48 does where one of these tables is missing was not understood")
    random: list[str] = []
    lost: list[str] = []
    for group in words:
        together = list(
            _together(inspection, group, version, tied if group is head_group else tied or not group.gated, pair.head)
        )
        base = _base(together, pair.head)
        if base.name == pair.head and len(together) > 1 and version == "4.57":
            return _without_values([member.name for member in together])
        if version == "4.57" and _is_left(inspection, base, together):
            return _without_values([member.name for member in together])
        undecided = next((member for member in together if member.state is State.UNREAD), None)
        if undecided is not None:
            return unknown(f"{shown(undecided.name)} was not compared with {shown(base.name)}")
        random += [] if base.stored else [member.name for member in together]
        lost += [member.name for member in together if member.stored and _differs(base, member)]
        random += [member.name for member in group.members if member not in together and not member.stored]
    if head_group is None:
        random += [
            name for name, held in ((pair.embedding, pair.has_embedding), (pair.head, pair.has_head)) if not held
        ]
    return _verdict(tied, pair, list(dict.fromkeys(random)), lost)


def _decoder_is_head(group: Group, pair: Pair, version: str) -> Verdict:
    """Untied, where the decoder's table and the head are one parameter all the same, with the head's values."""
    decoder, head = group.members[0], next(member for member in group.members if member.name == pair.head)
    if decoder.stored and not head.stored and version == "4.57":
        return _without_values([head.name, decoder.name])
    random = [] if head.stored else [decoder.name, head.name]
    random += [] if pair.has_embedding else [pair.embedding]
    if random or not decoder.stored:
        return _verdict(False, pair, random, [])
    if State.UNREAD in (decoder.state, head.state):
        return unknown(f"{shown(head.name)} was not compared with {shown(decoder.name)}")
    if facts.same(decoder) and facts.same(head):
        return _verdict(False, pair, [], [])
    detail = f"{shown(decoder.name)} is silently replaced by {shown(head.name)}"
    return verdict(Outcome.DISCARDED, detail, [decoder.name])


def _is_unclear(inspection: Inspection, words: list[Group], tied: bool, pair: Pair) -> bool:
    """Whether encoder and decoder tables that BART and its kin share on construction are partly missing."""
    if not inspection.family.bias_is_row:
        return False
    if tied:
        return not pair.has_embedding and bool(facts.stored_bias(inspection))
    return pair.has_head and not all(member.stored for group in words for member in group.members)


def _base(together: list[Member], head: str) -> Member:
    """The member whose values all of them get: the first one stored, the head last."""
    stored = [member for member in together if member.stored]
    return next((member for member in stored if member.name != head), stored[0] if stored else together[0])


def _is_left(inspection: Inspection, base: Member, together: list[Member]) -> bool:
    """Whether a shared table is stored under the name of one of its halves alone, where 4.57 does not look."""
    halves = {half for half in ("encoder", "decoder") for member in together if half in member.name.split(".")}
    apart = base.stored and not together[0].stored and len(halves) > 1
    stored = [member.name for member in together if member.stored]
    return apart and not reads_half(inspection.family.model_type, stored)


def _verdict(tied: bool, pair: Pair, random: list[str], lost: list[str]) -> Verdict:
    if random:
        one = len(random) == 1
        state = "is not stored and starts" if one else "are not stored and start"
        return verdict(Outcome.RANDOM, f"{listed(random)} {state} with random numbers", random)
    if lost:
        return verdict(
            Outcome.DISCARDED,
            f"{listed(lost)} {'is' if len(lost) == 1 else 'are'} silently replaced by {shown(pair.embedding)}",
            lost,
        )
    if tied:
        return verdict(Outcome.TIED, facts.tied(pair), (pair.head, pair.embedding))
    return verdict(Outcome.UNTIED, facts.separate(pair), (pair.head, pair.embedding))


def _together(inspection: Inspection, group: Group, version: str, tied: bool, head: str) -> Iterator[Member]:
    """The members that become one parameter, the canonical one first."""
    for place, member in enumerate(group.members):
        shared = inspection.family.model_type in _ONE_MODULE_IN[version] and member.name != head
        if place == 0 or tied or shared:
            yield member


def _differs(base: Member, member: Member) -> bool:
    """Whether a member's values are lost where it gets those of ``base``."""
    if member.name == base.name or (facts.same(base) and facts.same(member)):
        return False
    if member.state is State.CAST:
        return member.detail.get("exact") == member.name
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
    prefers_inner = inspection.family.model_type in _INNER_BIAS
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
