"""Say whether transformers finds the weights of a directory by the file names that it knows."""

from __future__ import annotations

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.model_files import OPENED, TWO_FORMATS, WEIGHTS_KEY, Checkpoint, Layout
from tieconv.loaders.evidence import SAFETENSORS, TORCH, is_directory, unclear_class, unclear_files, wrong_format
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.text import shown

_READABLE = (SAFETENSORS, TORCH)


def by_name(inspection: Inspection, *, configured: bool = True) -> Refusal | None:
    """Return why transformers does not reach the tensors, or ``None``.

    ``configured`` says that this version follows `transformers_weights` in the config.
    """
    # It opens one file of a directory and ignores the others.
    refusal = unclear_files(inspection, TWO_FORMATS, "layout.ambiguous") or _opened(inspection, configured)
    return refusal or unclear_class(inspection) or wrong_format(inspection, "transformers", _READABLE)


def _opened(inspection: Inspection, configured: bool) -> Refusal | None:
    checkpoint = inspection.checkpoint
    if not is_directory(inspection, _READABLE):
        return None
    named = checkpoint.config_values.get(WEIGHTS_KEY) if configured else None
    if named is not None and not str(named).endswith(NAMEABLE):
        sentence = f"the config sets {WEIGHTS_KEY} to {shown(named)}, which is not a safetensors file or an index"
        return Refusal(Cause.FILES, sentence)
    file = opened(checkpoint, configured=configured)
    if file is None:
        sought = shown(named) if named is not None else "model.safetensors or its index"
        stored = shown(checkpoint.entry or checkpoint.files[0].name)
        sentence = f"transformers looks for {sought} and finds no weights: the directory contains {stored}"
        return Refusal(Cause.FILES, sentence)
    if file != checkpoint.entry:
        return unknown(f"transformers opens {shown(file)}, and tieconv read other files")
    if stops_at_index(checkpoint):
        return Refusal(Cause.FILES, f"transformers fails to load {shown(file)}: the index has no metadata")
    return None


# Find the file of a model directory that transformers opens, and whether it can read the index.

NAMEABLE = (".safetensors", ".safetensors.index.json")
"""The suffixes that the config may use under `transformers_weights`."""


def opened(checkpoint: Checkpoint, *, configured: bool = True) -> str | None:
    """Return the file of a directory that transformers opens, weights or index, or ``None``.

    ``configured`` says that this version follows `transformers_weights` in the config.
    """
    files = {*checkpoint.states, *checkpoint.companions}
    named = checkpoint.config_values.get(WEIGHTS_KEY) if configured else None
    if named is not None:
        return named if isinstance(named, str) and named in files and named.endswith(NAMEABLE) else None
    return next((name for name in OPENED if name in files), None)


def stops_at_index(checkpoint: Checkpoint) -> bool:
    """Return whether the index lacks the metadata that transformers reads. It does not read that of one file."""
    index = checkpoint.index if checkpoint.layout is Layout.SHARDED else None
    return index is not None and not isinstance(index.value.get("metadata"), dict)
