"""How transformers 5 ties: each declared pair in turn, by which of the two names the file holds.

From `PreTrainedModel.tie_weights` of transformers 5.23.0.
"""

from __future__ import annotations

from typing import assert_never

from tieconv.architectures.flag_levels import cannot_build
from tieconv.checkpoint.family import Family, FlagMeaning, Role, Tying
from tieconv.checkpoint.inspection import Inspection, Member, State
from tieconv.checkpoint.prediction import Outcome
from tieconv.checkpoint.relation.interface import Absent, Aliased, Canonical
from tieconv.checkpoint.relation.proved import (
    Cast,
    Different,
    Empty,
    Identical,
    Near,
    OtherBytes,
    OtherSample,
    OtherShape,
    RowFigures,
    Scaled,
    Transposed,
    Unread,
)
from tieconv.loaders import questions as facts
from tieconv.loaders import weight_files as files
from tieconv.loaders.as_read import as_read, without
from tieconv.loaders.interface import Verdict, error, unknown
from tieconv.loaders.questions import listed, verdict
from tieconv.loaders.tie_groups import Group, Loaded, alone, groups, is_zero, misshapen
from tieconv.loaders.transformers.names5 import REFUSES_TIED, TAKES_ANY_FLAG, steps, stranger, twice, unread
from tieconv.text import shown

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64"}
_COARSER = {"F16": 1 << 13, "BF16": 1 << 16}
"""float32 steps in one step of a narrower type: copies that lie further apart stay apart when they are rounded."""


Guesses = dict[tuple[str, str], bool]


class _UndecidedError(Exception):
    """Whether two tensors are equal once loaded does not follow from what was compared: the names of the pair."""


def judge(inspection: Inspection) -> Verdict:
    """What transformers 5 makes of the head, the embedding and the names tied to them."""
    found = files.by_name(inspection) or _refused(inspection)
    if found is not None:
        return found
    lost = unread(inspection.family, inspection.checkpoint.tensors)
    return without(inspection, "transformers 5", _judge(as_read(inspection, lost)), lost)


def _refused(inspection: Inspection) -> Verdict | None:
    """The verdict where the config is refused, or where it is not clear which tensor a name is."""
    family, stored = inspection.family, inspection.checkpoint.tensors
    if family.model_type in REFUSES_TIED and any(entry.value is True for entry in inspection.config.declared):
        return error(f"the config of {shown(family.model_type)} refuses {facts.FLAG} true")
    if cannot_build(inspection):
        return error(f"{_whole(family)} cannot be built with {facts.FLAG} true: its embedding has another name")
    found = _odd_flag(inspection)
    if found is not None:
        return found
    same = twice(family, stored)
    if same:
        return unknown(f"{listed(same)} are names of one tensor, of which one is taken")
    odd = stranger(family, stored)
    if odd is None:
        return None
    missing, name = map(shown, odd)
    return unknown(f"{missing} is not stored, and {name} may be taken for it: renamings follow each other there")


def _whole(family: Family) -> str:
    """The class and its text part."""
    part = shown(family.part.model_type) if family.part is not None else "its text part"
    return f"{shown(family.architecture)} with a {part} text part"


def _odd_flag(inspection: Inspection) -> Verdict | None:
    """The verdict for a flag that is neither true nor false, at a level that is read."""
    family = inspection.family
    levels = [f"{level}.{facts.FLAG}".lstrip(".") for level in ("", *family.levels)]
    for entry in inspection.config.declared:
        if entry.path not in levels or not entry.present or isinstance(entry.value, bool):
            continue
        if entry.path == facts.FLAG and family.model_type not in TAKES_ANY_FLAG:
            return error(f"{entry.path} in the config is neither true nor false, which transformers 5 refuses")
        if family.tying is Tying.CAN:
            return unknown(f"{shown(entry.path)} in the config is neither true nor false")
    return None


def _judge(inspection: Inspection) -> Verdict:
    if not inspection.family.misfit:
        odd = next((name for group in groups(inspection) if (name := misshapen(inspection, group))), None)
        if odd is not None:
            return error(f"{shown(odd)} has another shape than the tensor that it is tied to", odd)
    return _decide(inspection, {})


def _decide(inspection: Inspection, guesses: Guesses) -> Verdict:
    """The verdict, where it is the same whether or not the pairs that were not compared are equal."""
    try:
        return _verdict(inspection, load(inspection, guesses))
    except _UndecidedError as undecided:
        one, two = undecided.args
    apart, equal = (_decide(inspection, {**guesses, (one, two): same}) for same in (False, True))
    if (apart.outcome, apart.dropped) == (equal.outcome, equal.dropped):
        return apart
    return unknown(f"{shown(two)} was not compared with the tensor that it is tied to")


def load(inspection: Inspection, guesses: Guesses) -> Loaded:
    """Which parameter each name becomes, and whose values it holds.

    ``guesses`` tells of pairs that were not compared whether they are equal.
    """
    loaded = Loaded({}, {})
    for group in groups(inspection):
        _load_group(inspection, group, loaded, guesses)
    return alone(inspection, loaded)


def _load_group(inspection: Inspection, group: Group, loaded: Loaded, guesses: Guesses) -> None:
    for name, member in zip(group.names, group.members, strict=True):
        loaded.owner[name] = len(loaded.content)
        loaded.content[len(loaded.content)] = member.name if member.stored else None
    held = [member.stored for member in group.members]
    for give, take, both in steps(inspection.family, group.names, held) if group.declared else ():
        if both and not _equal(inspection, group, loaded.value(give), loaded.value(take), guesses):
            continue  # both are stored and differ: each stays as it is
        loaded.owner[take] = loaded.owner[give]


def _equal(inspection: Inspection, group: Group, one: str | None, two: str | None, guesses: Guesses) -> bool:
    members = {member.name: member for member in group.members}
    if one == two or one is None or two is None:
        return True
    try:
        return _compared(inspection, members[one], members[two])
    except _UndecidedError:
        if (one, two) not in guesses:
            raise _UndecidedError(one, two) from None
        return guesses[one, two]


def _compared(inspection: Inspection, first: Member, second: Member) -> bool:
    if State.CANONICAL not in (first.state, second.state):
        one_is, two_is = _as_reference(inspection, first), _as_reference(inspection, second)
        if not one_is and not two_is:
            raise _UndecidedError
        return one_is and two_is
    return _as_reference(inspection, second if first.state is State.CANONICAL else first)


def _as_reference(inspection: Inspection, member: Member) -> bool:
    """Whether a stored member equals the group's reference by value, in the type that the model is loaded in."""
    dtype = load_dtype(inspection)
    match member.relation:
        case Canonical() | Aliased() | Identical():
            return not member.relation.holds_nan
        case Cast(lossless=True):
            return True
        case Cast(narrow=narrow) if dtype is not None:
            return dtype == inspection.checkpoint.tensors[narrow].dtype
        case Unread() | Cast():
            raise _UndecidedError
        case Near(figures=figures) | Different(figures=figures) if figures.sign_of_zero_only:
            return True
        case Near(figures=figures):
            if _may_round_to_equal(inspection, member, figures, dtype):
                raise _UndecidedError
            return False
        case Absent() | Transposed() | Scaled() | Different() | Empty() | OtherShape() | OtherBytes() | OtherSample():
            return False
        case _:
            assert_never(member.relation)


def _may_round_to_equal(inspection: Inspection, member: Member, figures: RowFigures, dtype: str | None) -> bool:
    if inspection.checkpoint.tensors[member.name].dtype != "F32" or dtype not in _COARSER:
        return False
    return figures.max_ulp is None or figures.max_ulp < _COARSER[dtype]


def load_dtype(inspection: Inspection) -> str | None:
    """The type that ``dtype="auto"`` loads in; ``None`` where the config names none."""
    values = inspection.checkpoint.config_values
    named = values.get("dtype") or values.get("torch_dtype")
    return _DTYPES.get(str(named).removeprefix("torch."))


def _verdict(inspection: Inspection, loaded: Loaded) -> Verdict:
    found = facts.pair(inspection)
    family = inspection.family
    if found is None or family.input_embedding is None or family.output_head is None:
        return unknown("the table does not name both the embedding and the head")
    dropped = lost_biases(inspection, loaded)
    words = [name for group in groups(inspection) if group.role is Role.WORD_EMBEDDING for name in group.names]
    played = dict.fromkeys((family.output_head, family.input_embedding, *words))
    random = [facts.in_file(inspection, name) for name in played if loaded.value(name) is None]
    if random:
        return verdict(
            Outcome.RANDOM, f"{listed(random)} {_is(random)} not stored and {_starts(random)}", random, dropped
        )
    names = (found.head, found.embedding)
    if loaded.owner[family.output_head] == loaded.owner[family.input_embedding]:
        holder = loaded.value(family.output_head)
        detail = (
            facts.tied(found)
            if holder == found.embedding
            else f"{listed(names)} are one parameter, from {shown(holder)}"
        )
        return verdict(Outcome.TIED, detail, names, dropped)
    return verdict(Outcome.UNTIED, _untied(inspection, found), names, dropped)


def _untied(inspection: Inspection, found: facts.Pair) -> str:
    detail = facts.separate(found)
    tie = next((tie for tie in inspection.ties if any(member.name == found.head for member in tie.members)), None)
    if tie is not None and tie.declared:
        return f"{detail}: they count as tied, but their values differ, which is warned of"
    if inspection.family.meaning_v5 is FlagMeaning.SCALES:
        return f"{detail}, and the logits are not scaled"
    return detail


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _starts(names: list[str]) -> str:
    return "starts with random numbers" if len(names) == 1 else "start with random numbers"


def lost_biases(inspection: Inspection, loaded: Loaded) -> tuple[str, ...]:
    """The stored head biases that have values and that no parameter takes."""
    family = inspection.family
    if not family.output_biases:
        return facts.class_bias(inspection)
    pair = next((group for group in groups(inspection) if group.role is Role.OUTPUT_BIAS), None)
    if pair is None:
        return ()
    inner = family.output_biases[-1]
    used = loaded.value(inner) if inner in loaded.owner else None
    stored = [member for member in pair.members if member.stored]
    if used is not None and all(facts.same(member) for member in stored):
        return ()
    return tuple(
        member.name
        for member in stored
        if member.name != used and (used is not None or not is_zero(inspection, member.name))
    )
