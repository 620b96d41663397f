"""Two models compared: parameter by parameter as loaders see them, ties and layout seen through."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.results.comparison import (
    Comparison,
    ConfigDifference,
    Contrast,
    OnlyHere,
    Side,
    TensorDifference,
    Weight,
)
from tieconv.comparison.configs import DTYPES, compare_configs
from tieconv.comparison.files import compare_files
from tieconv.comparison.pair import Outcome, Pair, Relations
from tieconv.loaders.transformers.shared_tables import one_table
from tieconv.loaders.views import HEAD_BIAS, Source, View, loaded, untold
from tieconv.text import count, shown

__all__ = ["compare"]


def compare(a: Inspection, b: Inspection, reader_a: ByteReader, reader_b: ByteReader) -> Comparison:
    """What differs between two inspected models. Raises `UnreadableError` where bytes cannot be read."""
    reader = Pair(reader_a, reader_b)
    relations = Relations(a.checkpoint, b.checkpoint, reader)
    equal, tensors = _tensors(a, b, relations)
    config = compare_configs(a.checkpoint.config_values, b.checkpoint.config_values)
    reasons = tuple(_reasons(a, b, tensors, config))
    return Comparison(
        a=_side(a),
        b=_side(b),
        same_function=not reasons,
        reasons=reasons,
        equal=equal,
        tensors=tensors,
        config=config,
        files=compare_files(a.checkpoint, b.checkpoint, reader_a, reader_b),
        bytes_compared=reader.bytes_read,
        notes=tuple(_notes(a, b, config)),
    )


def _side(inspection: Inspection) -> Side:
    checkpoint = inspection.checkpoint
    return Side(
        checkpoint.source,
        checkpoint.format,
        inspection.family.architecture,
        len(checkpoint.tensors),
        inspection.bytes_stored,
    )


def _tensors(a: Inspection, b: Inspection, relations: Relations) -> tuple[int, tuple[TensorDifference, ...]]:
    """How many parameters are equal in every loader, and those that are not."""
    found: dict[tuple[object, ...], TensorDifference] = {}
    names: set[str] = set()
    for one, two in loaded(a, b):
        for name in sorted(one.sources.keys() | two.sources.keys()):
            names.add(name)
            difference = _difference(name, one, two, relations)
            if difference is None:
                continue
            key = (name, difference.a, difference.b, difference.contrast)
            earlier = found.get(key)
            loaders = (*(earlier.loaders if earlier else ()), one.loader)
            found[key] = TensorDifference(
                name, difference.a, difference.b, difference.contrast, loaders, difference.evidence
            )
    differing = {difference.name for difference in found.values()}
    return len(names - differing), tuple(sorted(found.values(), key=lambda difference: difference.name))


def _difference(name: str, one: View, two: View, relations: Relations) -> TensorDifference | None:
    a, b = one.sources.get(name), two.sources.get(name)
    outcome = _outcome(a, b, relations, zero_is_absent=name == HEAD_BIAS and not one.bias_unset)
    if outcome is None:
        return None
    names = [source.record.name if source else None for source in (a, b)]
    return TensorDifference(name, names[0], names[1], outcome[0], (one.loader,), outcome[1])


def _outcome(a: Source | None, b: Source | None, relations: Relations, *, zero_is_absent: bool) -> Outcome:
    if a is not None and b is not None:
        return relations.between(a, b)
    source = a or b
    assert source is not None  # the name comes from one of the two
    if zero_is_absent and relations.is_zero(source.record, in_a=a is not None):
        return None
    return (Contrast.ONLY_A if b is None else Contrast.ONLY_B), OnlyHere(source.record.shape, source.record.dtype)


def _reasons(
    a: Inspection, b: Inspection, tensors: tuple[TensorDifference, ...], config: tuple[ConfigDifference, ...]
) -> Iterator[str]:
    if tensors:
        first = tensors[0]
        where = "" if len(first.loaders) > 1 else f" in {first.loaders[0]}"
        yield f"{count(len(tensors), 'parameter')} differing, first {shown(first.name)}{where}"
    for one, two in loaded(a, b):
        if one.trouble != two.trouble:
            yield f"{one.loader} makes another model of one of them: {one.trouble or two.trouble}"
    weighty = [found.path for found in config if found.weight is Weight.FUNCTION]
    if weighty:
        yield f"{count(len(weighty), 'config value')} that may change what is computed, first {shown(weighty[0])}"
    if (one_table(a) or one_table(b)) and _order(a.checkpoint) != _order(b.checkpoint):
        names = ", ".join(map(shown, one_table(a) or one_table(b)))
        yield f"another order of {names}, which differ and of which transformers 4 keeps the one that it reads last"
    if (a.checkpoint.config is None) is not (b.checkpoint.config is None):
        yield "one has a config.json and the other none"


def _notes(a: Inspection, b: Inspection, config: tuple[ConfigDifference, ...]) -> Iterator[str]:
    yield from untold(a)
    yield from untold(b)
    types = any(found.path.rpartition(".")[2] in DTYPES for found in config)
    if types and _dtypes(a.checkpoint) == _dtypes(b.checkpoint):
        yield "the configs name different types to load as; the stored types are the same, and so are the values"


def _order(checkpoint: Checkpoint) -> list[str]:
    return [checkpoint.format, *(record.name for file in checkpoint.files for record in file.tensors)]


def _dtypes(checkpoint: Checkpoint) -> set[str]:
    return {record.dtype for record in checkpoint.tensors.values()}
