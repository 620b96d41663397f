"""Describe the quantised embedding and head of a checkpoint as logical matrices, and compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from tieconv.architectures.stored_names import variants
from tieconv.checkpoint.files.interface import ByteReader
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.checkpoint.quantised import parts_of
from tieconv.checkpoint.quantised_matrix import EMBEDDING, HEAD, PairRelation, QuantisedMatrix, QuantisedTables
from tieconv.inspection.blocks import read
from tieconv.inspection.quantised.config_sizes import hidden_size, with_config_sizes
from tieconv.inspection.quantised.pair_relation import Table, relate_tables
from tieconv.inspection.quantised.quantisation_config import QuantisationSettings, quantisation_settings
from tieconv.inspection.quantised.schemes.interface import StoredModule
from tieconv.inspection.quantised.schemes.scheme_registry import recognise
from tieconv.inspection.view_reader import readable

_SMALL = 4096
"""Bytes of the largest part that is read to describe a matrix: a shape, or the state of bitsandbytes."""

Content = Callable[[TensorRecord], bytes | None]


def survey_quantised(inspection: Inspection, reader: ByteReader) -> QuantisedTables | None:
    """Return the quantised embedding and head, or ``None`` if neither is quantised."""
    settings = quantisation_settings(inspection.checkpoint.quantisation_values)
    content = _content(reader, inspection.depth)
    matrices = tuple(_matrices(inspection, settings, content))
    if not matrices:
        return None
    relation = _relation(inspection, matrices, reader)
    return QuantisedTables(settings.method, settings.path, matrices, relation)


def _matrices(inspection: Inspection, settings: QuantisationSettings, content: Content) -> Iterator[QuantisedMatrix]:
    family = inspection.family
    names = {EMBEDDING: family.input_embedding, HEAD: family.output_head}
    if names[HEAD] == names[EMBEDDING]:
        names[HEAD] = None
    for role, name in names.items():
        for spelling in dict.fromkeys(variants(family, name)) if name else ():
            module = _module(inspection, spelling.removesuffix(".weight"), role, settings, content)
            matrix = recognise(module) if module.tensors else None
            if matrix is not None:
                yield with_config_sizes(inspection, matrix)
                break


def _module(
    inspection: Inspection, name: str, role: str, settings: QuantisationSettings, content: Content
) -> StoredModule:
    tensors = inspection.checkpoint.tensors
    parts = {leaf: tensors[stored] for leaf, stored in parts_of(name, tensors)}
    choice = settings.choice(name, role)
    return StoredModule(name, role, parts, content, choice, settings.method, hidden_size(inspection))


def _content(reader: ByteReader, depth: Depth) -> Content:
    """Return a function that reads a small tensor, or reads nothing if only headers may be read."""

    def content(record: TensorRecord) -> bytes | None:
        if depth is Depth.HEADER or record.nbytes > _SMALL:
            return None
        dense_reader, (dense,) = readable(reader, (record,))
        return bytes(read(dense_reader, dense.range, 0, dense.nbytes))

    return content


def _relation(inspection: Inspection, matrices: tuple[QuantisedMatrix, ...], reader: ByteReader) -> PairRelation | None:
    tensors = inspection.checkpoint.tensors
    embedding, head = (_table(inspection, matrices, role, tensors) for role in (EMBEDDING, HEAD))
    if embedding is None or head is None:
        return None
    return relate_tables(embedding, head, tensors, reader, inspection.depth)


def _table(
    inspection: Inspection, matrices: tuple[QuantisedMatrix, ...], role: str, tensors: Mapping[str, TensorRecord]
) -> Table | None:
    """Return the matrix in a role: quantised, or the stored float tensor."""
    quantised = next((matrix for matrix in matrices if matrix.role == role), None)
    if quantised is not None:
        return quantised
    view = inspection.head
    embedding = view.input_embedding.name if view.input_embedding else None
    head = view.output_head.name if view.output_head and view.output_head.stored else None
    if role == EMBEDDING and embedding == head:
        return None
    return tensors.get((embedding if role == EMBEDDING else head) or "")
