"""Read two models through one reader, and compare a tensor of the first with one of the second."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import frexp

from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.relation.proved import Identical, OtherBytes, Scaled
from tieconv.checkpoint.results.comparison import Contrast, ForwardScale, OnlyHere, Shapes, Values
from tieconv.checkpoint.tie_group import BiasState
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange, TensorRecord
from tieconv.inspection.equality import bias_summary, equal, relate
from tieconv.inspection.view_reader import readable
from tieconv.loaders.evidence import head_pair, in_file, is_zero
from tieconv.loaders.load import MLX_LM, bias_unset, load, releases
from tieconv.loaders.loaded import Cause, Loaded
from tieconv.sources.digest import same_hash
from tieconv.text import shown

_CONTRASTS = {
    State.TRANSPOSED: Contrast.TRANSPOSED,
    State.CAST: Contrast.CAST,
    State.SCALED: Contrast.SCALED,
    State.NEAR: Contrast.NEAR,
    State.DISTINCT: Contrast.DISTINCT,
}


@dataclass
class Pair:
    """Reads ranges of both models. The file names of each start with its letter, A or B."""

    a: ByteReader
    b: ByteReader
    bytes_read: int = 0

    def read_into(self, span: ByteRange, offset: int, buffer: memoryview) -> None:
        """Fill ``buffer`` from ``span``. Raises the errors of the model's reader."""
        side, name = span.file[0], span.file[2:]
        reader = self.a if side == "A" else self.b
        reader.read_into(ByteRange(name, span.start, span.end), offset, buffer)
        self.bytes_read += len(buffer)

    def next_data(self, span: ByteRange, offset: int) -> int:
        """As of the local files of the model that ``span`` is of; ``offset`` for a model elsewhere."""
        ask = getattr(self.a if span.file[0] == "A" else self.b, "next_data", None)
        return offset if ask is None else int(ask(ByteRange(span.file[2:], span.start, span.end), offset))

    def announce(self, spans: Iterable[ByteRange]) -> None:
        """Pass on to either reader what is read next of its model."""
        every = list(spans)
        for reader, side in ((self.a, "A"), (self.b, "B")):
            pieces = [ByteRange(span.file[2:], span.start, span.end) for span in every if span.file[0] == side]
            tell = getattr(reader, "announce", None)
            if tell is not None and pieces:
                tell(pieces)


Outcome = tuple[Contrast, OnlyHere | Shapes | ForwardScale | Values] | None
"""The difference of two tensors; ``None`` for equal tensors."""

_REMEMBERED = 64 * 1024
"""Size in bytes from which a relation is cached. Smaller tensors are cheaper to read again."""

MAX_SMALL_MEASURED = 10_000
"""Most tensors below `_REMEMBERED` bytes whose difference is measured. Each takes a third of a millisecond."""
_NOTHING = f"its bytes differ; beyond {MAX_SMALL_MEASURED:,} small tensors that differ nothing is measured"
_UNMEASURED = Contrast.DISTINCT, Values(OtherBytes(_NOTHING))


class Relations:
    """Relations between tensors of two models; those of tensors of `_REMEMBERED` bytes or more are cached."""

    def __init__(self, a: Checkpoint, b: Checkpoint, reader: Pair) -> None:
        self.sides = (a, b)
        self.reader = reader
        self.known: dict[object, Outcome] = {}
        self.hashes: dict[str, bool] = {}
        self.small_measured = 0

    def between(self, first: Source, second: Source) -> Outcome:
        """Return how ``second`` of B differs from ``first`` of A. Equality is claimed only after reading every byte."""
        if max(first.record.range.size, second.record.range.size) < _REMEMBERED:
            return self._relate(first, second)
        key = (_position(first.record), _position(second.record), first.scale / second.scale)
        if key not in self.known:
            self.known[key] = self._relate(first, second)
        return self.known[key]

    def is_zero(self, record: TensorRecord, *, in_a: bool) -> bool:
        """Return whether every value of a tensor is zero; the tensor is in model A or else in B."""
        state, _ = bias_summary(self.reader, of_side(record, "A" if in_a else "B"))
        return state is BiasState.ZERO

    def _relate(self, first: Source, second: Source) -> Outcome:
        alike = (first.record.dtype, first.record.shape) == (second.record.dtype, second.record.shape)
        same = alike and self._same_file(first.record, second.record)
        if same and first.scale == second.scale:
            return None
        a, b = of_side(first.record, "A"), of_side(second.record, "B")
        if alike and not same:
            reader, (left, right) = readable(self.reader, (a, b))
            same = equal(reader, left.range, right.range)
        if first.scale != second.scale:
            # Nothing differs if B's values are exactly A's times ``factor``, which A's forward pass applies.
            factor = first.scale / second.scale
            if same:
                return Contrast.SCALED, ForwardScale(factor)
            relation = relate(self.reader, a, b)
            exact = isinstance(relation, Scaled) and relation.exact and relation.factor == factor
            if exact and frexp(factor)[0] == 0.5:
                return None
            return _CONTRASTS[relation.state], Values(relation, factor)
        if same:
            return None
        return self._unmeasured(a, b) or self._contrast(a, b)

    def _unmeasured(self, a: TensorRecord, b: TensorRecord) -> Outcome:
        """Return only that the bytes differ, once enough small tensors were measured; else ``None``."""
        if max(a.range.size, b.range.size) >= _REMEMBERED or (a.dtype, a.shape) != (b.dtype, b.shape):
            return None
        self.small_measured += 1
        return _UNMEASURED if self.small_measured > MAX_SMALL_MEASURED else None

    def _same_file(self, first: TensorRecord, second: TensorRecord) -> bool:
        """Return whether both are one range of one file (hard links), or of two files with one hash."""
        spans = ((tensor.range.start, tensor.range.end, tensor.stride) for tensor in (first, second))
        if len(set(spans)) > 1:
            return False
        states = [side.states.get(record.range.file) for side, record in zip(self.sides, (first, second), strict=True)]
        if states[0] is not None and states[0] == states[1]:
            return True
        return first.range.file == second.range.file and self._same_hash(first.range.file)

    def _same_hash(self, name: str) -> bool:
        """Return whether a file on the Hub has the hash of the local file, without a download."""
        if bool(self.sides[0].revision) is bool(self.sides[1].revision) or not any(
            hasattr(reader, "known_hash") for reader in (self.reader.a, self.reader.b)
        ):
            return False
        if name not in self.hashes:
            sizes = [side.states[name].size if name in side.states else -1 for side in self.sides]
            self.hashes[name] = sizes[0] == sizes[1] >= 0 and same_hash(self.reader.a, self.reader.b, name)
        return self.hashes[name]

    def _contrast(self, a: TensorRecord, b: TensorRecord) -> Outcome:
        relation = relate(self.reader, a, b)
        if isinstance(relation, Identical):
            return None
        if relation.shape_differs or relation.is_empty:
            return Contrast.SHAPE, Shapes(a.shape, b.shape)
        return _CONTRASTS[relation.state], Values(relation)


def _position(record: TensorRecord) -> object:
    return record.range, record.stride, record.dtype, record.shape


def of_side(record: TensorRecord, side: str) -> TensorRecord:
    """Return the record of a tensor of model A or B, for a `Pair`."""
    span = record.range
    moved = ByteRange(f"{side}/{span.file}", span.start, span.end)
    return TensorRecord(side, record.dtype, record.shape, moved, record.stride, record.storage)


# Map the parameters of a model, under names that two models share, to their stored tensors.


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensor of a parameter, and the ``scale`` by which the forward pass multiplies it."""

    record: TensorRecord
    scale: float = 1.0


class ParameterNames:
    """Map names in the file to parameter names, without the base model's prefix and with renames undone.

    The object stores nothing for each tensor, because a model may have hundreds of thousands.
    """

    def __init__(self, inspection: Inspection) -> None:
        family = inspection.family
        self.tensors = inspection.checkpoint.tensors
        self._stored = {memory: stored for stored, memory in family.renames}
        self._memory: dict[str, list[str]] = {}
        for memory, stored in self._stored.items():
            self._memory.setdefault(stored, []).append(memory)
        self._prefix = f"{family.prefix}." if family.prefix else ""
        self._changes = bool(self._stored or self._prefix)
        # Two stored names that would become one keep their names in the file.
        self._clashing = {name for name in self.tensors if self._changes and not self._is_alone(name)}

    def of(self, name: str) -> str:
        """Return the parameter name of a name in the file."""
        return self._short(name) if self._changes and name not in self._clashing else name

    def stored(self, parameter: str) -> TensorRecord | None:
        """Return the tensor that the file stores for a parameter, or ``None``."""
        if not self._changes or parameter in self._clashing:
            return self.tensors.get(parameter)
        if not self._stored:  # the prefix alone: most models, and asked for each tensor
            record = self.tensors.get(self._prefix + parameter)
            if record is None and not parameter.startswith(self._prefix):
                record = self.tensors.get(parameter)
            return record
        return next((self.tensors[name] for name in self._spelled(parameter) if name not in self._clashing), None)

    def __iter__(self) -> Iterator[str]:
        return map(self.of, self.tensors)

    def _short(self, name: str) -> str:
        return self._stored.get(name, name).removeprefix(self._prefix)

    def _spelled(self, parameter: str) -> Iterator[str]:
        for known in (self._prefix + parameter, parameter) if self._prefix else (parameter,):
            for name in (known, *self._memory.get(known, ())):
                if name in self.tensors and self._short(name) == parameter:
                    yield name

    def _is_alone(self, name: str) -> bool:
        return all(spelling == name for spelling in self._spelled(self._short(name)))


class Sources:
    """Map parameter names to the sources in one loader: the stored tensor, or the source that was set."""

    def __init__(self, names: ParameterNames, unread: frozenset[str]) -> None:
        self.names = names
        self.changed: dict[str, Source | None] = {}
        self._unread = unread

    def get(self, parameter: str) -> Source | None:
        """Return the source of the values, or ``None`` if the loader has none."""
        if parameter in self.changed:
            return self.changed[parameter]
        record = self.names.stored(parameter)
        return None if record is None or record.name in self._unread else Source(record)

    def __setitem__(self, parameter: str, source: Source) -> None:
        self.changed[parameter] = source

    def drop(self, parameter: str) -> None:
        """Leave the parameter without values."""
        self.changed[parameter] = None


def parameters(a: Sources, b: Sources, further: list[Sources]) -> Iterator[str]:
    """Yield each parameter name of two models once: as stored in A, then in B, then set for a loader."""
    yield from a.names
    yield from (name for name in b.names if a.names.stored(name) is None)
    changed = {name for sources in (a, b, *further) for name in sources.changed}
    yield from sorted(name for name in changed if a.names.stored(name) is None and b.names.stored(name) is None)


# Describe a model in one loader: each parameter, and the stored tensor with its values.

HEAD_BIAS = "head bias"
"""The name under which every head bias is compared."""


@record
class View:
    """A model in one loader. A parameter that the loader leaves random or has no values for is absent.

    ``bias_unset``: an absent head bias does not start at zero. ``trouble`` says why the parameters in the table are not
    the whole model, else it is empty. ``refused``: the loader fails. ``in_order`` are different tables; the loader
    keeps the last one that it reads.
    """

    loader: str
    sources: Sources
    bias_unset: bool
    trouble: str = ""
    refused: bool = False
    in_order: tuple[str, ...] = ()


def views(inspection: Inspection) -> tuple[View, ...]:
    """Return the model in transformers 5, and in transformers 4 if that has its class."""
    key = ParameterNames(inspection)
    return tuple(_view(inspection, key, load(inspection, release), release) for release in releases(inspection))


def _mlx_view(inspection: Inspection) -> View | None:
    """Return a model of MLX in mlx-lm, ``None`` if another program wrote it or tieconv has no measurement of it."""
    model = load(inspection, *MLX_LM) if inspection.checkpoint.mlx else None
    if model is None or model.refused(Cause.UNKNOWN) is not None:
        return None
    view = _view(inspection, ParameterNames(inspection), model)
    pair = head_pair(inspection)
    if pair is not None and model.parameters and model.tied(pair.head, pair.embedding):
        # A tied module is one: its codes, scales and biases.
        for end in ("scales", "biases"):
            part = inspection.checkpoint.tensors.get(f"{pair.embedding.removesuffix('weight')}{end}")
            if part is not None:
                view.sources[view.sources.names.of(f"{pair.head.removesuffix('weight')}{end}")] = Source(part)
    return view


def _view(inspection: Inspection, key: ParameterNames, loaded: Loaded, *releases: str) -> View:
    tensors, biases = inspection.checkpoint.tensors, _biases(inspection)
    sources = Sources(key, loaded.unread)
    for name, parameter in loaded.parameters.items():
        if parameter.stored is None or name in biases:
            sources.drop(key.of(name))
        elif parameter.stored != name or parameter.factor != 1.0:
            sources[key.of(name)] = Source(tensors[parameter.stored], parameter.factor)
    for name in biases:
        sources.drop(key.of(name))
    if inspection.family.output_biases or not biases:
        read = loaded.source(biases[-1]) if biases else None
    else:
        read = biases[-1] if biases[-1] in inspection.checkpoint.tensors and biases[-1] not in loaded.unread else None
    # A class that starts an absent bias at zero computes the same without a stored zero.
    if read is not None and (bias_unset(inspection.family) or not is_zero(inspection, read)):
        sources[HEAD_BIAS] = Source(tensors[read])
    unset = bool(releases) and bias_unset(inspection.family, *releases)
    trouble, refused = _trouble(inspection, loaded, key), loaded.refused(Cause.NAMES) is not None
    return View(loaded.loader.partition(".")[0], sources, unset, trouble, refused, loaded.in_order)


def _trouble(inspection: Inspection, loaded: Loaded, key: ParameterNames) -> str:
    """Return why the loader fails, or what it leaves without values, with the names of the comparison."""
    refused = loaded.refused(Cause.CONFIG, Cause.NAMES)
    if refused is not None:
        return refused.sentence
    empty = [shown(key.of(name)) for name in loaded.unset if name not in _biases(inspection)]
    return f"{', '.join(empty)}: left without values" if empty else ""


def _biases(inspection: Inspection) -> list[str]:
    """Return the names of the head bias; the one next to the head's weight is last."""
    bias = inspection.head.output_bias
    names = [in_file(inspection, name) for name in inspection.family.output_biases]
    return names or ([bias.name] if bias is not None else [])


def loaded(a: Inspection, b: Inspection) -> Iterator[tuple[View, View]]:
    """Yield both models in each loader that loads at least one of them."""
    mlx = _mlx_view(a), _mlx_view(b)
    in_mlx = ((mlx[0], mlx[1]),) if mlx[0] is not None and mlx[1] is not None else ()
    pairs = in_mlx or zip(views(a), views(b), strict=False)
    return ((view_a, view_b) for view_a, view_b in pairs if not (view_a.refused and view_b.refused))


def untold(inspection: Inspection) -> Iterator[str]:
    """Yield why this model may have ties that the comparison does not know."""
    if not inspection.family.trusted:
        label = inspection.family.architecture or "its architecture"
        yield (
            f"{inspection.checkpoint.source}: tieconv does not know {label} and guesses the tied names; "
            "give them with --embed and --head"
        )
