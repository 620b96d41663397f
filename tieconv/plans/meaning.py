"""Decide for each change of a plan whether tieconv refuses it, prints a note, or says nothing.

Each release of transformers loads the model before and after the plan. A difference is

* a note of the planner, if the user asked for it. The planner lists the tensors in a `Note`;
* a refusal, if a parameter loses its stored values in transformers 5, the newest release;
* a refusal, if transformers 5 refuses the result;
* a refusal, if any release does not restore a tensor that the plan drops only to save bytes;
* else a note. Only an older release loses values, or a parameter without values gets some.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn, assert_never

from tieconv.architectures.effective_flag import reading_v4
from tieconv.checkpoint import write_plan
from tieconv.checkpoint.finding import REVIEW_FIRST, Outcome
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.model_files import Checkpoint, Document, Layout
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord, WeightFile
from tieconv.inspection.declared import gated, same_order, type_may_change, understand, view_config
from tieconv.inspection.quantised import declared_quantisation
from tieconv.inspection.ties import survey, view_head
from tieconv.loaders.load import MLX_LM, TRANSFORMERS_5, load, releases
from tieconv.loaders.loaded import Absence, Loaded, Parameter
from tieconv.plans.guards import refuse
from tieconv.text import Hint, call, in_words, shown

_CHANGES = (
    write_plan.SetConfig, write_plan.DropConfig, write_plan.SetTensor, write_plan.ScaleTensor, write_plan.AverageTensor,
    write_plan.ResizeTensor,
)  # fmt: skip


def judged(
    plan: write_plan.Plan,
    before: Inspection,
    after: Inspection,
    notes: Notes,
    *,
    spared: Collection[str] = (),
    forced: bool = False,
) -> write_plan.Plan:
    """Return the plan that turns the model ``before`` into ``after``, with ``notes`` and notes about its loaders.

    ``spared`` are the tensors that the plan drops only to save bytes. With ``forced`` the user accepts every change.
    Raises `RefusedError` if the plan loses values and the user did not ask for that.
    """
    left = [name for name in plan.checkpoint.also_weights if name not in plan.removed]
    if left and (forced or any(isinstance(operation, _CHANGES) for operation in plan.operations)):
        problem = f"{shown(left[0])} holds the weights of the same model, and {plan.command} would not change it"
        advice = "move it to another directory with a copy of config.json, and change both models"
        refuse(problem, advice, "layout.beside", source=shown(plan.checkpoint.source))
    texts = tuple(note if isinstance(note, str) else note.text for note in notes)
    if before.checkpoint.config is None or plan.changes_nothing:
        return replace(plan, notes=texts)
    asked = tuple(note for note in notes if isinstance(note, Note))
    seen = tuple(_views(before, after, plan, asked))
    each = Hint("", python="'all'")
    hint = Hint("see what each loader makes of the model: ", call("inspect", before.checkpoint.source, consumers=each))
    if not forced:
        for view in seen:
            newest = view.release == TRANSFORMERS_5
            if newest and view.refused:
                refuse(refused(view.release, view.refused), hint, "meaning.refused")
            for change in view.changes:
                if change.loses and (newest or not {change.name, change.before.stored}.isdisjoint(spared)):
                    refuse(lost(view.release, change.name, *ends(change)), hint, "meaning.lost")
        _refuse_in_mlx(before, after, hint)
    types = type_may_change(before.checkpoint, after.checkpoint)
    computed = (*_notes(seen), *((first_type(types),) if types else ()))
    changed = (change for view in seen for change in view.changes)
    filled = {change.name for change in changed if change.before.absence is Absence.RANDOM and change.after.stored}
    summary = f"{plan.summary}, {in_words(sorted(filled), 2)} no longer random" if filled else plan.summary
    return replace(plan, summary=summary, notes=(*texts, *(f"{sentence} {REVIEW_FIRST}" for sentence in computed)))


@record
class _View:
    """The differences in one release that the user did not ask for.

    ``swapped`` are embeddings that it may read in another order. ``refused`` is the reason why it refuses the result.
    """

    release: str
    changes: tuple[Change, ...]
    swapped: tuple[str, ...]
    refused: str


def _views(before: Inspection, after: Inspection, plan: write_plan.Plan, asked: tuple[Note, ...]) -> Iterator[_View]:
    values = KnownValues(before, plan)
    for release in releases(before):
        was, comes = load(before, release), load(after, release)
        known = release == TRANSFORMERS_5 or reading_v4(before) is not None
        if not known or was.refused() is not None:
            continue
        refusal = comes.refused()
        swapped = () if same_order(before.checkpoint, after.checkpoint, was.in_order) else was.in_order
        left = list[Change]()
        for change in () if refusal else changes(before, after, was, comes, values):
            names = (change.name, *values.equal(change.before.stored or change.name))
            if change.before.stored not in swapped and not any(note.covers(release, names) for note in asked):
                left.append(change)
        yield _View(release, tuple(left), swapped, refusal.sentence if refusal else "")


def _refuse_in_mlx(before: Inspection, after: Inspection, hint: Hint) -> None:
    """Refuse a plan for files of MLX if mlx-lm loads the model, but would not load the result."""
    if not before.checkpoint.mlx or (after.checkpoint.format != before.checkpoint.format and not before.quantisation):
        return  # transformers reads floats of MLX in another format
    from tieconv.loaders.registry import consumer  # few models are files of MLX

    release, name = MLX_LM
    was, comes = (consumer(name, release).predict(model) for model in (before, after))
    if comes.outcome in _FAULTS and was.outcome not in (*_FAULTS, Outcome.UNKNOWN):
        refuse(f"{name} {release} would not load the result correctly: {comes.detail}", hint, "meaning.refused")


_FAULTS = (Outcome.ERROR, Outcome.RANDOM, Outcome.DISCARDED)


def _notes(seen: tuple[_View, ...]) -> Iterator[str]:
    changed: list[tuple[str, Change]] = []
    for view in reversed(seen):
        if view.refused:
            yield refused(view.release, view.refused)
        if view.swapped:
            yield swapped(view.release, view.swapped)
        without_value = [change for change in view.changes if change.after.absence is Absence.UNSET]
        for source in dict.fromkeys(change.after.parameter for change in without_value):
            yield unset(view.release, source)
        changed += [(view.release, change) for change in view.changes if change not in without_value]
    yield from grouped(changed)


@record
class Note:
    """A note about changes that the user asked for.

    ``tensors`` are the stored tensors or absent parameters whose values may change, with their names before the plan.
    ``releases`` are the releases of transformers that the note is about. Empty means all releases.
    """

    text: str
    tensors: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()

    def covers(self, release: str, names: Iterable[str]) -> bool:
        """Return whether the note is about one of ``names`` in a release."""
        return (not self.releases or release in self.releases) and not set(self.tensors).isdisjoint(names)


Notes = tuple[str | Note, ...]
"""The notes of a planner. A note that is a ``str`` is about no change of values."""


# List the parameters whose values change with a plan, for one release of transformers.
@record
class Change:
    """A parameter whose values change with the plan. ``name`` is its name in the file before the plan.

    ``origin`` is the tensor that stored the new values before, ``None`` if the plan makes the values.
    """

    name: str
    before: Parameter
    after: Parameter
    origin: str | None = None

    @property
    def loses(self) -> bool:
        """Whether the parameter no longer gets stored values. If false, it had none before."""
        return self.before.stored is not None


def changes(
    model: Inspection, result: Inspection, before: Loaded, after: Loaded, values: KnownValues
) -> Iterator[Change]:
    """Yield the parameters whose values change between a model and the ``result`` of the plan."""
    for name, old in before.names.items():
        if name in model.family.output_biases[:-1]:  # the logits use only the last name of a bias
            continue
        if quantised_twin(old, values.tensors) is None:
            yield from _change(old, before.parameters[old], after.parameters[after.names[name]], values)
    # The changes of tensors that are not in the class table. Each is a separate parameter.
    # Its values must stay stored, under any name.
    stored, known = result.checkpoint.tensors, set(before.names.values())
    left: set[object] | None = None
    for name, tensor in values.tensors.items():
        if name in known:
            continue
        own = Parameter(name, name)
        if name in before.unread:
            if name in stored and name not in after.unread:
                yield Change(name, replace(own, stored=None, absence=Absence.RANDOM), own, name)
        elif stored.get(name) is not tensor:
            if left is None:
                left = {values.after(Parameter(each, each)) for each in stored}
            if values.before(own) not in left and values.before(own) != ZEROS:
                yield Change(name, own, own if name in stored else Parameter(None, name, Absence.RANDOM))


def _change(name: str, was: Parameter, comes: Parameter, values: KnownValues) -> Iterator[Change]:
    if values.before(was) == values.after(comes) or values.is_empty(was):
        return
    if was.absence in (Absence.RANDOM, Absence.UNSET) and comes.stored is None:
        return  # it has no stored values before or after
    yield Change(name, was, comes, values.origin(comes))


# Write the sentences about values that transformers loads differently after a plan.

_LISTED = 6
OWN = "with its own values"


def lost(release: str, name: str, had: str, gets: str) -> str:
    """Return the refusal of a plan that loses the values of a tensor."""
    return f"transformers {_major(release)} loads {shown(name)} {had} now and would load it {gets} afterwards"


def refused(release: str, sentence: str) -> str:
    """Return the sentence about a result that a release refuses."""
    return f"transformers {_major(release)} refuses the result: {sentence}"


def unset(release: str, source: str) -> str:
    """Return the sentence about tied parameters whose only source is dropped."""
    loader = f"transformers {_major(release)}"
    return f"{loader} reads the tied values only from {shown(source)}, which the plan leaves out"


def swapped(release: str, names: Sequence[str]) -> str:
    """Return the sentence about embeddings that may be read in another order."""
    listed = ", ".join(map(shown, names))
    return (
        f"{listed} differ, and transformers {_major(release)} keeps only the one that it reads last. "
        "The plan changes their order"
    )


def first_type(dtypes: Collection[str]) -> str:
    """Return the sentence about the type in which transformers 5 loads a model."""
    return (
        f"the config has no dtype, and the tensors have the dtypes {', '.join(sorted(dtypes))}. transformers 5 loads "
        "all tensors in the dtype of the first one that it reads. The plan may change the first one: "
        "write dtype into config.json"
    )


def ends(change: Change) -> tuple[str, str]:
    """Return the phrases for the values of a parameter before and after the plan."""
    return _values(change.name, change.before, change.before.stored), _values(change.name, change.after, change.origin)


def _values(name: str, parameter: Parameter, source: str | None) -> str:
    """Return the phrase for a parameter's values. ``source`` is the tensor that held them before the plan."""
    match parameter.absence:
        case None:
            return _stored(name, source) + ("" if parameter.factor == 1.0 else f" times {parameter.factor:.6g}")
        case Absence.RANDOM:
            return "with random numbers"
        case Absence.ZERO:
            return "with zeros"
        case Absence.MEMORY:
            return "with whatever the memory held"
        case Absence.UNSET:
            return "without values"
        case _:
            assert_never(parameter.absence)


def _stored(name: str, source: str | None) -> str:
    return "with other values" if source is None else OWN if source == name else values_of(source)


def values_of(source: str) -> str:
    """Return the phrase for the values of a stored tensor."""
    return f"with the values of {shown(source)}"


def _major(release: str) -> str:
    return release.partition(".")[0]


def grouped(changes: Iterable[tuple[str, Change]]) -> Iterator[str]:
    """Yield the sentences about ``changes``, which are pairs of a release and a change."""
    releases: dict[tuple[str, str, str, str | None], list[str]] = {}
    for release, change in changes:
        had, gets = ends(change)
        releases.setdefault((change.name, had, gets, change.origin), []).append(release)
    by_source: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (name, had, gets, origin), some in releases.items():
        values = values_of(origin) if gets == OWN and origin is not None else gets
        by_source.setdefault((had, values, tuple(some)), []).append(name)
    by_fate: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (had, values, together), names in by_source.items():
        own = len(names) == 1 and values == values_of(names[0])
        by_fate.setdefault((had, OWN if own else values, together), []).extend(names)
    for (had, values, together), names in by_fate.items():
        loaders = f"transformers {' and '.join(map(_major, together))} {'load' if len(together) > 1 else 'loads'}"
        gets = "with their own values" if values == OWN and len(names) > 1 else values
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        listed = ", ".join(shown(name) for name in names[:_LISTED]) + more
        yield f"{loaders} {listed} {had} now and {gets} afterwards"


Values = tuple[object, ...]
_EQUAL = frozenset({State.CANONICAL, State.IDENTICAL, State.ALIASED})
ZEROS: Values = ("zeros",)


class KnownValues:
    """Map parameters to their values: a stored tensor and a factor, zeros, or the reason for no values."""

    def __init__(self, before: Inspection, plan: write_plan.Plan) -> None:
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
        proofs = (proof for proof in plan.proofs if isinstance(proof, write_plan.Equal) and proof.exponent)
        self.multiples = {proof.tensor.name: (proof.survivor.name, 2.0**proof.exponent) for proof in proofs}
        bias = before.head.output_bias
        zero = bias.name if bias is not None and bias.state is BiasState.ZERO else None
        self.zero = self.first.get(zero, zero) if zero is not None else None
        self.exact = {
            ((tensor.range, tensor.stride, tensor.dtype, tensor.shape)): tensor.name for tensor in self._sources()
        }
        self.starts = {_start(tensor.range): tensor.name for tensor in self._sources() if tensor.range.size}

    def _sources(self) -> Iterator[TensorRecord]:
        """Yield the tensors whose bytes the plan may write, last one first. A mapping then keeps the first."""
        return reversed(tuple(self.tensors.values())) if self.made else iter(())

    def _stays(self, tensor: write_plan.OutputTensor) -> bool:
        record = self.tensors.get(tensor.name)
        return (
            record is not None
            and not isinstance(tensor.content, write_plan.Scaled)
            and record.range == _span(tensor.content)
        )

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

    def _content(
        self, tensor: write_plan.OutputTensor, content: write_plan.Content | write_plan.Padded, factor: float
    ) -> Values:
        if isinstance(content, write_plan.Padded):
            return self._content(tensor, content.range, factor)  # the rows that it had keep their values
        if isinstance(content, write_plan.Scaled):
            return self._content(tensor, content.range, factor * 2.0**content.exponent)
        if isinstance(content, write_plan.Zeros):
            return ZEROS
        name = self._source(tensor, content)
        return self._stored(name, factor) if name is not None else (content, factor)

    def _source(self, tensor: write_plan.OutputTensor, content: write_plan.Content | write_plan.Padded) -> str | None:
        """Return the tensor with these bytes or first rows, preferably with the same name. ``None`` if none has."""
        span = _span(content)
        if span is None:
            return None
        own = self.tensors.get(tensor.name)
        if own is not None and _start(own.range) == _start(span):
            return own.name
        stride = content.stride if isinstance(content, write_plan.Gathered) else tensor.stride
        exact = self.exact.get((span, stride, tensor.dtype, tensor.shape))
        return exact or self.starts.get(_start(span))


def _start(span: ByteRange) -> tuple[str, int]:
    return span.file, span.start


def _span(content: write_plan.Content | write_plan.Padded) -> ByteRange | None:
    """Return the source bytes of a content, if it keeps their order. A strided view has the same elements."""
    if isinstance(content, write_plan.Gathered | write_plan.Scaled | write_plan.Assembled):
        return content.range
    return content if isinstance(content, ByteRange) else None


def _absent(parameter: Parameter) -> Values:
    return ZEROS if parameter.absence is Absence.ZERO else (parameter.absence,)


def described(inspection: Inspection, plan: write_plan.Plan) -> Inspection:
    """Return the header evidence about the model after the plan. Reads no file."""
    family = inspection.family
    checkpoint = _checkpoint(inspection.checkpoint, plan)
    if checkpoint.format == "gguf":  # it has no config: the stored names decide
        family, config = understand(checkpoint, None, None)
    else:
        config = view_config(checkpoint.config_values, family)
    tensors, reader = checkpoint.tensors, _NoBytes()
    ties = survey(family, tensors, reader, Depth.HEADER, gated(config, family))
    head = view_head(family, tensors, ties, reader, Depth.HEADER)
    declared = declared_quantisation(checkpoint.quantisation_values, family)
    read = replace(inspection, checkpoint=checkpoint, family=family, config=config, quantisation=declared)
    return replace(read, ties=ties, head=head, duplicates=())


class _NoBytes:
    """A reader without tensor bytes, because a plan has only headers."""

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> NoReturn:
        raise AssertionError(span)


def _checkpoint(before: Checkpoint, plan: write_plan.Plan) -> Checkpoint:
    """Return the files after the plan. If it writes another format, the old weight files are not in the model."""
    written = {output.name: output for output in plan.weights}
    form = plan.weights[0].format if plan.weights else before.format
    replaced = {*written, *plan.removed} if form == before.format else {file.name for file in before.files}
    files = [file for file in before.files if file.name not in replaced]
    files += [_file(output, before) for output in written.values()]
    order = {file.name: number for number, file in enumerate(before.files)}
    files.sort(key=lambda file: (order.get(file.name, len(order)), file.name))
    config, index, cautions = before.config, before.index, before.cautions
    for text in plan.texts:
        if config is not None and text.name == config.name:
            config = _document(text)
        elif text.name.endswith(".index.json"):
            index = _document(text)
            cautions = tuple(caution for caution in cautions if not caution.code.startswith("index."))
    layout = before.layout
    if layout is not Layout.FILE and len(files) > 1:
        layout = Layout.SHARDED
    return replace(
        before, files=tuple(files), format=form, layout=layout, config=config, index=index, cautions=cautions
    )


def _document(text: write_plan.OutputText) -> Document:
    return Document(text.name, text.text, json.loads(text.text))


def _file(output: write_plan.OutputWeights, before: Checkpoint) -> WeightFile:
    tensors = tuple(_record(output, tensor, before.tensors.get(tensor.name)) for tensor in output.tensors)
    return WeightFile(output.name, 0, 0, tensors, output.metadata, gguf=output.gguf)


def _record(
    output: write_plan.OutputWeights, tensor: write_plan.OutputTensor, before: TensorRecord | None
) -> TensorRecord:
    """Return the tensor with the range of its bytes now. Bytes that the plan makes get a range in no file."""
    content = tensor.content
    if before is not None and (before.range, before.dtype, before.shape) == (content, tensor.dtype, tensor.shape):
        return before
    if isinstance(content, write_plan.Assembled):
        content = content.range
    span = content if isinstance(content, ByteRange) else ByteRange(f"{output.name}/{tensor.name}", 0, tensor.nbytes)
    return TensorRecord(tensor.name, tensor.dtype, tensor.shape, span, tensor.stride)
