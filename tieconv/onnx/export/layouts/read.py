"""Read what a layout needs of the model: the config, and the generation config if the layout uses it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tieconv.checkpoint.files.model_files import Checkpoint
from tieconv.formats.documents import read_bytes
from tieconv.formats.json.strict import loads
from tieconv.onnx.export.layouts.interface import Layout, Model
from tieconv.reference import load_config
from tieconv.sources.local.files import open_files

_GENERATION = "generation_config.json"
_LIMIT = 1_000_000
"""Bytes of that file. The largest published files list some hundred ids."""


def read_model(checkpoint: Checkpoint, architecture: str, layout: Layout) -> Model:
    """Return the model as ``layout`` reads it. Raises `UnreadableError` for a generation config that is not JSON."""
    generation = _generation(checkpoint) if layout.reads_generation else {}
    config = load_config(checkpoint.root)
    return Model(checkpoint.source, architecture, checkpoint.config_values, config, generation)


def _generation(checkpoint: Checkpoint) -> Mapping[str, Any]:
    if _GENERATION not in checkpoint.companions:
        return {}
    with open_files(checkpoint.root) as files:
        return loads(read_bytes(files, _GENERATION, _LIMIT), _GENERATION, limit=_LIMIT, lenient=True)
