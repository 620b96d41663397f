"""The checkpoint formats that tieconv reads, and how it chooses one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.checkpoint.model_files import LARGEST, Checkpoint, Files, Listing
from tieconv.errors import UnreadableError
from tieconv.formats.safetensors import SAFETENSORS

if TYPE_CHECKING:
    from tieconv.formats.directory import Format

    FORMATS: tuple[Format, ...]

GGUF_SUFFIX = ".gguf"
_TORCH = (".bin", ".pt", ".pth", ".th", ".ckpt")
_INDEXES = tuple(suffix + ".index.json" for suffix in _TORCH)
_OF_OTHERS = (*_TORCH, *_INDEXES, GGUF_SUFFIX, ".distcp", ".metadata", "adapter_config.json")
"""Suffixes of the files of other formats, which may hold the model or lie beside it."""
GRAPH_SUFFIX = ".onnx"
_DOCUMENTS = (
    *("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt"),
    *("merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "special_tokens_map.json"),
)
"""Files beside the weights that loaders open, under the names that transformers gives them."""


def read_checkpoint(listing: Listing, files: Files) -> Checkpoint:
    """Read the checkpoint that MODEL names, in the format that loaders prefer.

    Raises `UnreadableError` if there is no checkpoint.
    """
    try:
        _check_documents(listing, files)
        if is_safetensors_alone(listing):
            return SAFETENSORS.read(listing, files)
        if holds_graphs(listing):
            from tieconv.formats.onnx import ONNX  # most models are not ONNX graphs

            return ONNX.read(listing, files)
        from tieconv.formats.format_choice import choose  # most models have one format

        return choose(listing, files)
    except UnreadableError as error:
        if error.code != "index.absent-shard":
            raise
        from tieconv.formats.shards import stale_index  # only this error looks at the shards beside the index

        raise stale_index(listing, files, error) from error


def _check_documents(listing: Listing, files: Files) -> None:
    """Raise `UnreadableError` if a document is a Git LFS pointer or the text of a symlink."""
    if hasattr(files, "client"):
        return  # each read would be a request, and the Hub serves the files themselves
    for name in _DOCUMENTS if listing.named is None else ():
        if 0 < listing.entries.get(name, 0) <= LARGEST:
            files.pread(name, LARGEST, 0)


def is_safetensors_alone(listing: Listing) -> bool:
    """Return whether safetensors is the only format of MODEL, judged by file names."""
    names = (*listing.top, listing.named or "")
    return SAFETENSORS.claims(listing) and not any(name.endswith(_OF_OTHERS) for name in names)


def holds_graphs(listing: Listing) -> bool:
    """Return whether MODEL is an ONNX graph, or a directory with graphs and no weights of another format."""
    if listing.named is not None:
        return listing.named.lower().endswith(GRAPH_SUFFIX)
    if not any(name.lower().endswith(GRAPH_SUFFIX) for name in listing.entries):
        return False
    from tieconv.formats.format_choice import holds_weights

    return not holds_weights(listing)
