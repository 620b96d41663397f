"""Read the documents that lie beside the weights of any format: config.json and the shard index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.model_files import Document
from tieconv.formats.json.strict import loads
from tieconv.text import shown

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import Files

CONFIG = "config.json"
HF_QUANT = "hf_quant_config.json"
"""The file in which ModelOpt describes the quantisation."""
PARAMS = "params.json"
"""The config of Mistral's and of Meta's own tools, beside weights that are named consolidated."""
CONFIG_LIMIT = 16_000_000
_REPEATED_SAID = 8


def read_bytes(files: Files, name: str, limit: int) -> bytes:
    """Return the content of the file, at most ``limit + 1`` bytes."""
    return files.pread(name, min(files.state(name).size, limit) + 1, 0)


def read_config(files: Files, name: str = CONFIG) -> tuple[Document, tuple[Caution, ...]]:
    """Return the config and its cautions. NaN and repeated keys are accepted, because real configs hold them.

    Raises `UnreadableError` for a config that is not a JSON object.
    """
    data = read_bytes(files, name, CONFIG_LIMIT)
    repeated: list[str] = []
    value = loads(data, name, limit=CONFIG_LIMIT, lenient=True, duplicates=repeated)
    cautions = tuple(
        Caution("config.repeated-key", f"{name} holds the key {shown(key)} twice; some readers use the last value")
        for key in dict.fromkeys(repeated[:_REPEATED_SAID])
    )
    return Document(name, data.decode("utf-8"), value), cautions
