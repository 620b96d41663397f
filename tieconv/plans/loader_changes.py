"""What a plan makes of a model in each release: the parameters that do not get the values that they had.

The loaders judge the model before and the one that the plan describes; what differs, and no note says, is a note.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from tieconv.architectures.flag_levels import reading_v4
from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.inspection import BiasState, Inspection, State
from tieconv.checkpoint.quantised import quantised_twin
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.output import Content, OutputTensor, OutputWeights, Padded, Scaled, Zeros
from tieconv.loaders.load import TRANSFORMERS_5, load, releases
from tieconv.loaders.loaded import Absence, Loaded, Parameter
from tieconv.text import shown

Value = tuple[object, ...]
_EQUAL = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})
_ZERO: Value = ("zeros",)


@record
class Change:
    """A parameter of one release before and after; ``name`` is the file's before."""

    name: str
    before: Parameter
    after: Parameter


def change_notes(before: Inspection, after: Inspection, weights: Sequence[OutputWeights], told: str) -> Iterator[str]:
    """Yield a note for each release's changes of the parameters that ``told``, the notes so far, does not name."""
    values = _Values(before, weights)
    for release in releases(before):
        was, comes = load(before, release), load(after, release)
        known = release == TRANSFORMERS_5 or reading_v4(before) is not None
        if known and was.refused() is None:
            yield from _notes(was, comes, values, f"transformers {release.partition('.')[0]}", told)


def _notes(before: Loaded, after: Loaded, values: _Values, loader: str, told: str) -> Iterator[str]:
    start = f"not function-preserving in {loader}, which"
    refusal = after.refused()
    if refusal is not None:
        yield f"{start} refuses the result: {refusal.sentence}"
    changes = list(_changes(before, after, values))
    unset = [change for change in changes if change.after.absence is Absence.UNSET]
    for source in dict.fromkeys(change.after.parameter for change in unset):
        yield f"{start} takes the tied values from {shown(source)} alone: without it the model has none"
    for change in changes:
        names = (change.name, *values.equal(change.before.stored or change.name))
        if change not in unset and not any(shown(name) in told for name in names):
            had = _told(change.name, change.before, change.before.stored)
            gets = _told(change.name, change.after, values.origin(change.after))
            yield f"{start} gave {shown(change.name)} {had} and gives it {gets}"


def _changes(before: Loaded, after: Loaded, values: _Values) -> Iterator[Change]:
    """Yield the parameters of the architecture's names that lose the values which a release gave them."""
    for name, old in before.names.items():
        if name in values.unjudged or quantised_twin(old, values.tensors) is not None:
            continue
        was, comes = before.parameters[old], after.parameters[after.names[name]]
        if was.absence in (None, Absence.ZERO) and values.before(was) != values.after(comes):
            yield Change(old, was, comes)


def _told(name: str, parameter: Parameter, source: str | None) -> str:
    """What a parameter has; ``source`` is the stored tensor, before the plan, whose values these are."""
    match parameter.absence:
        case None if source is None:
            return "other values"
        case None:
            return "its own values" if source == name else f"the values of {shown(source)}"
        case Absence.RANDOM:
            return "random numbers"
        case Absence.ZERO:
            return "zeros"
        case Absence.MEMORY:
            return "whatever the memory held"
        case Absence.UNSET:
            return "no values"
        case _:
            assert_never(parameter.absence)


class _Values:
    """Values as something that is equal where they are proved equal, before a plan and after it."""

    def __init__(self, before: Inspection, weights: Sequence[OutputWeights]) -> None:
        self.tensors = before.checkpoint.tensors
        self.unjudged = before.family.output_biases[:-1]  # no logit gets another name of a bias than the last
        tensors = (tensor for output in weights for tensor in output.tensors)
        self.made = {tensor.name: tensor for tensor in tensors if not self._stays(tensor)}
        equal = [[one.name for one in tie.members if one.state in _EQUAL and one.stored] for tie in before.ties]
        equal += [list(found.tensors) for found in before.duplicates if found.kind in _EQUAL]
        self.first = {name: group[0] for group in reversed(equal) for name in group}
        bias = before.head.output_bias
        self.zero = bias.name if bias is not None and bias.state is BiasState.ZERO else None

    def _stays(self, tensor: OutputTensor) -> bool:
        record = self.tensors.get(tensor.name)
        return record is not None and record.range == tensor.content

    def before(self, parameter: Parameter) -> Value:
        if parameter.stored is None:
            return self._absent(parameter)
        return self._stored(parameter.stored, parameter.factor)

    def after(self, parameter: Parameter) -> Value:
        if parameter.stored is None:
            return self._absent(parameter)
        tensor = self.made.get(parameter.stored)
        if tensor is None:
            return self._stored(parameter.stored, parameter.factor)
        return self._content(tensor.content, parameter.factor)

    def equal(self, name: str) -> Iterator[str]:
        """Yield the stored names that are proved to hold what ``name`` holds, itself among them."""
        first = self.first.get(name, name)
        yield from (other for other in self.tensors if self.first.get(other, other) == first)

    def origin(self, parameter: Parameter) -> str | None:
        """Return the tensor that was stored before with the bytes of a parameter; ``None`` for bytes that are made."""
        tensor = self.made.get(parameter.stored or "")
        if tensor is None:
            return parameter.stored
        return self._name(tensor.content) if isinstance(tensor.content, ByteRange) else None

    def _absent(self, parameter: Parameter) -> Value:
        return _ZERO if parameter.absence is Absence.ZERO else (parameter.absence,)

    def _stored(self, name: str, factor: float) -> Value:
        return _ZERO if name == self.zero else (self.first.get(name, name), factor)

    def _content(self, content: Content | Padded, factor: float) -> Value:
        if isinstance(content, Padded):
            return self._content(content.range, factor)  # a table of more rows has those that it had
        if isinstance(content, Scaled):
            return self._content(content.range, factor * 2.0**content.exponent)
        if isinstance(content, Zeros):
            return _ZERO
        name = self._name(content) if isinstance(content, ByteRange) else None
        return self._stored(name, factor) if name is not None else (content, factor)

    def _name(self, span: ByteRange) -> str | None:
        """The tensor whose bytes these are, or whose first rows."""
        starts = ((name, tensor.range) for name, tensor in self.tensors.items())
        return next((name for name, held in starts if (held.file, held.start) == (span.file, span.start)), None)
