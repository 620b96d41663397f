"""The schemes that tieconv recognises, and the ends of the names of their parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tieconv.checkpoint.quantised import CODE_LEAVES, INERT_LEAVES, LEAVES, SCALE_LEAVES
from tieconv.checkpoint.quantised_matrix import FaultKind, QuantisedMatrix
from tieconv.inspection.quantised.schemes import (
    bitsandbytes,
    compressed_tensors,
    fp8_blocks,
    ggml_blocks,
    gptq,
    mlx_modes,
    modelopt,
    tensor_subclasses,
)
from tieconv.inspection.quantised.schemes.interface import CODES, SCALES, StoredModule, described, faults_of
from tieconv.text import listed

RECOGNISERS: tuple[Callable[[StoredModule], QuantisedMatrix | None], ...] = (
    ggml_blocks.recognise,
    bitsandbytes.recognise,
    mlx_modes.recognise,
    modelopt.recognise,
    fp8_blocks.recognise,
    compressed_tensors.recognise,
    gptq.recognise_awq,
    gptq.recognise,
    tensor_subclasses.recognise,
)
"""In this order; the first that recognises a module describes it."""

PART_LEAVES = ("weight", *LEAVES, "weight_shape", "weight_g_idx", "scale", "zero", modelopt.INPUT_SCALE)
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
    """Return the broken matrix of a module that stores scales but no matrix."""
    leaves = [leaf for leaf in SCALE_LEAVES if leaf in module.tensors]
    if not leaves or "weight" in module.tensors or any(leaf in module.tensors for leaf in CODE_LEAVES):
        return None
    faults = faults_of(module)
    names = [module.tensors[leaf].name for leaf in leaves]
    verb = "has" if len(names) == 1 else "have"
    faults.missing(FaultKind.NO_CODES, f"{listed(names, 3)} {verb} no codes", leaves)
    roles = dict.fromkeys(leaves, SCALES)
    return described(module, "", roles, faults, bits=module.choice.bits, block=None, shape=None)


def _unknown(module: StoredModule) -> QuantisedMatrix | None:
    leaves = [leaf for leaf in (*CODE_LEAVES, *SCALE_LEAVES) if leaf in module.tensors]
    coded = module.dtype("weight") in _CODE_TYPES
    if not leaves and not coded:
        return None
    why = "its parts are of no scheme that tieconv knows"
    matrix = _not_understood(module, why)
    if module.method and coded and not leaves:
        faults = faults_of(module)
        faults.missing(FaultKind.NO_SCALES, f"{listed([module.tensors['weight'].name], 1)} has no scales", ["weight"])
        return replace(matrix, faults=tuple(faults.entries))
    return matrix


def _not_understood(module: StoredModule, why: str) -> QuantisedMatrix:
    """Return the matrix without a scheme, a fault or a value."""
    roles = {leaf: CODES if leaf in ("weight", *CODE_LEAVES) else SCALES for leaf in module.tensors}
    return described(module, "", roles, faults_of(module), bits=None, block=None, shape=None, uncomputed=why)
