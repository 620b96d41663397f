"""Read a model of shards through its index, and compare the index with the headers of the shards."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.interface import Files
from tieconv.checkpoint.files.model_files import Document, Layout, Listing
from tieconv.checkpoint.files.weight_file import WeightFile
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats import index as index_format
from tieconv.formats.documents import read_bytes
from tieconv.formats.weight_set import Naming, WeightSet, require_regular, with_orphans
from tieconv.text import command, listed, shown


def read_indexed(naming: Naming, listing: Listing, files: Files, name: str) -> WeightSet:
    """Return the shards that the index ``name`` lists. Raises `UnreadableError` if a shard is missing."""
    data = read_bytes(files, name, index_format.LIMIT)
    value, weight_map = _read_index(data, name, listing)
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        require_regular(listing, files, shard)
        if shard not in listing.entries:
            raise index_format.absent_shard(
                f"{shown(name)} lists the shard", shard, "index.absent-shard", _instead(listing, shard)
            )
    weight_set = WeightSet(Layout.SHARDED, shards, Document(name, data.decode("utf-8"), value), weight_map)
    return with_orphans(weight_set, filter(naming.is_weights, listing.top))


def read_one_file_index(naming: Naming, files: Files) -> WeightSet | None:
    """Return the single file with its index, or ``None`` if the index is unreadable or lists any other file.

    mlx-lm and mlx-vlm write an index for a model of one file too. Such an index names no second model.
    """
    data = read_bytes(files, naming.index, index_format.LIMIT)
    try:
        value, weight_map = index_format.read_index(data, naming.index)
    except UnreadableError:
        return None
    if set(weight_map.values()) != {naming.single}:
        return None
    index = Document(naming.index, data.decode("utf-8"), value)
    return WeightSet(Layout.SINGLE, (naming.single,), index, weight_map)


def _instead(listing: Listing, absent: str) -> str:
    """Return a second hint for a missing shard. A numbered shard has none, because reindex refuses there."""
    if re.search(r"-of-\d+\.\w+$", absent):
        return ""
    return f", or rebuild the index from the remaining shards: {command('reindex', listing.source)}"


def _read_index(data: bytes, name: str, listing: Listing) -> tuple[Mapping[str, object], dict[str, str]]:
    """Read the index as `read_index` does, and hint at reindex for every error but an unsafe path."""
    try:
        return index_format.read_index(data, name)
    except UnsafePathError:
        raise
    except UnreadableError as error:
        hint = f"rebuild the index from the shards: {command('reindex', listing.source)}"
        raise UnreadableError(error.message, hint, error.code) from error


def index_cautions(weight_set: WeightSet, weights: tuple[WeightFile, ...]) -> list[Caution]:
    """Return one caution for each way in which the index disagrees with the shard headers."""
    cautions: list[Caution] = []
    homes, repeated = _homes(weights)
    if repeated:
        message = f"{listed(repeated, 3)} {'is' if len(repeated) == 1 else 'are'} stored in more than one shard"
        cautions.append(Caution("index.repeated", message, repeated))
    if weight_set.index is None:
        return cautions
    held = {(tensor.name, file.name) for file in weights for tensor in file.tensors} if repeated else homes.items()
    absent = tuple(name for name, shard in weight_set.weight_map.items() if (name, shard) not in held)
    if absent:
        cautions.append(
            Caution("index.absent-tensor", f"the index maps {listed(absent, 3)} to the wrong shard", absent)
        )
    extra = tuple(name for name in homes if name not in weight_set.weight_map)
    if extra:
        cautions.append(Caution("index.extra-tensor", f"the index does not list {listed(extra, 3)}", extra))
    return cautions + _total_cautions(weight_set.index, weights)


def _homes(weights: tuple[WeightFile, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the first file that holds each tensor, and the tensors that several files hold."""
    homes: dict[str, str] = {}
    repeated: dict[str, None] = {}
    for file in weights:
        for tensor in file.tensors:
            if homes.setdefault(tensor.name, file.name) != file.name:
                repeated[tensor.name] = None
    return homes, tuple(repeated)


def _total_cautions(index: Document, weights: tuple[WeightFile, ...]) -> list[Caution]:
    metadata = index.value.get("metadata")
    declared = metadata.get("total_size") if isinstance(metadata, dict) else None
    tensors = [tensor for file in weights for tensor in file.tensors]
    actual = sum(tensor.nbytes for tensor in tensors)
    # Writers count a shared storage once, or once for each name. Both are in use.
    once = sum({(tensor.range, tensor.stride): tensor.nbytes for tensor in tensors}.values())
    if declared is None or declared in (actual, once):
        return []
    return [Caution("index.total-size", f"the index declares total_size {shown(declared)}, the shards hold {actual}")]
