"""Compare the vocabulary sizes of a config with the stored rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.checkpoint.family import Knowledge, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.weight_file import fits

_MAX_DEPTH = 4
_USUAL = frozenset({"vocab_size", "padded_vocab_size", "decoder_vocab_size"})

_WITHOUT_TOKENS = frozenset({"type_vocab_size"})
"""Sizes of tables without rows for tokens."""


def vocabulary_sizes(inspection: Inspection) -> dict[str, int]:
    """Return every vocabulary size of the config by its dotted path.

    Empty if another vocabulary (audio codes, additional tokens) may have rows in the same table. Also empty for a class
    outside the architecture table.
    """
    sizes = dict(_sizes(inspection.checkpoint.config_values, "", 0))
    mixed = any(path.rpartition(".")[2] not in _USUAL for path in sizes)
    return {} if mixed or inspection.family.knowledge is not Knowledge.TABLE else sizes


def vocabulary_rows(inspection: Inspection) -> dict[str, int]:
    """Return the rows of the stored embedding and head by name, without a head that TIE010 reports."""
    tensors = inspection.checkpoint.tensors
    head, embedding = inspection.head.output_head, inspection.head.input_embedding
    # Classes that never tie may have more rows than tokens that they predict.
    names = [embedding.name] if embedding and inspection.family.tying is not Tying.NEVER else []
    if head and head.stored and not _is_misshapen(inspection, head.name):
        names.append(head.name)
    # Quantised codes are packed, so their shape does not give the number of rows.
    matrices = [name for name in names if len(tensors[name].shape) == 2 and tensors[name].elements]
    return {name: tensors[name].shape[0] for name in matrices if quantised_twin(name, tensors) is None}


def sizes_disagree(inspection: Inspection) -> bool:
    """Return whether a table's number of rows differs from every vocabulary size in the config."""
    sizes = set(vocabulary_sizes(inspection).values())
    return bool(sizes) and any(rows not in sizes for rows in vocabulary_rows(inspection).values())


def _is_misshapen(inspection: Inspection, head: str) -> bool:
    tensors = inspection.checkpoint.tensors
    for tie in inspection.ties:
        member = next((member for member in tie.members if member.name == head), None)
        if member is None:
            continue
        if member.state is State.TRANSPOSED:
            return True
        canonical = next((name.name for name in tie.members if name.state is State.CANONICAL), tie.canonical)
        reference = tensors.get(canonical)
        if not tie.declared or reference is None or not reference.elements:
            return False  # a placeholder does not give the number of rows
        return not fits(tensors[head], reference)
    return False


def _sizes(config: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        if key.endswith("vocab_size") and key not in _WITHOUT_TOKENS and type(value) is int and value > 0:
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _sizes(value, f"{prefix}{key}.", depth + 1)
