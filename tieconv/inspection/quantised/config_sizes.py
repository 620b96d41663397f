"""Compare the shape of a quantised matrix with the sizes in the config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tieconv.architectures.flag_levels import text_config
from tieconv.architectures.vocabulary import vocabulary_sizes
from tieconv.checkpoint.family import Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import FaultKind, MatrixFault, QuantisedMatrix
from tieconv.text import shown

_WIDTHS = ("hidden_size", "n_embd", "d_model")
_EMBEDDING_WIDTHS = ("emb", "proj_dim", "factor")
"""Words in the keys of classes whose embedding has another width than the model: ALBERT, OPT, ELECTRA."""


def hidden_size(inspection: Inspection) -> int | None:
    """Return the config's hidden size, ``None`` if it has none."""
    values = _text_values(inspection)
    sizes = (values.get(key) for key in _WIDTHS)
    return next((size for size in sizes if type(size) is int and size > 0), None)


def with_config_sizes(inspection: Inspection, matrix: QuantisedMatrix) -> QuantisedMatrix:
    """Return the matrix, with a fault if its shape is not the config's vocabulary × hidden size."""
    if matrix.shape is None or matrix.faults or inspection.family.knowledge is not Knowledge.TABLE:
        return matrix
    reason = _misfit(inspection, matrix.shape)
    if not reason:
        return matrix
    codes = matrix.part("codes")
    names = (codes.name,) if codes else ()
    side = f"{shown(names[0] if names else matrix.name)} is {matrix.shape[0]}×{matrix.shape[1]} unpacked"
    return replace(matrix, faults=(MatrixFault(FaultKind.SHAPE, f"{side}, but {reason}", names),))


def _misfit(inspection: Inspection, shape: tuple[int, int]) -> str:
    rows, columns = shape
    sizes = vocabulary_sizes(inspection)
    if sizes and rows not in sizes.values():
        listed = ", ".join(f"{shown(path)} {size:,}" for path, size in list(sizes.items())[:4])
        return f"the config says {listed}"
    width = hidden_size(inspection)
    if width is None or columns == width or columns in _narrow_widths(_text_values(inspection)):
        return ""
    return f"the config says hidden size {width:,}"


def _narrow_widths(values: Mapping[str, object]) -> set[int]:
    """Return the sizes under keys that may give the embedding's width."""
    sizes = (value for key, value in values.items() if any(word in key for word in _EMBEDDING_WIDTHS))
    return {value for value in sizes if type(value) is int}


def _text_values(inspection: Inspection) -> Mapping[str, object]:
    """Return the config of the language model; if that has no sizes, the whole config or its text part."""
    values = text_config(inspection)
    if any(key in values for key in _WIDTHS):
        return values
    nested = inspection.checkpoint.config_values.get("text_config")
    return nested if isinstance(nested, Mapping) else values
