"""Map a parameter to a key for its values before and after a plan. Keys are equal if the values are proved equal."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.checkpoint.write_plan import Assembled, Content, Equal, Gathered, OutputTensor, Padded, Plan, Scaled, Zeros
from tieconv.loaders.loaded import Absence, Parameter

Values = tuple[object, ...]
_EQUAL = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})
ZEROS: Values = ("zeros",)


class KnownValues:
    """Map parameters to their values: a stored tensor and a factor, zeros, or the reason for no values."""

    def __init__(self, before: Inspection, plan: Plan) -> None:
        self.tensors = before.checkpoint.tensors
        outputs = [tensor for output in plan.weights for tensor in output.tensors]
        # Two shards may store one name. The copy that loaders take stays if either of them is unchanged.
        unchanged = {tensor.name for tensor in outputs if self._stays(tensor)}
        self.made = {tensor.name: tensor for tensor in outputs if tensor.name not in unchanged}
        equal = [
            [member.name for member in tie.members if member.state in _EQUAL and member.stored] for tie in before.ties
        ]
        equal += [list(duplicate.tensors) for duplicate in before.duplicates if duplicate.kind in _EQUAL]
        self.first = {name: group[0] for group in reversed(equal) for name in group}
        proofs = (proof for proof in plan.proofs if isinstance(proof, Equal) and proof.exponent)
        self.multiples = {proof.tensor.name: (proof.survivor.name, 2.0**proof.exponent) for proof in proofs}
        bias = before.head.output_bias
        zero = bias.name if bias is not None and bias.state is BiasState.ZERO else None
        self.zero = self.first.get(zero, zero) if zero is not None else None
        self.exact = {_shape_of(tensor): tensor.name for tensor in self._sources()}
        self.starts = {_start(tensor.range): tensor.name for tensor in self._sources() if tensor.range.size}

    def _sources(self) -> Iterator[TensorRecord]:
        """Yield the tensors whose bytes the plan may write, last one first. A mapping then keeps the first."""
        return reversed(tuple(self.tensors.values())) if self.made else iter(())

    def _stays(self, tensor: OutputTensor) -> bool:
        record = self.tensors.get(tensor.name)
        return record is not None and not isinstance(tensor.content, Scaled) and record.range == _span(tensor.content)

    def before(self, parameter: Parameter) -> Values:
        """Return the values that a parameter has before the plan."""
        if parameter.stored is None:
            return _absent(parameter)
        return self._stored(parameter.stored, parameter.factor)

    def after(self, parameter: Parameter) -> Values:
        """Return the values that a parameter has after the plan."""
        if parameter.stored is None:
            return _absent(parameter)
        tensor = self.made.get(parameter.stored)
        if tensor is None:
            return self._stored(parameter.stored, parameter.factor)
        return self._content(tensor, tensor.content, parameter.factor)

    def is_empty(self, parameter: Parameter) -> bool:
        """Return whether a parameter has a stored tensor without elements. No loader accepts it before the plan."""
        return parameter.stored is not None and not self.tensors[parameter.stored].elements

    def equal(self, name: str) -> Iterator[str]:
        """Yield the stored names with the same proved values as ``name``, including ``name``."""
        first = self.first.get(name, name)
        yield from (stored for stored in self.tensors if self.first.get(stored, stored) == first)

    def origin(self, parameter: Parameter) -> str | None:
        """Return the tensor that stored a parameter's bytes before, or ``None`` for bytes that the plan makes."""
        tensor = self.made.get(parameter.stored or "")
        if tensor is None:
            return parameter.stored
        return self._source(tensor, tensor.content)

    def _stored(self, name: str, factor: float) -> Values:
        if name in self.multiples:
            name, multiple = self.multiples[name]
            factor *= multiple
        first = self.first.get(name, name)
        return ZEROS if first == self.zero else (first, factor)

    def _content(self, tensor: OutputTensor, content: Content | Padded, factor: float) -> Values:
        if isinstance(content, Padded):
            return self._content(tensor, content.range, factor)  # the rows that it had keep their values
        if isinstance(content, Scaled):
            return self._content(tensor, content.range, factor * 2.0**content.exponent)
        if isinstance(content, Zeros):
            return ZEROS
        name = self._source(tensor, content)
        return self._stored(name, factor) if name is not None else (content, factor)

    def _source(self, tensor: OutputTensor, content: Content | Padded) -> str | None:
        """Return the tensor with these bytes or first rows, preferably with the same name. ``None`` if none has."""
        span = _span(content)
        if span is None:
            return None
        own = self.tensors.get(tensor.name)
        if own is not None and _start(own.range) == _start(span):
            return own.name
        stride = content.stride if isinstance(content, Gathered) else tensor.stride
        exact = self.exact.get((span, stride, tensor.dtype, tensor.shape))
        return exact or self.starts.get(_start(span))


def _shape_of(tensor: TensorRecord) -> Values:
    return (tensor.range, tensor.stride, tensor.dtype, tensor.shape)


def _start(span: ByteRange) -> tuple[str, int]:
    return span.file, span.start


def _span(content: Content | Padded) -> ByteRange | None:
    """Return the source bytes of a content, if it keeps their order. A strided view has the same elements."""
    if isinstance(content, Gathered | Scaled | Assembled):
        return content.range
    return content if isinstance(content, ByteRange) else None


def _absent(parameter: Parameter) -> Values:
    return ZEROS if parameter.absence is Absence.ZERO else (parameter.absence,)
