"""Describe the quantised embedding and head of a checkpoint as logical matrices, and compare them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice

from tieconv.architectures.effective_flag import hidden_size
from tieconv.architectures.stored_names import variants
from tieconv.checkpoint.inspection import Depth, Inspection, State
from tieconv.checkpoint.model_files import ByteReader, Checkpoint
from tieconv.checkpoint.quantised_matrix import (
    CODE_LEAVES,
    EMBEDDING,
    HEAD,
    INERT_LEAVES,
    LEAVES,
    SCALE_LEAVES,
    FaultKind,
    PairRelation,
    PairState,
    QuantisedMatrix,
    QuantisedTables,
    parametrised_parts,
    parts_of,
)
from tieconv.checkpoint.relation.proved import NO_NUMPY, Identical, OtherBytes, Relation, Unread
from tieconv.checkpoint.tie_group import Duplicate, Head, Member, Tie
from tieconv.checkpoint.weight_file import FLOATS, TensorRecord
from tieconv.inspection.equality import equal
from tieconv.inspection.quantised import (
    QuantisationSettings,
    block_schemes,
    module_schemes,
    quantisation_settings,
    with_config_sizes,
)
from tieconv.inspection.quantised.block_schemes import CODES, SCALES, Faults, StoredModule, describe
from tieconv.inspection.view_reader import is_sampled, read, readable, turned
from tieconv.text import listed

_SMALL = 4096
"""Bytes of the largest part that is read to describe a matrix: a shape, or the state of bitsandbytes."""

Content = Callable[[TensorRecord], bytes | None]


def survey_quantised(inspection: Inspection, reader: ByteReader) -> QuantisedTables | None:
    """Return the quantised embedding and head, or ``None`` if neither is quantised."""
    settings = quantisation_settings(inspection.checkpoint.quantisation_values)

    def content(record: TensorRecord) -> bytes | None:
        if inspection.depth is Depth.HEADER or record.nbytes > _SMALL:
            return None
        dense_reader, (dense,) = readable(reader, (record,))
        return bytes(read(dense_reader, dense.range, 0, dense.nbytes))

    matrices = tuple(_matrices(inspection, settings, content))
    if not matrices:
        return None
    tensors = inspection.checkpoint.tensors
    embedding, head = (_table(inspection, matrices, role, tensors) for role in (EMBEDDING, HEAD))
    if embedding is None or head is None:
        relation = None
    else:
        relation = relate_tables(embedding, head, tensors, reader, inspection.depth)
    return QuantisedTables(settings.method, settings.path, matrices, relation)


def _matrices(inspection: Inspection, settings: QuantisationSettings, content: Content) -> Iterator[QuantisedMatrix]:
    family, tensors = inspection.family, inspection.checkpoint.tensors
    names = {EMBEDDING: family.input_embedding, HEAD: family.output_head}
    if names[HEAD] == names[EMBEDDING]:
        names[HEAD] = None
    for role, name in names.items():
        for spelling in dict.fromkeys(variants(family, name)) if name else ():
            path = spelling.removesuffix(".weight")
            parts = {leaf: tensors[stored] for leaf, stored in parts_of(path, tensors)}
            choice, width = settings.choice(path, role), hidden_size(inspection)
            module = StoredModule(path, role, parts, content, choice, settings.method, width)
            matrix = recognise(module) if module.tensors else None
            if matrix is not None:
                yield with_config_sizes(inspection, matrix)
                break


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


def survey_graphs(inspection: Inspection, reader: ByteReader) -> QuantisedTables | None:
    """Return the quantised matrices of the first graph that has some, or ``None``."""
    graph = next((graph for graph in inspection.checkpoint.graphs if graph.quantised), None)
    if graph is None:
        return None
    tensors, width = inspection.checkpoint.tensors, hidden_size(inspection)
    matrices = {read.role: describe(read, tensors, width) for read in graph.quantised if read.role in (EMBEDDING, HEAD)}
    if not matrices:
        return None
    floats = {role: read for role, read in ((EMBEDDING, graph.embedding), (HEAD, graph.head)) if read is not None}
    # A float matrix for a MatMul is [H, V]; the codes are by tokens.
    laid_out = {
        role: turned(tensors[read.name]) if read.turned else tensors[read.name] for role, read in floats.items()
    }
    tables = laid_out | matrices
    relation = None
    if len(tables) == 2:
        relation = relate_tables(tables[EMBEDDING], tables[HEAD], tensors, reader, inspection.depth)
        both = {table.name for table in tables.values()}
        equal_codes = len(both) == 1 or any(both <= {*each.tensors} for each in inspection.duplicates)
        if relation.state is PairState.UNREAD and equal_codes:
            reason = "tieconv compared only the codes of head and embedding, which are equal"
            relation = PairRelation(PairState.UNREAD, reason)
    return QuantisedTables("", "", tuple(matrices.values()), relation)


LONGEST_ROW = 1 << 20
"""Columns of the widest matrix whose values are compared, so that one row fits in memory."""

Table = QuantisedMatrix | TensorRecord
"""A quantised matrix, or the stored tensor of a float matrix."""


def relate_tables(
    embedding: Table, head: Table, tensors: Mapping[str, TensorRecord], reader: ByteReader, depth: Depth
) -> PairRelation:
    """Return the proved relation of the head to the embedding. Raises what the reader raises."""
    if depth is Depth.HEADER:
        return PairRelation(PairState.UNREAD, "their bytes were not read")
    if depth is Depth.CANDIDATES and is_sampled(reader):
        return PairRelation(PairState.UNREAD, "on the Hub tieconv compares quantised matrices only with --depth full")
    broken = next((table for table in (embedding, head) if isinstance(table, QuantisedMatrix) and table.faults), None)
    if broken is not None:
        return PairRelation(PairState.UNREAD, f"the quantised {broken.role} is broken")
    if isinstance(embedding, QuantisedMatrix) and isinstance(head, QuantisedMatrix):
        differing = _parts_differing(embedding, head, tensors, reader)
        if not differing:
            ranges = {tensors[part.name].range for part in embedding.parts}
            wasted = sum(part.nbytes for part in head.parts if tensors[part.name].range not in ranges)
            return PairRelation(PairState.EQUAL, bytes_wasted=wasted)
        compared = _compared(embedding, head, tensors, reader)
        return PairRelation(compared.state, compared.reason, differing, compared.figures)
    return _compared(embedding, head, tensors, reader)


def _parts_differing(
    embedding: QuantisedMatrix, head: QuantisedMatrix, tensors: Mapping[str, TensorRecord], reader: ByteReader
) -> tuple[str, ...]:
    """Return what differs: ``scheme``, or the purposes of parts; empty if every byte is equal."""
    if (embedding.scheme, embedding.bits, embedding.block) != (head.scheme, head.bits, head.block) or not head.scheme:
        return ("scheme",)
    roles = dict.fromkeys(part.role for part in (*embedding.parts, *head.parts))
    return tuple(role for role in roles if not _part_equal(embedding, head, role, tensors, reader))


def _part_equal(
    embedding: QuantisedMatrix,
    head: QuantisedMatrix,
    role: str,
    tensors: Mapping[str, TensorRecord],
    reader: ByteReader,
) -> bool:
    names = [[part.name for part in matrix.parts if part.role == role] for matrix in (embedding, head)]
    if len(names[0]) != len(names[1]):
        return False
    for left, right in zip(*names, strict=True):
        first, second = tensors[left], tensors[right]
        if first.dtype != second.dtype or (first.shape != second.shape and head.scheme != block_schemes.SCHEME):
            return False  # operators of ONNX read the same bytes in two shapes
        dense_reader, (first, second) = readable(reader, (first, second))
        if not equal(dense_reader, first.range, second.range):
            return False
    return True


def _compared(embedding: Table, head: Table, tensors: Mapping[str, TensorRecord], reader: ByteReader) -> PairRelation:
    shapes = embedding.shape, head.shape
    unread = _unread(embedding) or _unread(head)
    if unread:
        return PairRelation(PairState.UNREAD, unread)
    if shapes[0] != shapes[1]:
        sides = ["×".join(map(str, shape or ())) for shape in shapes]
        return PairRelation(PairState.DIFFERENT, f"the embedding is {sides[0]} and the head {sides[1]}")
    if (shapes[0] or (0, 0))[-1] > LONGEST_ROW:
        return PairRelation(PairState.UNREAD, f"their rows have more than {LONGEST_ROW:,} columns")
    if find_spec("numpy") is None:
        return PairRelation(PairState.UNREAD, NO_NUMPY)
    from tieconv.inspection.quantised.row_decoders import compare_values

    return compare_values(embedding, head, tensors, reader)


def _unread(table: Table) -> str:
    """Return why the values of a table are unknown; empty if tieconv knows them."""
    if isinstance(table, QuantisedMatrix):
        return "" if table.reads else table.uncomputed or "the shape of the matrix is unknown"
    if table.dtype not in FLOATS:
        return f"tieconv does not compare {table.dtype} values with codes"
    return "" if len(table.shape) == 2 and table.elements else "the float tensor is not a matrix"


RECOGNISERS: tuple[Callable[[StoredModule], QuantisedMatrix | None], ...] = (
    block_schemes.recognise_ggml_blocks, module_schemes.recognise_bitsandbytes, block_schemes.recognise_mlx_modes,
    module_schemes.recognise_modelopt, module_schemes.recognise_fp8_blocks,
    module_schemes.recognise_compressed_tensors, module_schemes.recognise_awq, module_schemes.recognise_gptq,
    module_schemes.recognise_tensor_subclasses,
)  # fmt: skip
"""In this order; the first that recognises a module describes it."""

PART_LEAVES = ("weight", *LEAVES, "weight_shape", "weight_g_idx", "scale", "zero", module_schemes.INPUT_SCALE)
"""The ends of the names of all parts."""

_CODE_TYPES = frozenset({"I8", "U8", "I32", "U32", "F8_E4M3", "F8_E5M2", "F4", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})


def recognise(module: StoredModule) -> QuantisedMatrix | None:
    """Return the matrix if the module is quantised, else ``None``.

    A module with a part that no scheme explains is a matrix that tieconv did not understand.
    """
    matrix = next(filter(None, (scheme(module) for scheme in RECOGNISERS)), None)
    explained = {part.name for part in matrix.parts} if matrix is not None else set()
    known = (*PART_LEAVES, *INERT_LEAVES) if matrix is None else INERT_LEAVES
    left = [leaf for leaf, stored in module.tensors.items() if leaf not in known and stored.name not in explained]
    if left:
        why = f"tieconv does not know what {listed([module.tensors[leaf].name for leaf in left], 2)} do"
        why = why.removesuffix(" do") + " does" if len(left) == 1 else why
        return _not_understood(module, why)
    return matrix or _without_codes(module) or _unknown(module)


def _without_codes(module: StoredModule) -> QuantisedMatrix | None:
    leaves = [leaf for leaf in SCALE_LEAVES if leaf in module.tensors]
    if not leaves or "weight" in module.tensors or any(leaf in module.tensors for leaf in CODE_LEAVES):
        return None
    faults = Faults(module)
    names = [module.tensors[leaf].name for leaf in leaves]
    verb = "has" if len(names) == 1 else "have"
    faults.missing(FaultKind.NO_CODES, f"{listed(names, 3)} {verb} no codes", leaves)
    roles = dict.fromkeys(leaves, SCALES)
    return faults.matrix("", roles, bits=module.choice.bits, block=None, shape=None, uncomputed="")


def _unknown(module: StoredModule) -> QuantisedMatrix | None:
    leaves = [leaf for leaf in (*CODE_LEAVES, *SCALE_LEAVES) if leaf in module.tensors]
    coded = module.dtype("weight") in _CODE_TYPES
    if not leaves and not coded:
        return None
    why = "its parts are of no scheme that tieconv knows"
    matrix = _not_understood(module, why)
    if module.method and coded and not leaves:
        faults = Faults(module)
        faults.missing(FaultKind.NO_SCALES, f"{listed([module.tensors['weight'].name], 1)} has no scales", ["weight"])
        return replace(matrix, faults=tuple(faults.entries))
    return matrix


def _not_understood(module: StoredModule, why: str) -> QuantisedMatrix:
    """Return the matrix without a scheme, a fault or a value."""
    roles = {leaf: CODES if leaf in ("weight", *CODE_LEAVES) else SCALES for leaf in module.tensors}
    return Faults(module).matrix("", roles, bits=None, block=None, shape=None, uncomputed=why)


# Correct tied groups and the head by the evidence about quantised matrices.

IN_PARTS = "it is stored as quantised codes, in several tensors"


def with_quantised(inspection: Inspection, tables: QuantisedTables) -> Inspection:
    """Return the inspection with the tables, and with no claim about a tie that the parts do not prove."""
    head = inspection.head.output_head
    ties = tuple(_settled(tie, tables, head.name if head else "") for tie in inspection.ties)
    saved = sum(tie.bytes_wasted for tie in inspection.ties) - sum(tie.bytes_wasted for tie in ties)
    wasted = _more_wasted(tables, ties, inspection.duplicates)
    unique = max(inspection.bytes_unique + saved - wasted, 0)
    return replace(inspection, quantised=tables, ties=ties, head=_head(inspection.head, tables), bytes_unique=unique)


def _settled(tie: Tie, tables: QuantisedTables, head: str) -> Tie:
    names = {matrix.name for matrix in tables.matrices}
    if not any(member.name in names for member in tie.members):
        return tie
    members = tuple(_member(member, tie, tables, head) for member in tie.members)
    repeated = {member.name for member in members if isinstance(member.relation, Identical)}
    before = {member.name for member in tie.members if isinstance(member.relation, Identical)}
    wasted = tie.bytes_wasted if repeated == before else 0
    return replace(tie, members=members, consistent=_consistent(tie, members), bytes_wasted=wasted)


def _member(member: Member, tie: Tie, tables: QuantisedTables, head: str) -> Member:
    """Return the member with the relation of its whole matrix, not of its codes alone."""
    names = {matrix.name for matrix in tables.matrices}
    if member.state is State.CANONICAL:
        return member
    if not member.stored:
        return replace(member, relation=Unread(reason=IN_PARTS)) if member.name in names else member
    canonical = next((entry.name for entry in tie.members if entry.state is State.CANONICAL), tie.canonical)
    if not names & {member.name, canonical}:
        return member
    is_pair = member.name == head or canonical == head
    return replace(member, relation=_tie_relation(member.relation, tables.relation if is_pair else None))


def _tie_relation(relation: Relation, pair: PairRelation | None) -> Relation:
    if pair is None or pair.state is PairState.UNREAD:
        return Unread(reason=pair.reason if pair else "it is quantised")
    if pair.state is PairState.EQUAL:
        return relation
    return OtherBytes(reason=PAIR_WORDS[pair.state])


PAIR_WORDS = {
    PairState.EQUAL: "every part is equal",
    PairState.EQUAL_VALUES: "the parts differ, but all dequantised values are equal",
    PairState.COPY: "one is a quantised copy of the other",
    PairState.CALIBRATED_COPY: "one is close to a quantised copy of the other",
    PairState.DIFFERENT: "the dequantised values differ",
    PairState.UNREAD: "nothing is proved",
}
"""What each state means, as a clause."""


def _consistent(tie: Tie, members: tuple[Member, ...]) -> bool | None:
    """Return what the stored matrices say about the declared tie; ``None`` if nothing is proved."""
    if not tie.declared:
        return tie.consistent
    states = {member.state for member in members}
    if states & {State.DISTINCT, State.NEAR, State.SCALED, State.CAST, State.TRANSPOSED}:
        return False
    return None if State.UNREAD in states else tie.consistent


def _more_wasted(tables: QuantisedTables, ties: tuple[Tie, ...], duplicates: tuple[Duplicate, ...]) -> int:
    """Return the bytes of equal parts of the head that neither a tie nor a duplicate counts."""
    pair, head = tables.relation, tables.of(HEAD)
    if pair is None or pair.state is not PairState.EQUAL or head is None:
        return 0
    counted = {name for duplicate in duplicates for name in duplicate.tensors}
    counted |= {member.name for tie in ties for member in tie.stored_members if isinstance(member.relation, Identical)}
    return max(pair.bytes_wasted - sum(part.nbytes for part in head.parts if part.name in counted), 0)


def _head(head: Head, tables: QuantisedTables) -> Head:
    """Return the head without a claim that a tensor gives it values, if it has codes."""
    output = head.output_head
    if output is None or output.stored or tables.of(HEAD) is None:
        return head
    return replace(head, output_head=replace(output, tied_to=None))


_NAMES = {EMBEDDING: "input embedding", HEAD: "output head"}


def quantised_effect(inspection: Inspection, tables: QuantisedTables) -> str:
    """Return what follows for the tie, in two or three sentences; empty if the config alone decides."""
    broken = next((matrix for matrix in tables.matrices if matrix.faults), None)
    if broken is not None:
        return f"Unknown: the quantised {_NAMES[broken.role]} is broken."
    unread = next((matrix for matrix in tables.matrices if not matrix.scheme), None)
    if unread is not None and parametrised_parts(unread):
        return f"Unknown: the {_NAMES[unread.role]} is parametrised, and loaders do not find its weight."
    if unread is not None:
        return f"Unknown: tieconv does not know how the {_NAMES[unread.role]} is quantised."
    if not inspection.config.effective:
        return ""
    head, output = tables.of(HEAD), inspection.head.output_head
    if head is not None and (tables.relation is not None and tables.relation.state is PairState.EQUAL):
        return "Tied by the config, and every part of the quantised head equals the embedding's."
    if head is not None or (output is not None and output.stored):
        quantised = _NAMES[HEAD if head is not None else EMBEDDING]
        return f"Unknown: the config says tied, but the {quantised} is quantised separately. The loader decides."
    if inspection.checkpoint.format == "gguf":
        embedding = tables.of(EMBEDDING)
        scheme = embedding.scheme.removeprefix("ggml ") if embedding else ""
        return f"{inspection.config.why} The head computes with its type, {scheme}."
    return f"{inspection.config.why} The embedding is quantised, and some loaders do not tie quantised matrices."


_MOST_MODULES = 65_536
_ENDS = tuple(f".{leaf}" for leaf in (*CODE_LEAVES, *SCALE_LEAVES))


def logical_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return [V, H] of each quantised matrix by the name that it would have unquantised."""
    settings = quantisation_settings(checkpoint.quantisation_values)
    tensors = checkpoint.tensors
    shapes: dict[str, tuple[int, int]] = {}
    coded = (name for name in tensors if name.endswith(_ENDS))
    modules = dict.fromkeys(name.removesuffix(end) for name in coded for end in _ENDS if name.endswith(end))
    for name in islice(modules, _MOST_MODULES):
        parts = {leaf: tensors[f"{name}.{leaf}"] for leaf in PART_LEAVES if f"{name}.{leaf}" in tensors}
        choice = settings.choice(name, HEAD)
        matrix = recognise(StoredModule(name, HEAD, parts, lambda record: None, choice, settings.method))
        if matrix is not None and matrix.shape is not None:
            shapes[f"{name}.weight"] = matrix.shape
    return shapes
