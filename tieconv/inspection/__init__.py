"""Collect evidence about a checkpoint; every claim of equality is a comparison of all bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tieconv.architectures.stored_names import through_wrappers, variants
from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Depth, Inspection, NotCompared, Shadow, State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.tie_group import Duplicate, Head, Tie
from tieconv.checkpoint.weight_file import BITS, FLOATS, StorageUse, TensorRecord
from tieconv.inspection.declared import effect, gated, understand, with_shared_storage
from tieconv.inspection.quantised import declared_quantisation, floats_alone
from tieconv.inspection.ties import find_shadows, survey, view_head
from tieconv.inspection.view_reader import is_costly, is_sampled, read, readable


def inspect_checkpoint(
    checkpoint: Checkpoint,
    reader: ByteReader,
    depth: Depth = Depth.CANDIDATES,
    *,
    embed: str | None = None,
    head: str | None = None,
) -> Inspection:
    """Return evidence about ``checkpoint``; the checks add the findings.

    ``embed`` and ``head`` name the input and the output embedding if the architecture is unknown.
    """
    if checkpoint.graphs:
        from tieconv.inspection.graph_ties import inspect_graphs  # most models are not graphs

        return inspect_graphs(checkpoint, reader, depth)
    tensors = checkpoint.tensors
    if checkpoint.headers_only:
        depth = Depth.HEADER
    family, config = understand(checkpoint, embed, head)
    ties = survey(family, tensors, reader, depth, gated(config, family))
    ties = tuple(_with_nan(tie, tensors, reader) for tie in ties)
    config = with_shared_storage(config, ties)
    view = view_head(family, tensors, ties, reader, depth)
    duplicates = _duplicates(family, tensors, ties, view, reader, depth)
    played = {member.name for tie in ties for member in tie.stored_members}
    storage = _storage(checkpoint, reader, depth)
    stored = storage.stored if storage else sum(record.nbytes for record in tensors.values())
    wasted = sum(tie.bytes_wasted for tie in ties) + sum(duplicate.bytes_wasted for duplicate in duplicates)
    wasted += storage.unused if storage else 0
    wrapped = None if ties else through_wrappers(family, tensors)
    inspection = Inspection(
        checkpoint=checkpoint,
        family=family,
        depth=depth,
        config=config,
        head=view,
        ties=ties,
        duplicates=duplicates,
        bytes_stored=stored,
        bytes_unique=max(stored - wasted, 0),
        bytes_read=getattr(reader, "bytes_read", 0),
        shadows=_shadows(checkpoint, reader, depth, played),
        storage=storage,
        wrapped_ties=survey(wrapped, tensors, reader, depth, gated(config, wrapped)) if wrapped else (),
        not_compared=_not_compared(tensors, view, played, reader, depth),
        unusable=_unusable(tensors, view, reader, depth) if checkpoint.format in _READ else {},
        quantisation=declared_quantisation(checkpoint.quantisation_values, family),
    )
    inspection = _with_quantised(inspection, reader)
    if inspection.quantisation is not None:
        declared = replace(inspection.quantisation, floats=floats_alone(inspection))
        inspection = replace(inspection, quantisation=declared)
    return replace(inspection, config=replace(config, effect=effect(inspection)))


def _with_quantised(inspection: Inspection, reader: ByteReader) -> Inspection:
    if not _has_codes(inspection.family, inspection.checkpoint.tensors):
        return inspection
    from tieconv.inspection.quantised.survey_quantised import survey_quantised, with_quantised

    tables = survey_quantised(inspection, reader)
    return inspection if tables is None else with_quantised(inspection, tables)


def _has_codes(family: Family, tensors: Mapping[str, TensorRecord]) -> bool:
    """Return whether the embedding or the head has parts, or is of another type than a float."""
    for name in filter(None, (family.input_embedding, family.output_head)):
        for spelling in variants(family, name):
            record = tensors.get(spelling)
            if quantised_twin(spelling, tensors) or (record is not None and record.dtype not in FLOATS):
                return True
    return False


def _shadows(checkpoint: Checkpoint, reader: ByteReader, depth: Depth, played: set[str]) -> tuple[Shadow, ...]:
    if not checkpoint.orphans and not checkpoint.twins:
        return ()

    if depth is Depth.CANDIDATES and is_sampled(reader):
        depth = Depth.HEADER
    return tuple(find_shadows(checkpoint, reader, depth, played))


def _storage(checkpoint: Checkpoint, reader: ByteReader, depth: Depth) -> StorageUse | None:
    """Return how tensors share storages, if the format lets them; at full depth also check each storage's checksum."""
    if not any(file.storages for file in checkpoint.files):
        return None
    from tieconv.inspection.storage import check_sums, view_storages

    if depth is Depth.FULL:
        check_sums(checkpoint, reader)
    return view_storages(checkpoint)


def _with_nan(tie: Tie, tensors: Mapping[str, TensorRecord], reader: ByteReader) -> Tie:
    """Mark bit-equal copies that hold a NaN: transformers 5 compares values and then does not tie them."""
    if not tie.declared or not any(member.state is State.IDENTICAL for member in tie.members):
        return tie
    from tieconv.checkpoint.relation.proved import Identical
    from tieconv.inspection.equality import has_nan

    canonical = next(member.name for member in tie.members if member.state is State.CANONICAL)
    if not has_nan(reader, tensors[canonical]):
        return tie
    marked = {
        member.name: replace(member, relation=replace(member.relation, nan=True))
        for member in tie.members
        if isinstance(member.relation, Identical)
    }
    return replace(tie, members=tuple(marked.get(member.name, member) for member in tie.members))


_READ = ("safetensors", "torch", "gguf")
_NEVER_OF_A_MATRIX = frozenset({"BOOL", "I16", "U16", "I64", "U64", "C64"})
"""Types in which no known quantiser stores a matrix. transformers 5.23 computes with the values as they are."""


def _unusable(tensors: Mapping[str, TensorRecord], view: Head, reader: ByteReader, depth: Depth) -> Mapping[str, str]:
    """Return what makes the embedding, the head or another tensor unusable, by name.

    Depth ``full`` looks for a NaN or an infinity in every tensor. Other depths look at a few bytes of each table.
    They read norms, biases and other vectors of the model's width, which are small.
    """
    tables = sorted({part.name for part in (view.input_embedding, view.output_head) if part and part.name in tensors})
    faults = {
        name: record.dtype
        for name, record in tensors.items()
        if record.dtype in _NEVER_OF_A_MATRIX
        and (name in tables or (len(record.shape) == 2 and name.endswith(".weight")))
    }
    if depth is Depth.HEADER or is_costly(reader):
        return faults
    faults |= {name: _fault(reader, tensors[name], depth) for name in tables if tensors[name].dtype in FLOATS}
    widths = {tensors[name].shape[-1:] for name in tables}
    for name, record in tensors.items():
        whole = depth is Depth.FULL and name not in faults
        # Half a million tensors make calls dear.
        is_read = name[-5:] == ".bias" or name[-11:] == "norm.weight"
        is_vector = record.shape in widths or (is_read and not record.shape[1:])
        if whole or (is_vector and record.dtype in FLOATS and _is_suspect(reader, record)):
            from tieconv.inspection.equality import has_nan  # few vectors have such values

            infinity = name.endswith("weight")  # a bias of -infinity may exclude an expert or a token
            if has_nan(reader, record, or_infinity=infinity):
                faults[name] = "a NaN or an infinity" if infinity else "a NaN"
    return {name: fault for name, fault in faults.items() if fault}


_PROBE = 512
"""Bytes in the middle of a table that show, without a measurable delay, whether it is all zero or NaN."""

_HIGHEST = bytes((*range(0x7C, 0x80), *range(0xFC, 0x100)))
"""What the last byte of a NaN or an infinity may be in any type. Trained values of the wider types never have them."""


def _fault(reader: ByteReader, record: TensorRecord, depth: Depth) -> str:
    dense_reader, (dense,) = readable(reader, (record,))
    size = dense.range.size
    if not size:
        return ""
    middle = size // 2 - size // 2 % 8
    probe = read(dense_reader, dense.range, middle, min(_PROBE, size - middle))
    is_zero = not probe.translate(None, b"\0\x80")  # 0x80 may be the sign of a -0.0
    if not (is_zero or depth is Depth.FULL or _has_highest(probe, record)):
        return ""
    from tieconv.inspection.equality import unusable  # few tables have such values

    return unusable(reader, record)


def _is_suspect(reader: ByteReader, vector: TensorRecord) -> bool:
    """Return whether a vector may hold a NaN or an infinity."""
    reader, (dense,) = readable(reader, (vector,))
    return _has_highest(read(reader, dense.range, 0, dense.range.size), vector)


def _has_highest(block: bytearray, record: TensorRecord) -> bool:
    width = BITS[record.dtype] // 8
    top_bytes = block[width - 1 :: width]
    return len(top_bytes.translate(None, _HIGHEST)) < len(top_bytes)


def _duplicates(
    family: Family,
    tensors: Mapping[str, TensorRecord],
    ties: tuple[Tie, ...],
    view: Head,
    reader: ByteReader,
    depth: Depth,
) -> tuple[Duplicate, ...]:
    if depth is Depth.HEADER or (depth is Depth.CANDIDATES and is_sampled(reader)):
        return ()
    candidates = _candidates(tensors, view, depth)
    if is_costly(reader):
        # Leave out copies that a tied group proved equal, so that they are not fetched again.
        # A copy stays if a tensor of its form is outside the group: both may be in a larger class.
        proved: set[str] = set()
        for tie in ties:
            named = {member.name for member in tie.members}
            forms = {(record.dtype, record.shape) for record in candidates if record.name not in named}
            copies = {member.name for member in tie.members if member.state is State.IDENTICAL}
            proved |= {r.name for r in candidates if r.name in copies and (r.dtype, r.shape) not in forms}
        candidates = tuple(record for record in candidates if record.name not in proved)
    if len(candidates) < 2:
        return ()
    from tieconv.inspection.duplicates import find_duplicates

    groups = [frozenset(member.name for member in tie.stored_members) for tie in ties]
    return find_duplicates(reader, candidates, known=groups)


def _candidates(tensors: Mapping[str, TensorRecord], view: Head, depth: Depth) -> tuple[TensorRecord, ...]:
    """Return the tensors to search for duplicates: all, or those shaped like the embeddings."""
    if depth is Depth.FULL:
        return tuple(tensors.values())
    shapes = {part.shape for part in (view.input_embedding, view.output_head) if part and part.shape}
    shapes |= {shape[::-1] for shape in shapes}
    return tuple(record for record in tensors.values() if record.shape in shapes)


def _not_compared(
    tensors: Mapping[str, TensorRecord], view: Head, played: set[str], reader: ByteReader, depth: Depth
) -> NotCompared | None:
    """Return how many tensors of one type and shape were not compared, beside those of the tied groups."""
    if depth is Depth.FULL:
        return None
    reads = depth is Depth.CANDIDATES and not is_sampled(reader)
    compared = {record.name for record in _candidates(tensors, view, depth)} if reads else played
    return NotCompared.among([record for name, record in tensors.items() if name not in compared])
