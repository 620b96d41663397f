"""Find the config of a training checkpoint: in its directory, or where trainers put the files of Hugging Face."""

from __future__ import annotations

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Document, Listing
from tieconv.errors import UnreadableError
from tieconv.formats.documents import CONFIG, read_config

FOLDERS = ("huggingface", "hf_assets", ".hf_metadata")
"""Directories with the config and the tokenizer, as verl, torchtitan and NeMo Automodel write them."""
_ABOVE = ("..", *(f"../{folder}" for folder in FOLDERS))


def find_config(listing: Listing, files: Files) -> tuple[Document | None, tuple[Caution, ...]]:
    """Return the first config that exists, and its cautions. Its name is relative to the checkpoint."""
    if CONFIG in listing.top:
        return read_config(files)
    inside = [f"{folder}/{CONFIG}" for folder in FOLDERS]
    name = next((name for name in inside if name in listing.entries), None)
    if name is None and not hasattr(files, "client"):
        name = next((f"{folder}/{CONFIG}" for folder in _ABOVE if _exists(files, f"{folder}/{CONFIG}")), None)
    if name is None:
        return None, ()
    return read_config(files, name)


def _exists(files: Files, name: str) -> bool:
    try:
        files.state(name)
    except UnreadableError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return False
        raise
    return True
