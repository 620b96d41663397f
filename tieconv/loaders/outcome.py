"""Derive the prediction from a `Loaded`: its outcome, its tensors, and the reason in one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.family import Role
from tieconv.checkpoint.finding import Outcome
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.relation.proved import Cast
from tieconv.checkpoint.tie_group import Member
from tieconv.checkpoint.value_type import record
from tieconv.loaders.evidence.head_pair import Pair, class_bias, head_pair, in_file, listed, same
from tieconv.loaders.evidence.tie_groups import bias_group, groups, is_zero
from tieconv.loaders.evidence.without_tensors import without_tensors
from tieconv.loaders.loaded import Absence, Cause, Loaded
from tieconv.text import shown


@record
class Verdict:
    """The prediction for one loader; the fields are those of `Prediction`."""

    outcome: Outcome
    detail: str
    tensors: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def verdict(inspection: Inspection, loaded: Loaded) -> Verdict:
    """Return what ``loaded`` does with the head, the embedding and the names tied to them."""
    if loaded.refusals:
        return _refused(loaded)
    read = without_tensors(inspection, loaded.unread)
    answer = _of_parameters(read, loaded) if loaded.undecided is None else _of_alternatives(read, loaded)
    return _with_unread(inspection, loaded, answer)


def _refused(loaded: Loaded) -> Verdict:
    refusal = loaded.refusals[0]
    outcome = Outcome.UNKNOWN if refusal.cause is Cause.UNKNOWN else Outcome.ERROR
    return Verdict(outcome, refusal.sentence, refusal.tensors)


def _of_alternatives(inspection: Inspection, loaded: Loaded) -> Verdict:
    """Return the answer if it does not depend on the tensors that were not compared, else unknown."""
    answers = [_of_parameters(inspection, alternative) for alternative in loaded.alternatives]
    if len({(answer.outcome, answer.dropped) for answer in answers}) == 1:
        return answers[0]
    first, second = map(shown, loaded.undecided or ("", ""))
    return Verdict(Outcome.UNKNOWN, f"tieconv did not compare {second} with {first}")


def _of_parameters(inspection: Inspection, loaded: Loaded) -> Verdict:
    pair = head_pair(inspection)
    if pair is None:
        return Verdict(Outcome.UNKNOWN, "the architecture table does not name both the embedding and the head")
    tables = {pair.head, pair.embedding, *_word_members(inspection)}
    names = [name for name in loaded.parameters if name in tables]
    unset = [name for name in names if name in loaded.unset] or _unset_biases(inspection, loaded)
    if unset:
        reason = f"a tied model reads only {shown(loaded.parameters[unset[0]].parameter)}, which is not stored"
        return Verdict(Outcome.ERROR, f"the loader leaves {listed(unset)} without values: {reason}", tuple(unset))
    dropped = dropped_biases(inspection, loaded)
    outcome, detail, tensors = _of_tables(inspection, loaded, pair, names)
    unused = f"; the loader does not use {listed(dropped)}" if dropped else ""
    return Verdict(outcome, detail + unused, tuple(tensors), dropped)


def _of_tables(
    inspection: Inspection, loaded: Loaded, pair: Pair, names: Sequence[str]
) -> tuple[Outcome, str, Sequence[str]]:
    """Return outcome, reason and tensors for ``names``, those of the word embeddings and of the ``pair``."""
    random = [name for name in names if loaded.parameters[name].absence is Absence.RANDOM]
    if random:
        start = "starts" if len(random) == 1 else "start"
        return Outcome.RANDOM, f"{listed(random)} {_are(random)} not stored and {start} with random numbers", random
    left = [name for name in names if loaded.parameters[name].absence is Absence.MEMORY]
    left = [name for name in left if loaded.parameters[name].parameter == name]
    if left:
        keep = "keeps" if len(left) == 1 else "keep"
        return Outcome.RANDOM, f"{listed(left)} {_are(left)} not stored and {keep} uninitialised memory", left
    lost = list(_lost(inspection, loaded, names))
    if lost:
        return Outcome.DISCARDED, _replaced(loaded, lost), lost
    outcome, detail = _of_pair(loaded, pair)
    return outcome, f"{detail}; {loaded.remark}" if loaded.remark else detail, (pair.head, pair.embedding)


def _of_pair(loaded: Loaded, pair: Pair) -> tuple[Outcome, str]:
    both = listed((pair.head, pair.embedding))
    if not loaded.tied(pair.head, pair.embedding):
        return Outcome.UNTIED, f"{both} are two parameters"
    return Outcome.TIED, f"{both} are one parameter, with the values of {shown(loaded.holder(pair.head))}"


def _replaced(loaded: Loaded, lost: Sequence[str]) -> str:
    if set(lost) <= set(loaded.in_order):
        return f"the loader reads {listed(loaded.in_order)} into one parameter and keeps the last one that it reads"
    return f"the loader replaces {listed(lost)} by {shown(loaded.source(lost[0]))} without an error"


def _lost(inspection: Inspection, loaded: Loaded, names: Sequence[str]) -> Iterator[str]:
    """Yield the stored names that get the values of another tensor, unless both are proved equal."""
    members = {member.name: member for group in groups(inspection) for member in group.members}
    for name in names:
        source = loaded.source(name)
        if name not in inspection.checkpoint.tensors or source in (None, name):
            continue
        if source not in members or name not in members or _differs(members[source], members[name]):
            yield name


def _differs(base: Member, member: Member) -> bool:
    """Whether a member's values are lost where it gets those of ``base``."""
    if same(base) and same(member):
        return False
    if isinstance(member.relation, Cast):
        return member.relation.exact == member.name
    return True


def _word_members(inspection: Inspection) -> Iterator[str]:
    for group in groups(inspection):
        if group.role is Role.WORD_EMBEDDING:
            yield from (member.name for member in group.members)


def _unset_biases(inspection: Inspection, loaded: Loaded) -> list[str]:
    """Return both names of a head bias if one is stored and neither gets values."""
    pair = bias_group(inspection)
    names = [member.name for member in pair.members] if pair is not None else []
    half = pair is not None and any(member.stored for member in pair.members)
    return names if half and all(name in loaded.unset for name in names) else []


def dropped_biases(inspection: Inspection, loaded: Loaded) -> tuple[str, ...]:
    """Return the stored head biases with non-zero values that no logit gets."""
    names = [in_file(inspection, name) for name in inspection.family.output_biases]
    if not any(name in loaded.parameters for name in names):
        return tuple(name for name in class_bias(inspection) if loaded.source(name) != name)
    pair = bias_group(inspection)
    if pair is None:
        return ()
    used = loaded.holder(names[-1])
    stored = [member for member in pair.members if member.stored]
    if used is not None and all(same(member) for member in stored):
        return ()
    unused = (member.name for member in stored if member.name != used)
    return tuple(name for name in unused if used is not None or not is_zero(inspection, name))


def _with_unread(inspection: Inspection, loaded: Loaded, answer: Verdict) -> Verdict:
    """Return ``answer`` with the stored names that the loader does not know."""
    names = sorted(loaded.unread)
    if not names or answer.outcome in (Outcome.ERROR, Outcome.UNKNOWN):
        return answer
    words = [member for group in groups(inspection) if group.role is not Role.OUTPUT_BIAS for member in group.members]
    differ = any(member.name in names and not same(member) for member in words)
    ungrouped = {inspection.family.input_embedding, inspection.family.output_head} - {member.name for member in words}
    loses = differ or any(in_file(inspection, name) in names for name in ungrouped if name)
    outcome = Outcome.DISCARDED if loses and answer.outcome is not Outcome.RANDOM else answer.outcome
    unread = f"{loaded.loader} does not know the {'name' if len(names) == 1 else 'names'} {listed(names)}"
    dropped = tuple(name for name in names if name in class_bias(inspection))
    return Verdict(outcome, f"{answer.detail}; {unread}", (*answer.tensors, *names), (*answer.dropped, *dropped))


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
