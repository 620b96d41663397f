"""Handle a directory with weights in several formats: which one loaders prefer, and which files remain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tieconv.checkpoint.files.cautions import TWO_FORMATS, Caution
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import FileState, Listing
from tieconv.checkpoint.files.weight_file import WeightFile
from tieconv.errors import UnreadableError
from tieconv.formats import index as index_format
from tieconv.formats.directory import Model, not_alone
from tieconv.formats.documents import read_bytes
from tieconv.formats.gguf.model import GGUF
from tieconv.formats.gguf.reader import SUFFIX as GGUF_SUFFIX
from tieconv.formats.interface import Format
from tieconv.formats.json import lossless as spelled_json
from tieconv.formats.limits import INDEX_SUFFIX
from tieconv.formats.safetensors.model import SAFETENSORS
from tieconv.formats.torch.model import TORCH
from tieconv.formats.weight_set import Naming

_WHOLE_MODELS: tuple[Format, ...] = (SAFETENSORS, TORCH, GGUF)
"""Formats that hold a whole model, in the order in which transformers prefers them."""


def preferred(claims: Sequence[Format], listing: Listing) -> Format:
    """Return the format of ``claims`` to read.

    That is the first one, unless only the torch files have names that transformers looks for.
    """
    first = claims[0]
    if first not in _WHOLE_MODELS or listing.named or _is_found(first, listing):
        return first
    held = TORCH in claims and holds_model(TORCH, listing) and any(map(TORCH.naming.is_weights, listing.top))
    return TORCH if held else first


def _is_found(candidate: Format, listing: Listing) -> bool:
    """Return whether transformers finds the files by their names."""
    naming = candidate.naming if isinstance(candidate, Model) else None
    return naming is not None and not {naming.single, naming.index}.isdisjoint(listing.top)


def others(chosen: Format, listing: Listing, files: Files) -> tuple[dict[str, FileState], tuple[Caution, ...]]:
    """Return the files of other formats that hold a whole model, with their states, and a caution about them."""
    if chosen not in _WHOLE_MODELS:
        return {}, ()
    whole = replace(listing, named=None)
    if listing.named and not listing.named.endswith(INDEX_SUFFIX):
        return {}, _not_alone(chosen, listing.named, whole)
    present = [kind for kind in _WHOLE_MODELS if kind is chosen or holds_model(kind, whole)]
    taken = preferred(present, whole)
    present.sort(key=lambda kind: kind is not taken)
    names = sorted(name for kind in present if kind is not chosen for name in _files(kind, whole, files))
    return {name: files.state(name) for name in names}, (_caution(chosen, present),) if names else ()


def twins(chosen: Format, listing: Listing, files: Files) -> tuple[WeightFile, ...]:
    """Return the headers of the torch files beside safetensors. Empty if they are remote or unreadable."""
    whole = replace(listing, named=None)
    if chosen is not SAFETENSORS or not holds_model(TORCH, whole) or hasattr(files, "client"):
        return ()
    try:
        return TORCH.read(whole, files).files
    except UnreadableError:
        return ()


def _not_alone(chosen: Format, named: str, whole: Listing) -> tuple[Caution, ...]:
    """Return a caution if the directory of the file ``named`` may hold another model."""
    again = any(kind is not chosen and holds_model(kind, whole) for kind in _WHOLE_MODELS)
    return (not_alone(named),) if again else ()


def holds_model(candidate: Format, listing: Listing) -> bool:
    """Return whether MODEL holds files of this format that loaders look for. A stray `.pt` file does not count."""
    if candidate is TORCH:
        return not {TORCH.naming.single, TORCH.naming.index}.isdisjoint(listing.top)
    return candidate.claims(listing)


def _caution(chosen: Format, present: Sequence[Format]) -> Caution:
    """Return the caution that the weights of two formats may be two models."""
    rest = " and ".join(kind.name for kind in present if kind is not chosen)
    first, *later = (kind.name for kind in present)
    return Caution(
        TWO_FORMATS,
        f"the directory holds weights as {chosen.name} and as {rest}: transformers loads {first}. "
        f"Other loaders may load {' and '.join(later)}, which may be a different model",
    )


def _files(candidate: Format, listing: Listing, files: Files) -> set[str]:
    if candidate is TORCH:
        return _named(TORCH.naming, listing, files)
    if candidate is SAFETENSORS:
        naming = SAFETENSORS.naming
        return {name for name in listing.top if naming.is_weights(name) or naming.is_index(name)}
    return {name for name in listing.top if name.endswith(GGUF_SUFFIX)}


def _named(naming: Naming, listing: Listing, files: Files) -> set[str]:
    """Return the usual file names, the numbered shards and the shards of the index. Stray files are left out."""
    stem, _, suffix = naming.single.rpartition(".")
    shard = re.compile(rf"{re.escape(stem)}-(\d{{5}}-of-\d{{5}}|head(-\d+)?)\.{suffix}")
    usual = {name for name in listing.top if name in (naming.single, naming.index) or shard.fullmatch(name)}
    entries = _entries(naming.index, files) if naming.index in usual else set()
    return usual | {name for name in listing.top if name in entries and naming.is_weights(name)}


def _entries(name: str, files: Files) -> set[str]:
    """Return the shards that an index lists. Empty if the index cannot be read."""
    try:
        value = spelled_json.read(read_bytes(files, name, index_format.LIMIT), name, limit=index_format.LIMIT)
    except UnreadableError:
        return set()
    entries = value.get("weight_map")
    return {shard for shard in entries.values() if isinstance(shard, str)} if isinstance(entries, dict) else set()
