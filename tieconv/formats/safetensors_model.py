"""A model stored as safetensors: one file, or shards and their index."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import field

from tieconv.checkpoint.record import record
from tieconv.checkpoint.records import (
    Caution,
    Checkpoint,
    Document,
    Files,
    Layout,
    Listing,
    WeightFile,
)
from tieconv.errors import UnreadableError
from tieconv.formats import index as index_format
from tieconv.formats.documents import CONFIG, read_bytes, read_config
from tieconv.formats.safetensors import SUFFIX, read_weight_file
from tieconv.text import count, shell_word, shown

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_SHARD = r"-\d{5}-of-\d{5}\.safetensors$"


@record
class _Found:
    """What reading gathers before it becomes a `Checkpoint`; its two collections grow."""

    layout: Layout
    weights: tuple[str, ...]
    index: Document | None = None
    weight_map: dict[str, str] = field(default_factory=dict)
    cautions: list[Caution] = field(default_factory=list)


@record
class SafetensorsModel:
    """The safetensors format; see `tieconv.formats.interface.Format`."""

    name: str = "safetensors"

    def claims(self, listing: Listing) -> bool:
        names = (listing.named,) if listing.named else listing.top
        return any(name.endswith((SUFFIX, SUFFIX + index_format.SUFFIX)) for name in names)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        found = _find_weights(listing, files)
        weights = tuple(_read_one(files, name) for name in found.weights)
        found.cautions.extend(_index_cautions(found, weights))
        config = _config(listing, files, found)
        named = [*found.weights, *(document.name for document in (found.index, config) if document)]
        whole = found.layout is not Layout.FILE
        return Checkpoint(
            source=listing.source,
            root=listing.root,
            layout=found.layout,
            format=self.name,
            files=weights,
            config=config,
            index=found.index,
            companions={name: size for name, size in listing.entries.items() if name not in named} if whole else {},
            special=listing.special if whole else (),
            cautions=tuple(found.cautions),
            states={name: files.state(name) for name in named},
        )


def _find_weights(listing: Listing, files: Files) -> _Found:
    if listing.named and listing.named.endswith(SUFFIX):
        return _Found(Layout.FILE, (listing.named,))
    if listing.named:
        return _sharded(listing, files, listing.named)
    for name in (SINGLE, INDEX):
        _require_regular(listing, files, name)
    stored = [entry for entry in listing.top if entry.endswith(SUFFIX)]
    if SINGLE in stored:
        return _single(listing, stored)
    indexes = [entry for entry in listing.top if entry.endswith(SUFFIX + index_format.SUFFIX)]
    if INDEX in indexes or len(indexes) == 1:
        return _sharded(listing, files, INDEX if INDEX in indexes else indexes[0])
    if indexes:
        raise UnreadableError(
            f"{shown(listing.source)} holds {len(indexes)} indexes, none named {INDEX}",
            _name_one(listing, indexes[0]),
            "layout.ambiguous",
        )
    return _without_index(listing, stored)


def _require_regular(listing: Listing, files: Files, name: str) -> None:
    """Raise where the file that a loader would open is there and may not be read: others must not stand for it."""
    if name in listing.special:
        files.state(name)


def _name_one(listing: Listing, name: str) -> str:
    return f"name the one that you mean: {shell_word(os.path.join(listing.source, name))}"


def _single(listing: Listing, stored: list[str]) -> _Found:
    found = _Found(Layout.SINGLE, (SINGLE,))
    if INDEX in listing.top:
        found.cautions.append(
            Caution(
                "layout.ambiguous",
                f"{SINGLE} and {INDEX} stand side by side: transformers reads the single file, "
                "other loaders read the shards",
            )
        )
    else:
        found.cautions.extend(_orphans(stored, {SINGLE}))
    return found


def _sharded(listing: Listing, files: Files, name: str) -> _Found:
    data = read_bytes(files, name, index_format.LIMIT)
    value, weight_map = index_format.read_index(data, name)
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        _require_regular(listing, files, shard)
        if shard not in listing.entries:
            raise UnreadableError(
                f"{shown(name)} names the shard {shown(shard)}, which is not there",
                "fetch the missing shard, or rebuild the index from the shards that are there",
                "index.absent-shard",
            )
    found = _Found(Layout.SHARDED, shards, Document(name, data.decode("utf-8"), value), weight_map)
    found.cautions.extend(_orphans((entry for entry in listing.top if entry.endswith(SUFFIX)), set(shards)))
    return found


def _without_index(listing: Listing, stored: list[str]) -> _Found:
    """No ``model.safetensors`` and no index: one file is the model, numbered shards are; else nobody knows."""
    shards = [name for name in stored if re.search(_SHARD, name)]
    if len(stored) == 1:
        return _Found(Layout.SINGLE, tuple(stored))
    if shards and len(shards) == len(stored):
        caution = Caution("index.absent", f"{count(len(shards), 'shard')} without {INDEX}: loaders need the index")
        return _Found(Layout.SHARDED, tuple(shards), cautions=[caution])
    raise UnreadableError(
        f"{shown(listing.source)} holds {count(len(stored), 'safetensors file')}, none named {SINGLE}, and no index",
        _name_one(listing, stored[0]),
        "layout.ambiguous",
    )


def _orphans(stored: Iterable[str], used: set[str]) -> list[Caution]:
    left = sorted(set(stored) - used)
    if not left:
        return []
    listed = ", ".join(shown(name, 60) for name in left[:4])
    return [Caution("index.orphan", f"{count(len(left), 'weight file')} that the model does not use: {listed}")]


def _read_one(files: Files, name: str) -> WeightFile:
    return read_weight_file(lambda size, offset: files.pread(name, size, offset), files.state(name).size, name)


def _config(listing: Listing, files: Files, found: _Found) -> Document | None:
    """The config of the directory. For one shard of many it would describe tensors that are not in sight."""
    _require_regular(listing, files, CONFIG)
    if CONFIG not in listing.top:
        return None
    if found.layout is Layout.FILE and re.search(_SHARD, found.weights[0]):
        found.cautions.append(
            Caution("layout.one-shard", f"{shown(found.weights[0])} is one shard of a model; inspect its directory")
        )
        return None
    document, cautions = read_config(files)
    found.cautions.extend(cautions)
    return document


def _index_cautions(found: _Found, weights: tuple[WeightFile, ...]) -> list[Caution]:
    """Where index and headers disagree. The headers are what is there."""
    cautions: list[Caution] = []
    homes, repeated = _homes(weights)
    if repeated:
        cautions.append(Caution("index.repeated", f"{count(len(repeated), 'tensor')} in more than one shard", repeated))
    if found.index is None:
        return cautions
    held = {(tensor.name, file.name) for file in weights for tensor in file.tensors} if repeated else homes.items()
    absent = tuple(name for name, shard in found.weight_map.items() if (name, shard) not in held)
    if absent:
        cautions.append(
            Caution("index.absent-tensor", f"the index places {count(len(absent), 'tensor')} where it is not", absent)
        )
    extra = tuple(name for name in homes if name not in found.weight_map)
    if extra:
        cautions.append(Caution("index.extra-tensor", f"{count(len(extra), 'tensor')} the index does not name", extra))
    return cautions + _total_cautions(found.index, weights)


def _homes(weights: tuple[WeightFile, ...]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The first file that holds each tensor, and the tensors that more than one file holds."""
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
    actual = sum(tensor.nbytes for file in weights for tensor in file.tensors)
    if declared is None or declared == actual:
        return []
    return [Caution("index.total-size", f"the index declares total_size {shown(declared)}, the shards hold {actual}")]


SAFETENSORS = SafetensorsModel()
