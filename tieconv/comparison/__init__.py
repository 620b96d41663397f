"""Compare two models parameter by parameter, as loaders read them, whatever their ties and layout are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.relation.proved import Cast
from tieconv.checkpoint.results import comparison as results
from tieconv.checkpoint.weight_file import FLOATS
from tieconv.comparison.differences import DTYPES, compare_configs, compare_files, matrix_differences, quantised_config
from tieconv.comparison.pair import HEAD_BIAS, Outcome, Pair, Relations, Source, View, loaded, parameters, untold
from tieconv.inspection.declared import same_order, type_may_change
from tieconv.text import count, in_words, listed, shown

__all__ = ["compare"]


def compare(a: Inspection, b: Inspection, reader_a: ByteReader, reader_b: ByteReader) -> results.Comparison:
    """Compare two inspected models. Raises `UnreadableError` if bytes cannot be read."""
    reader = Pair(reader_a, reader_b)
    relations = Relations(a.checkpoint, b.checkpoint, reader)
    pairs = tuple(loaded(a, b))
    equal, tensors = _tensors(pairs, relations)
    matrices = tuple(matrix_differences(a, b, tensors, reader))
    floats = (_dtypes(a.checkpoint) | _dtypes(b.checkpoint)) & FLOATS
    config = compare_configs(quantised_config(a), quantised_config(b), floats)
    files = tuple(compare_files(a.checkpoint, b.checkpoint, reader_a, reader_b))
    reasons = tuple(_reasons(a, b, pairs, tensors, config, files))
    return results.Comparison(
        a=_side(a),
        b=_side(b),
        same_function=not reasons,
        reasons=reasons,
        equal=equal,
        tensors=tensors,
        config=config,
        files=files,
        bytes_compared=reader.bytes_read,
        notes=tuple(_notes(a, b, config, files)),
        matrices=matrices,
    )


def _side(inspection: Inspection) -> results.Side:
    checkpoint, architecture = inspection.checkpoint, inspection.family.architecture
    tensors, bytes_stored = len(checkpoint.tensors), inspection.bytes_stored
    return results.Side(checkpoint.source, checkpoint.format, architecture, tensors, bytes_stored)


def _tensors(
    pairs: Sequence[tuple[View, View]], relations: Relations
) -> tuple[int, tuple[results.TensorDifference, ...]]:
    """Return the number of parameters that are equal in every loader, and the differences of the others."""
    equal, differing = 0, list[results.TensorDifference]()
    if not pairs:
        return 0, ()
    every = [view.sources for pair in pairs for view in pair]
    for name in parameters(every[0], every[1], every[2:]):
        # The sources of a parameter in each loader that has it in one of the models.
        seen: list[_Seen] = []
        for view_a, view_b in pairs:
            a, b = view_a.sources.get(name), view_b.sources.get(name)
            if a is None and b is None:
                continue
            if seen and seen[-1][1:3] == (a, b) and name != HEAD_BIAS:
                outcome = seen[-1][3]
            else:
                outcome = _outcome(a, b, relations, zero_is_absent=name == HEAD_BIAS and not view_a.bias_unset)
            seen.append((view_a.loader, a, b, outcome))
        # Loaders that read the same pair of tensors share one difference.
        by_tensors: dict[object, results.TensorDifference] = {}
        for loader, a, b, outcome in seen:
            if outcome is None:
                continue
            names = [source.record.name if source else None for source in (a, b)]
            key = (*names, outcome[0])
            loaders = (*(by_tensors[key].loaders if key in by_tensors else ()), loader)
            by_tensors[key] = results.TensorDifference(name, names[0], names[1], outcome[0], loaders, outcome[1])
        differences = list(by_tensors.values())
        differing.extend(differences)
        equal += bool(seen) and not differences
    return equal, tuple(sorted(differing, key=lambda difference: difference.name))


_Seen = tuple[str, Source | None, Source | None, Outcome]
"""A loader, the stored tensors of a parameter in both models, and their difference."""


def _outcome(a: Source | None, b: Source | None, relations: Relations, *, zero_is_absent: bool) -> Outcome:
    if a is not None and b is not None:
        return relations.between(a, b)
    source = a or b
    assert source is not None  # one of the two models has the name
    if zero_is_absent and relations.is_zero(source.record, in_a=a is not None):
        return None
    here = results.OnlyHere(source.record.shape, source.record.dtype)
    return (results.Contrast.ONLY_A if b is None else results.Contrast.ONLY_B), here


def _cast_clause(tensors: Sequence[results.TensorDifference]) -> str:
    """Return the clause for parameters that all differ in their dtype alone; empty if one differs in its values."""
    relations = [entry.evidence.relation for entry in tensors if isinstance(entry.evidence, results.Values)]
    casts = [each for each in relations if isinstance(each, Cast) and not (each.transposed or each.nan)]
    if len(casts) < len(tensors):
        return ""
    lossless = all(cast.lossless for cast in casts)
    return "; each has the same values in another dtype" if lossless else "; each is equal after a cast"


def _reasons(
    a: Inspection,
    b: Inspection,
    pairs: Sequence[tuple[View, View]],
    tensors: tuple[results.TensorDifference, ...],
    config: tuple[results.ConfigDifference, ...],
    files: tuple[results.FileDifference, ...],
) -> Iterator[str]:
    if tensors:
        first = tensors[0]
        where = "" if len(first.loaders) > 1 else f" in {first.loaders[0]}"
        differing = {difference.name for difference in tensors}  # each loader of the two may have the same name
        yield f"{count(len(differing), 'parameter')} differing, first {shown(first.name)}{where}{_cast_clause(tensors)}"
    for view_a, view_b in pairs:
        if view_a.trouble != view_b.trouble:
            yield f"{view_a.loader} makes another model of one of them: {view_a.trouble or view_b.trouble}"
    weighty = [difference.path for difference in config if difference.weight is results.Weight.FUNCTION]
    if weighty:
        yield f"{count(len(weighty), 'config value')} that may change what is computed, first {shown(weighty[0])}"
    for view_a, view_b in pairs:
        tables = view_a.in_order or view_b.in_order
        if tables and not same_order(a.checkpoint, b.checkpoint, tables):
            names = ", ".join(map(shown, tables))
            loader = view_a.loader
            yield f"another order of {names}, which differ and of which {loader} keeps the one that it reads last"
    if (a.checkpoint.config is None) is not (b.checkpoint.config is None):
        yield "one has a config.json and the other none"
    paths = [difference.name for difference in files]
    adapted = any("adapter_config.json" in model.checkpoint.companions for model in (a, b))
    if adapter := [name for name in paths if adapted and name.startswith(("adapter_config.", "adapter_model."))]:
        yield f"{in_words(adapter)}, which transformers adds to the model if peft is installed"
    coded = any("auto_map" in model.checkpoint.config_values for model in (a, b))
    if code := [name for name in paths if coded and name.endswith(".py")]:
        yield f"{in_words(code)}, the code that trust_remote_code runs"


_WEIGHTS = (".onnx", ".onnx_data", ".onnx.data", ".gguf", ".safetensors", ".bin", ".pt", ".pth")


def _notes(
    a: Inspection,
    b: Inspection,
    config: tuple[results.ConfigDifference, ...],
    files: tuple[results.FileDifference, ...],
) -> Iterator[str]:
    yield from untold(a)
    yield from untold(b)
    if names := [difference.name for difference in files if difference.name.endswith(_WEIGHTS)]:
        yield f"these files may hold other models, which were not compared: {listed(names, 3)}"
    if first_types := type_may_change(a.checkpoint, b.checkpoint):
        yield (
            f"a config has no dtype, and tensors have the types {', '.join(first_types)}. "
            "transformers 5 loads each model in the type of the first tensor that it reads."
        )
    types = any(difference.path.rpartition(".")[2] in DTYPES for difference in config)
    if types and _dtypes(a.checkpoint) == _dtypes(b.checkpoint):
        yield "the configs have different dtypes, but the stored types are the same"


def _dtypes(checkpoint: Checkpoint) -> set[str]:
    return {record.dtype for record in checkpoint.tensors.values()}
