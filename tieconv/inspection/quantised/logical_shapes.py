"""The shapes that quantised matrices have unpacked, so that an unknown class's embedding and head can be guessed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.checkpoint.files.weight_file import TensorRecord
from tieconv.checkpoint.quantised import CODE_LEAVES, SCALE_LEAVES
from tieconv.checkpoint.quantised_matrix import HEAD
from tieconv.inspection.quantised.quantisation_config import quantisation_settings
from tieconv.inspection.quantised.schemes.interface import StoredModule
from tieconv.inspection.quantised.schemes.scheme_registry import PART_LEAVES, recognise

_MOST_MODULES = 65_536
_ENDS = tuple(f".{leaf}" for leaf in (*CODE_LEAVES, *SCALE_LEAVES))


def logical_shapes(checkpoint: Checkpoint) -> dict[str, tuple[int, int]]:
    """Return [V, H] of each quantised matrix by the name that it would have unquantised."""
    settings = quantisation_settings(checkpoint.quantisation_values)
    tensors = checkpoint.tensors
    shapes: dict[str, tuple[int, int]] = {}
    for name in islice(_modules(tensors), _MOST_MODULES):
        parts = {leaf: tensors[f"{name}.{leaf}"] for leaf in PART_LEAVES if f"{name}.{leaf}" in tensors}
        choice = settings.choice(name, HEAD)
        matrix = recognise(StoredModule(name, HEAD, parts, lambda record: None, choice, settings.method))
        if matrix is not None and matrix.shape is not None:
            shapes[f"{name}.weight"] = matrix.shape
    return shapes


def _modules(tensors: Mapping[str, TensorRecord]) -> dict[str, None]:
    """Return the modules with a part that shows a quantised matrix, in file order."""
    coded = (name for name in tensors if name.endswith(_ENDS))
    return dict.fromkeys(name.removesuffix(end) for name in coded for end in _ENDS if name.endswith(end))
