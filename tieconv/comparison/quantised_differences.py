"""Compare the quantised embeddings and heads of two models as matrices, if one of their parts differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.quantised_matrix import QuantisedMatrix
from tieconv.checkpoint.results.comparison import TensorDifference
from tieconv.checkpoint.results.matrix_difference import MatrixDifference, MatrixSide
from tieconv.comparison.pair import Pair, of_side
from tieconv.inspection.blocks import is_costly
from tieconv.inspection.quantised.pair_relation import Table, relate_tables

_Records = dict[str, TensorRecord]


def matrix_differences(
    a: Inspection, b: Inspection, tensors: tuple[TensorDifference, ...], reader: Pair
) -> tuple[MatrixDifference, ...]:
    """Return each quantised matrix of which a part differs, with the proved relation of both sides.

    Both models on this machine: every value is compared. Raises what the reader raises.
    """
    return tuple(_differences(a, b, tensors, reader))


def _differences(
    a: Inspection, b: Inspection, tensors: tuple[TensorDifference, ...], reader: Pair
) -> Iterator[MatrixDifference]:
    differing = {name for difference in tensors for name in (difference.a, difference.b) if name is not None}
    depth = Depth.HEADER if is_costly(reader.a) or is_costly(reader.b) else Depth.FULL
    sides = [_matrices(model) for model in (a, b)]
    for name in sorted({*sides[0], *sides[1]}):
        tables = [matrices.get(name) or _float(model, name) for matrices, model in zip(sides, (a, b), strict=True)]
        parts = tuple(dict.fromkeys(part for table in tables for part in _names(table) if part in differing))
        if not parts:
            continue
        relation, records = None, _Records()
        left, right = _moved(tables[0], "A", a, records), _moved(tables[1], "B", b, records)
        if left is not None and right is not None:
            relation = relate_tables(left, right, records, reader, depth)
        yield MatrixDifference(name, _side(tables[0]), _side(tables[1]), parts, relation)


def _matrices(model: Inspection) -> Mapping[str, QuantisedMatrix]:
    return {matrix.name: matrix for matrix in (model.quantised.matrices if model.quantised else ())}


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


def _side(table: Table | None) -> MatrixSide | None:
    if table is None:
        return None
    if isinstance(table, QuantisedMatrix):
        return MatrixSide(table.scheme, table.bits, table.shape)
    return MatrixSide(table.dtype, None, (table.shape[0], table.shape[1]) if len(table.shape) == 2 else None)
