"""What differs between two models beside their parameters: configs, files and quantised matrices."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tieconv.architectures.effective_flag import DERIVED_KEY, FLAG
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint, Layout
from tieconv.checkpoint.quantised_matrix import QuantisedMatrix
from tieconv.checkpoint.results import comparison as results
from tieconv.checkpoint.results.push import Effect
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord
from tieconv.comparison.pair import Pair, Relations, Source, of_side
from tieconv.inspection.quantised.survey_quantised import Table, relate_tables
from tieconv.inspection.view_reader import is_costly
from tieconv.loaders.evidence import is_zero
from tieconv.sources import local
from tieconv.sources.digest import same_hash
from tieconv.text import count, json_value, shown, size

# Compare two configs value by value, and classify each difference.

COSMETIC = frozenset({"transformers_version", "_name_or_path", "_commit_hash", "_attn_implementation_autoset"})
"""Keys about the origin of the config, which no computation uses."""

DTYPES = frozenset({"dtype", "torch_dtype"})
"""Both names of the dtype in which transformers 5 loads and computes. Without it, the stored types decide."""

_ABSENT = object()


_STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def compare_configs(
    a: Mapping[str, object], b: Mapping[str, object], stored: Collection[str] = ()
) -> tuple[results.ConfigDifference, ...]:
    """Return every value that differs, in the order of the paths. ``stored`` are the types of both models' floats."""
    values_a, values_b = dict(_flat(_one_spelling(a), "")), dict(_flat(_one_spelling(b), ""))

    def weight(path: str) -> results.Weight:
        stated = [values[path] for values in (values_a, values_b) if path in values]
        # Without the key, transformers 5 loads the type that is stored. Of several types, a note says that.
        converted = len(stored) == 1 and _STORED.get(str(stated[0])) not in stored
        key = path.rpartition(".")[2]
        if key in COSMETIC or (key in DTYPES and len(stated) == 1 and not converted):
            return results.Weight.COSMETIC
        return results.Weight.TENSORS if key in (FLAG, DERIVED_KEY) else results.Weight.FUNCTION

    return tuple(
        results.ConfigDifference(
            path, values_a.get(path), values_b.get(path), path in values_a, path in values_b, weight(path)
        )
        for path in sorted(values_a.keys() | values_b.keys())
        if not _same(values_a.get(path, _ABSENT), values_b.get(path, _ABSENT))
    )


def _one_spelling(config: Mapping[str, object]) -> dict[str, object]:
    """Return the config with `torch_dtype` renamed to `dtype`, as in transformers 5."""
    return {"dtype" if key == "torch_dtype" and "dtype" not in config else key: value for key, value in config.items()}


def quantised_config(model: Inspection) -> dict[str, object]:
    """Return the config. An entry of MLX about the head is left out if it repeats that of the embedding."""
    config, names = dict(model.checkpoint.config_values), [model.head.output_head, model.head.input_embedding]
    head, embedding = (name.name.removesuffix(".weight") if name else "" for name in names)
    for key in ("quantization", "quantization_config"):
        settings = config.get(key)
        if isinstance(settings, Mapping) and head in settings and settings[head] == settings.get(embedding):
            config[key] = {module: entry for module, entry in settings.items() if module != head}
    return config


def _flat(config: Mapping[str, object], start: str) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(_one_spelling(value), f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def _same(value_a: object, value_b: object) -> bool:
    """Return whether two values are equal as JSON: true is not 1."""
    if isinstance(value_a, list) and isinstance(value_b, list):
        return len(value_a) == len(value_b) and all(map(_same, value_a, value_b))
    return type(value_a) is type(value_b) and (value_a == value_b or (value_a != value_a and value_b != value_b))


_BLOCK = 1024 * 1024


def compare_files(a: Checkpoint, b: Checkpoint, reader_a: object, reader_b: object) -> Iterator[results.FileDifference]:
    """Yield files that only one directory has, or that differ; nothing for models of a single file.

    Files on the Hub are compared by their hashes and are not downloaded. Files in an object store are read.
    """
    if Layout.FILE in (a.layout, b.layout):
        return

    def equal(name: str) -> bool:
        if a.revision or b.revision:
            return same_hash(reader_a, reader_b, name)
        return _same_bytes(Path(a.root), Path(b.root), name)

    for name in sorted(a.companions.keys() | b.companions.keys()):
        if name not in b.companions:
            yield results.FileDifference(name, results.Contrast.ONLY_A)
        elif name not in a.companions:
            yield results.FileDifference(name, results.Contrast.ONLY_B)
        elif a.companions[name] != b.companions[name] or not equal(name):
            yield results.FileDifference(name, results.Contrast.DISTINCT)


def _same_bytes(folder_a: Path, folder_b: Path, name: str) -> bool:
    with (
        local.closing(local.open_regular(folder_a / name, folder_a)) as first,
        local.closing(local.open_regular(folder_b / name, folder_b)) as second,
    ):
        if os.path.samestat(os.fstat(first), os.fstat(second)):
            return True
        offset = 0
        while True:
            left, right = (local.read_at(descriptor, _BLOCK, offset) for descriptor in (first, second))
            if left != right or not left:
                return left == right
            offset += len(left)


_Records = dict[str, TensorRecord]


def matrix_differences(
    a: Inspection, b: Inspection, tensors: tuple[results.TensorDifference, ...], reader: Pair
) -> Iterator[results.MatrixDifference]:
    """Yield each quantised matrix of which a part differs, with the proved relation of both sides.

    Both models on this machine: every value is compared. Raises what the reader raises.
    """
    differing = {name for difference in tensors for name in (difference.a, difference.b) if name is not None}
    depth = Depth.HEADER if is_costly(reader.a) or is_costly(reader.b) else Depth.FULL
    sides = [{matrix.name: matrix for matrix in (side.quantised.matrices if side.quantised else ())} for side in (a, b)]
    for name in sorted({*sides[0], *sides[1]}):
        tables = [matrices.get(name) or _float(model, name) for matrices, model in zip(sides, (a, b), strict=True)]
        parts = tuple(dict.fromkeys(part for table in tables for part in _names(table) if part in differing))
        if not parts:
            continue
        relation, records = None, _Records()
        left, right = _moved(tables[0], "A", a, records), _moved(tables[1], "B", b, records)
        if left is not None and right is not None:
            relation = relate_tables(left, right, records, reader, depth)
        yield results.MatrixDifference(name, _side(tables[0]), _side(tables[1]), parts, relation)


def _float(model: Inspection, name: str) -> TensorRecord | None:
    stored = model.checkpoint.tensors.get(name)
    return stored if stored is not None and stored.dtype in FLOATS else None


def _names(table: Table | None) -> tuple[str, ...]:
    if isinstance(table, QuantisedMatrix):
        return tuple(part.name for part in table.parts)
    return () if table is None else (table.name,)


def _moved(table: Table | None, side: str, model: Inspection, records: _Records) -> Table | None:
    """Return the table with records of its side of the pair; the records of parts are added to ``records``."""
    if not isinstance(table, QuantisedMatrix):
        return None if table is None else of_side(table, side)
    parts = tuple(replace(part, name=f"{side}/{part.name}") for part in table.parts)
    for part in table.parts:
        records[f"{side}/{part.name}"] = of_side(model.checkpoint.tensors[part.name], side)
    return replace(table, parts=parts)


def _side(table: Table | None) -> results.MatrixSide | None:
    if table is None:
        return None
    if isinstance(table, QuantisedMatrix):
        return results.MatrixSide(table.scheme, table.bits, table.shape)
    return results.MatrixSide(table.dtype, None, (table.shape[0], table.shape[1]) if len(table.shape) == 2 else None)


# Describe the change from one model to another, tensor by tensor and config value by config value.

_EQUAL = (State.IDENTICAL, State.ALIASED)


@record
class _Sides:
    """The model before and after, the unchanged files, and ``relations`` if bytes can be compared."""

    before: Inspection
    after: Inspection
    same_files: Collection[str]
    relations: Relations | None


def effects(
    before: Inspection,
    after: Inspection,
    readers: tuple[ByteReader, ByteReader],
    same_files: Collection[str],
    *,
    compares: bool,
) -> tuple[Effect, ...]:
    """Return the effect on every tensor and config value. ``same_files`` have equal hashes.

    With ``compares``, tensors in other files are compared byte for byte; else the effect says that they were not.
    Raises `UnreadableError` if bytes cannot be read.
    """
    relations = Relations(before.checkpoint, after.checkpoint, Pair(*readers)) if compares else None
    sides = _Sides(before, after, same_files, relations)
    return (*_format(sides), *_tensors(sides), *_config(sides))


def _format(sides: _Sides) -> Iterator[Effect]:
    old, new = (side.checkpoint.format for side in (sides.before, sides.after))
    if old != new:
        yield Effect("format", "weights", f"{old} becomes {new}")


def _tensors(sides: _Sides) -> Iterator[Effect]:
    before, after = (side.checkpoint.tensors for side in (sides.before, sides.after))
    for name in sorted(before.keys() - after.keys()):
        yield Effect("drop", name, _noted(before[name], _twin(sides.before, name, after)))
    for name in sorted(after.keys() - before.keys()):
        note = _twin(sides.after, name, after) or ("all zero" if is_zero(sides.after, name) else "")
        yield Effect("add", name, _noted(after[name], note))
    equal, uncompared = 0, 0
    for name in sorted(before.keys() & after.keys()):
        difference = _changed(sides, before[name], after[name])
        if difference:
            yield Effect("change", name, difference)
        elif difference is None:
            uncompared += 1
        else:
            equal += 1
    if equal:
        yield Effect("keep", count(equal, "tensor"), "byte for byte")
    if uncompared:
        yield Effect("keep", count(uncompared, "tensor"), "by name, type and shape; their bytes were not compared")


def _noted(record: TensorRecord, note: str) -> str:
    return ", ".join(filter(None, (f"{list(record.shape)} {record.dtype}, {size(record.nbytes)}", note)))


def _twin(inspection: Inspection, name: str, stored: Collection[str]) -> str:
    """Return in words the tensor in ``stored`` with the same bytes, or an empty text if none is proved."""
    for tie in inspection.ties:
        equal = [member.name for member in tie.members if member.state in (State.CANONICAL, *_EQUAL)]
        twin = next((member_name for member_name in equal if member_name != name and member_name in stored), None)
        if name in equal and twin:
            return f"the bytes of {shown(twin)}"
    for duplicate in inspection.duplicates:
        twin = next(
            (member_name for member_name in duplicate.tensors if member_name != name and member_name in stored), None
        )
        if name in duplicate.tensors and duplicate.kind in _EQUAL and twin:
            return f"the bytes of {shown(twin)}"
    return ""


def _changed(sides: _Sides, old: TensorRecord, new: TensorRecord) -> str | None:
    """Return how a tensor differs; empty if it is proved equal, ``None`` if it was not compared."""
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return f"{list(old.shape)} {old.dtype} becomes {list(new.shape)} {new.dtype}"
    if old.range == new.range and old.range.file in sides.same_files:
        return ""
    if sides.relations is None:
        return None
    outcome = sides.relations.between(Source(old), Source(new))
    return "" if outcome is None else f"other values: {outcome[0]}"


def _config(sides: _Sides) -> Iterator[Effect]:
    before, after = (side.checkpoint.config_values for side in (sides.before, sides.after))
    for difference in compare_configs(before, after):
        old, new = json_value(difference.a, difference.in_a, 60), json_value(difference.b, difference.in_b, 60)
        yield Effect("config", difference.path, f"{old} becomes {new}")
