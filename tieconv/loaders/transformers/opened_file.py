"""Find the file of a model directory that transformers opens, and whether it can read the index."""

from __future__ import annotations

from tieconv.checkpoint.model_files import OPENED, WEIGHTS_KEY, Checkpoint, Layout

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
