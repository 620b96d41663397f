"""Predict what a loader does with a quantised embedding or head, from the cells that were measured."""

from __future__ import annotations

from tieconv.checkpoint.finding import Outcome
from tieconv.checkpoint.inspection import Inspection, lists_float_head
from tieconv.checkpoint.quantised_matrix import (
    EMBEDDING,
    HEAD,
    DeclaredQuantisation,
    PairState,
    QuantisedMatrix,
    QuantisedTables,
)
from tieconv.checkpoint.quantised_matrix import Verdict as Choice
from tieconv.loaders.evidence.head_pair import in_file
from tieconv.loaders.evidence.quantised_cells import ABSENT, CELLS, FLOAT, MLX, QUANTISED, Cell, Tables
from tieconv.loaders.loaded import Cause, Loaded
from tieconv.loaders.outcome import Verdict
from tieconv.text import shown


def quantised_answer(inspection: Inspection, loader: tuple[str, str], loaded: Loaded) -> Verdict | None:
    """Return the answer for a model with a quantised embedding or head, or whose config lists a float head.

    Return ``None`` if the loader fails before it reads the tables: that reason stays the answer. Without a measured
    cell, the answer is unknown.
    """
    if any(refusal.cause is not Cause.UNKNOWN for refusal in loaded.refusals[:1]):
        return None
    tables = inspection.quantised_tables
    if tables is None:
        return _listed_answer(inspection, loader) if lists_float_head(inspection) else None
    names = tuple(part.name for matrix in tables.matrices for part in matrix.parts)
    broken = next((fault for matrix in tables.matrices for fault in matrix.faults), None)
    if broken is not None:
        return Verdict(Outcome.UNKNOWN, f"a quantised matrix is broken: {broken.reason}", broken.tensors)
    if loader == MLX and all(matrix.scheme.startswith("MLX") for matrix in tables.matrices):
        equal = tables.relation is not None and tables.relation.state is PairState.EQUAL
        return _mlx_answer(loaded, names, equal=equal)
    cell = _cell(inspection, tables, loader)
    if cell is None:
        listed = " and ".join(shown(matrix.name) for matrix in tables.matrices)
        are = "is" if len(tables.matrices) == 1 else "are"
        return Verdict(Outcome.UNKNOWN, f"{listed} {are} quantised, and tieconv has no measurement of that", names)
    return None if cell.outcome is None else Verdict(cell.outcome, cell.says, names)


def _mlx_answer(loaded: Loaded, names: tuple[str, ...], *, equal: bool) -> Verdict:
    """Return the answer of mlx-lm about its own codes: a module is quantised if its scales are stored.

    Helium stores a separate head beside the tied embedding, and does not use it. Nothing is lost if it is ``equal``.
    """
    if loaded.refusals:
        return Verdict(Outcome.UNKNOWN, loaded.refusals[0].sentence, names)
    if loaded.discarded and equal:
        return Verdict(Outcome.TIED, "the stored head equals the embedding, which serves both", names)
    if loaded.discarded:
        return Verdict(Outcome.DISCARDED, "mlx-lm drops the stored head without a message", names)
    if len({parameter.parameter for parameter in loaded.parameters.values()}) == 1:
        return Verdict(Outcome.TIED, "one quantised matrix serves both", names)
    return Verdict(Outcome.UNTIED, "each table is loaded as it is stored", names)


def _listed_answer(inspection: Inspection, loader: tuple[str, str]) -> Verdict | None:
    """Return the answer for a float pair whose head the config lists; ``None`` for a loader that reads only names."""
    declared = inspection.quantisation
    if declared is None or loader[0] in _READ_NAMES:
        return None
    scheme, head = _declared_scheme(declared), declared.head
    shape = QuantisedMatrix(HEAD, "", scheme, head.bits, None, head.symmetric, None, (), head)
    pair = (_stored(inspection, EMBEDDING, None), _stored(inspection, HEAD, None))
    cell = next((cell for cell in CELLS.get(loader, ()) if _fits(cell, inspection, shape, pair)), None)
    if cell is None:
        says = "the config says that the head is quantised, and tieconv has no measurement of a float head there"
        return Verdict(Outcome.UNKNOWN, says, ())
    return None if cell.outcome is None else Verdict(cell.outcome, cell.says, ())


_COMPRESSED = "compressed-tensors"

_READ_NAMES = frozenset({"llama.cpp", "safetensors"})
"""Loaders that know a quantised matrix by the names of its parts, not by the config."""

_SCHEMES = {"auto-round": "AutoRound", "gptq": "GPTQ v1", "awq": "AWQ", "fp8": "FP8 with weight_scale_inv"}


def _declared_scheme(declared: DeclaredQuantisation) -> str:
    """Return the scheme that the config describes."""
    if declared.method == "bitsandbytes":
        return f"bitsandbytes {declared.head.bits} bit"
    layout = declared.head.layout
    if declared.method == "compressed-tensors" and layout.endswith("fp4-pack-quantized"):
        layout = layout.removesuffix("-quantized")
    return _SCHEMES.get(declared.method, f"{declared.method} {layout}")


def _cell(inspection: Inspection, tables: QuantisedTables, loader: tuple[str, str]) -> Cell | None:
    head, embedding = tables.of(HEAD), tables.of(EMBEDDING)
    matrix = head or embedding
    if matrix is None or not tables.method or (head and embedding and head.scheme != embedding.scheme):
        return None
    if matrix.scheme.startswith(_COMPRESSED) is not (tables.method == _COMPRESSED):
        return None  # the parts look alike, and another program reads them
    pair = (_stored(inspection, EMBEDDING, embedding), _stored(inspection, HEAD, head))
    declared = inspection.quantisation
    listed = declared is not None and declared.head.verdict is Choice.QUANTISED
    cells = (cell for cell in CELLS.get(loader, ()) if cell.head_listed in (None, listed))
    return next((cell for cell in cells if _fits(cell, inspection, matrix, pair)), None)


def _fits(cell: Cell, inspection: Inspection, matrix: QuantisedMatrix, pair: Tables) -> bool:
    return (
        matrix.scheme in cell.schemes
        and cell.tied in (None, inspection.config.effective)
        and (not cell.tables or pair in cell.tables)
        and cell.named in (None, _is_named(matrix))
        and cell.left_out in (None, matrix.config.verdict is Choice.LEFT_OUT)
        and cell.symmetric in (None, matrix.symmetric)
        and (not cell.bits or matrix.bits in cell.bits)
        and (not cell.classes or inspection.family.architecture in cell.classes)
    )


def _is_named(matrix: QuantisedMatrix) -> bool:
    """Return whether the config says that this module is quantised, by its name."""
    entry = matrix.config.entry
    return matrix.config.verdict is Choice.QUANTISED and entry.rpartition(": ")[2] not in ("", "Linear", "Embedding")


def _stored(inspection: Inspection, role: str, matrix: QuantisedMatrix | None) -> str:
    if matrix is not None:
        return QUANTISED
    family = inspection.family
    name = family.input_embedding if role == EMBEDDING else family.output_head
    return FLOAT if name and in_file(inspection, name) in inspection.checkpoint.tensors else ABSENT
