"""What one release of transformers makes of the head, the embedding and the names tied to them: read from `Loaded`."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.relation.proved import Cast
from tieconv.checkpoint.tie_group import Member
from tieconv.loaders import questions as facts
from tieconv.loaders.interface import Verdict, error
from tieconv.loaders.loaded import Cause, Loaded
from tieconv.loaders.questions import Pair, listed, verdict
from tieconv.loaders.tie_groups import biases, groups, is_zero
from tieconv.text import shown


def refused(loaded: Loaded, *causes: Cause) -> Verdict | None:
    """The verdict where the release refuses the model for one of ``causes``."""
    found = loaded.refused(*causes)
    return None if found is None else error(found.sentence, *found.tensors)


def unset(loaded: Loaded, names: list[str]) -> Verdict | None:
    """The verdict where the release leaves one of ``names`` without values."""
    empty = [name for name in names if name in loaded.unset]
    if not empty:
        return None
    detail = f"{shown(empty[0])} is not stored, and a tied model reads no other name: "
    return error(f"{detail}{listed(empty)} are left without values", *empty)


def weights(inspection: Inspection, loaded: Loaded, pair: Pair, names: list[str], apart: str = "") -> Verdict:
    """The verdict about ``names``, those of the word embeddings and of the ``pair``, and what becomes of the bias.

    ``apart`` is what else to say of two parameters.
    """
    random = [name for name in names if loaded.source(name) is None]
    lost = [member.name for member, base in _replaced(inspection, loaded) if _differs(base, member)]
    dropped = lost_biases(inspection, loaded)
    both = (pair.head, pair.embedding)
    if random:
        state = "is not stored and starts" if len(random) == 1 else "are not stored and start"
        return verdict(Outcome.RANDOM, f"{listed(random)} {state} with random numbers", random, dropped)
    if lost:
        verb = "is" if len(lost) == 1 else "are"
        detail = f"{listed(lost)} {verb} silently replaced by {shown(loaded.source(lost[0]))}"
        return verdict(Outcome.DISCARDED, detail, lost, dropped)
    if not loaded.one(*both):
        return verdict(Outcome.UNTIED, f"{facts.separate(pair)}{apart}", both, dropped)
    holder = loaded.holder(pair.head)
    tied = facts.tied(pair) if holder == pair.embedding else f"{listed(both)} are one parameter, from {shown(holder)}"
    return verdict(Outcome.TIED, tied, both, dropped)


def words(inspection: Inspection) -> list[str]:
    """The names of the word embeddings, in the order of the table."""
    found = (group for group in groups(inspection) if group.role is Role.WORD_EMBEDDING)
    return [member.name for group in found for member in group.members]


def _replaced(inspection: Inspection, loaded: Loaded) -> Iterator[tuple[Member, Member]]:
    """The stored names of the word embeddings that get the values of another one, and that."""
    for group in groups(inspection):
        members = {member.name: member for member in group.members}
        for member in group.members if group.role is Role.WORD_EMBEDDING else ():
            source = loaded.source(member.name)
            if member.stored and source is not None and source != member.name:
                yield member, members[source]


def _differs(base: Member, member: Member) -> bool:
    """Whether a member's values are lost where it gets those of ``base``."""
    if facts.same(base) and facts.same(member):
        return False
    if isinstance(member.relation, Cast):
        return member.relation.exact == member.name
    return True


def lost_biases(inspection: Inspection, loaded: Loaded) -> tuple[str, ...]:
    """The stored head biases that have values and that no logit gets."""
    family = inspection.family
    if not family.output_biases:
        return facts.class_bias(inspection)
    pair = biases(inspection)
    if pair is None:
        return ()
    used = loaded.holder(facts.in_file(inspection, family.output_biases[-1]))
    stored = [member for member in pair.members if member.stored]
    if used is not None and all(facts.same(member) for member in stored):
        return ()
    unused = (member.name for member in stored if member.name != used)
    return tuple(name for name in unused if used is not None or not is_zero(inspection, name))
