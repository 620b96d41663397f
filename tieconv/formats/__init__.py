"""The formats that are read, and the choice among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.files.git_files import LARGEST
from tieconv.formats.safetensors.model import SAFETENSORS

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import Files
    from tieconv.checkpoint.files.model_files import Checkpoint, Listing
    from tieconv.formats.interface import Format

    FORMATS: tuple[Format, ...]

_TORCH = (".bin", ".pt", ".pth", ".th", ".ckpt")
_OF_OTHERS = (
    *_TORCH,
    *(suffix + ".index.json" for suffix in _TORCH),
    ".gguf",
    ".distcp",
    ".metadata",
    "adapter_config.json",
)
"""Ends of the names by which another format may claim a model, or stand beside one."""
GRAPH_SUFFIX = ".onnx"
_DOCUMENTS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "special_tokens_map.json"),
)
"""What a model's directory holds beside its weights that loaders open; `transformers` gives these names."""


def read_checkpoint(listing: Listing, files: Files) -> Checkpoint:
    """The checkpoint that MODEL names, in the format that loaders prefer; `UnreadableError` where there is none."""
    _check_documents(listing, files)
    if is_safetensors_alone(listing):
        return SAFETENSORS.read(listing, files)
    if holds_graphs(listing):
        from tieconv.formats.onnx.model import ONNX  # most models are no graphs

        return ONNX.read(listing, files)
    from tieconv.formats.format_choice import choose  # most models give no choice

    return choose(listing, files)


def _check_documents(listing: Listing, files: Files) -> None:
    """Raise `UnreadableError` where Git left a pointer or the text of a link in place of a document."""
    if hasattr(files, "client"):
        return  # each read would be a request, and the Hub serves the files themselves
    for name in _DOCUMENTS if listing.named is None else ():
        if 0 < listing.entries.get(name, 0) <= LARGEST:
            files.pread(name, LARGEST, 0)


def is_safetensors_alone(listing: Listing) -> bool:
    """Whether no other format can have a say, told without loading one."""
    names = (*listing.top, listing.named or "")
    return SAFETENSORS.claims(listing) and not any(name.endswith(_OF_OTHERS) for name in names)


def holds_graphs(listing: Listing) -> bool:
    """Whether MODEL is an ONNX graph, or a directory of graphs without weights that another format reads."""
    if listing.named is not None:
        return listing.named.lower().endswith(GRAPH_SUFFIX)
    if not any(name.lower().endswith(GRAPH_SUFFIX) for name in listing.entries):
        return False
    from tieconv.formats.format_choice import holds_weights

    return not holds_weights(listing)


def __getattr__(name: str) -> object:
    """``FORMATS``, loaded when it is asked for."""
    if name == "FORMATS":
        from tieconv.formats.format_choice import FORMATS

        return FORMATS
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
