"""How a model lies in its directory: one weight file, or shards and their index. The same for each format."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from tieconv.checkpoint.model_files import NOT_ALONE, Caution, Checkpoint, Document, Files, Layout, Listing, WeightFile
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.formats import index as index_format
from tieconv.formats.documents import CONFIG, read_bytes, read_config
from tieconv.formats.interface import prepare
from tieconv.text import command, count, path_word, shown

ReadOne = Callable[[Files, str], tuple[WeightFile, tuple[Caution, ...]]]
"""Reads the header of one weight file, and says what is odd about it."""


@record
class Naming:
    """The file names of a format.

    ``single`` is the name that loaders look for, ``suffixes`` end every weight file, ``shard`` is the pattern of the
    number in a shard's name, ``others`` that of files that end like weights and hold something else.
    """

    format: str
    noun: str
    single: str
    suffixes: tuple[str, ...]
    shard: str
    others: str | None = None

    @property
    def index(self) -> str:
        return self.single + index_format.SUFFIX

    def is_index(self, name: str) -> bool:
        return name.endswith(tuple(suffix + index_format.SUFFIX for suffix in self.suffixes))

    def is_weights(self, name: str) -> bool:
        return name.endswith(self.suffixes) and not (self.others and re.search(self.others, name))

    def claims(self, listing: Listing) -> bool:
        """Whether MODEL is of this format, by names alone. A file that the user names is taken at its suffix."""
        if listing.named:
            return listing.named.endswith(self.suffixes) or self.is_index(listing.named)
        return any(self.is_weights(entry) or self.is_index(entry) for entry in listing.top)


@record
class Model:
    """A format by its names and its reader of one file; see `tieconv.formats.interface.Format`."""

    naming: Naming
    read_one: ReadOne

    @property
    def name(self) -> str:
        return self.naming.format

    def claims(self, listing: Listing) -> bool:
        return self.naming.claims(listing)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        return read_model(self.naming, listing, files, self.read_one)


class _WeightSet:
    """What reading gathers before it becomes a `Checkpoint`."""

    def __init__(
        self,
        layout: Layout,
        weights: tuple[str, ...],
        index: Document | None = None,
        weight_map: dict[str, str] | None = None,
        cautions: list[Caution] | None = None,
    ) -> None:
        self.layout = layout
        self.weights = weights
        self.index = index
        self.weight_map = weight_map or {}
        self.cautions = cautions or []
        self.orphans: tuple[str, ...] = ()


def read_model(naming: Naming, listing: Listing, files: Files, read_one: ReadOne) -> Checkpoint:
    """The checkpoint that ``listing`` names. Raises `UnreadableError` for malformed or ambiguous input."""
    weight_set = _find_weights(naming, listing, files)
    prepare(files, weight_set.weights)
    read = [read_one(files, name) for name in weight_set.weights]
    weights = tuple(file for file, _ in read)
    weight_set.cautions += [caution for _, cautions in read for caution in cautions]
    weight_set.cautions += _index_cautions(weight_set, weights)
    config = _config(naming, listing, files, weight_set)
    named = [*weight_set.weights, *(document.name for document in (weight_set.index, config) if document)]
    whole = weight_set.layout is not Layout.FILE
    return Checkpoint(
        source=listing.source,
        root=listing.root,
        layout=weight_set.layout,
        format=naming.format,
        files=weights,
        config=config,
        index=weight_set.index,
        companions={name: size for name, size in listing.entries.items() if name not in named} if whole else {},
        special=listing.special if whole else (),
        cautions=(*weight_set.cautions, *(_code_cautions(listing, files) if config else ())),
        states={name: files.state(name) for name in named},
        orphans=tuple(_readable(files, weight_set.orphans, read_one)),
    )


def _find_weights(naming: Naming, listing: Listing, files: Files) -> _WeightSet:
    if listing.named and not naming.is_index(listing.named):
        cautions = [not_alone(listing.named)] if naming.index in listing.top else []
        return _WeightSet(Layout.FILE, (listing.named,), cautions=cautions)
    if listing.named:
        return _sharded(naming, listing, files, listing.named)
    for name in (naming.single, naming.index):
        _require_regular(listing, files, name)
    stored = [entry for entry in listing.top if naming.is_weights(entry)]
    if naming.single in stored:
        return _single(naming, listing, stored)
    indexes = [entry for entry in listing.top if naming.is_index(entry)]
    if naming.index in indexes or len(indexes) == 1:
        return _sharded(naming, listing, files, naming.index if naming.index in indexes else indexes[0])
    if indexes:
        raise UnreadableError(
            f"{shown(listing.source)} holds {len(indexes)} indexes, none named {naming.index}",
            _name_one(listing, indexes[0]),
            "layout.ambiguous",
        )
    return _without_index(naming, listing, stored)


def not_alone(named: str) -> Caution:
    """What says that the directory of the file ``named`` holds the model in other files too."""
    return Caution(NOT_ALONE, f"{shown(named)} is not the only model of its directory")


def _require_regular(listing: Listing, files: Files, name: str) -> None:
    """Raise where the file that a loader would open is there and may not be read: others must not stand for it."""
    if name in listing.special:
        files.state(name)


def _name_one(listing: Listing, name: str) -> str:
    return f"name the one that you mean: {path_word(os.path.join(listing.source, name))}"


def _single(naming: Naming, listing: Listing, stored: list[str]) -> _WeightSet:
    weight_set = _WeightSet(Layout.SINGLE, (naming.single,))
    if naming.index in listing.top:
        weight_set.cautions.append(
            Caution(
                "layout.ambiguous",
                f"{naming.single} and {naming.index} stand side by side: transformers reads the single file, "
                "other loaders read the shards",
            )
        )
    else:
        _note_orphans(weight_set, stored)
    return weight_set


def _sharded(naming: Naming, listing: Listing, files: Files, name: str) -> _WeightSet:
    data = read_bytes(files, name, index_format.LIMIT)
    value, weight_map = _read_index(data, name, listing)
    shards = tuple(sorted(set(weight_map.values())))
    for shard in shards:
        _require_regular(listing, files, shard)
        if shard not in listing.entries:
            raise index_format.absent_shard(
                f"{shown(name)} names the shard", shard, "index.absent-shard", _instead(listing, shard)
            )
    weight_set = _WeightSet(Layout.SHARDED, shards, Document(name, data.decode("utf-8"), value), weight_map)
    _note_orphans(weight_set, (entry for entry in listing.top if naming.is_weights(entry)))
    return weight_set


def _instead(listing: Listing, absent: str) -> str:
    """The other way out of an absent shard; its number says that tensors are lost with it, and reindex refuses."""
    if re.search(r"-of-\d+\.\w+$", absent):
        return ""
    return f", or rebuild the index from the shards that are there: {command('reindex', listing.source)}"


def _read_index(data: bytes, name: str, listing: Listing) -> tuple[Mapping[str, object], dict[str, str]]:
    """As `read_index`; the way out of a broken index is to rebuild it, but not of one that points elsewhere."""
    try:
        return index_format.read_index(data, name)
    except UnsafePathError:
        raise
    except UnreadableError as error:
        hint = f"rebuild it from the shards: {command('reindex', listing.source)}"
        raise UnreadableError(error.message, hint, error.code) from error


def _without_index(naming: Naming, listing: Listing, stored: list[str]) -> _WeightSet:
    """No file of the usual name and no index: one file is the model, numbered shards are; else nobody knows."""
    shards = [name for name in stored if re.search(naming.shard, name)]
    if len(stored) == 1 and not shards:
        return _WeightSet(Layout.SINGLE, tuple(stored))
    if shards and len(shards) == len(stored):
        absent = f"{count(len(shards), 'shard')} without {naming.index}: loaders need the index"
        return _WeightSet(Layout.SHARDED, tuple(shards), cautions=[Caution("index.absent", absent)])
    raise UnreadableError(
        f"{shown(listing.source)} holds {count(len(stored), naming.noun)}, none named {naming.single}, and no index",
        _name_one(listing, stored[0]),
        "layout.ambiguous",
    )


def _code_cautions(listing: Listing, files: Files) -> tuple[Caution, ...]:
    if not any(name.endswith(".py") for name in listing.top):
        return ()
    from tieconv.formats.remote_code import scan  # costs the parser of Python, which few models need

    return scan(listing, files)


def _note_orphans(weight_set: _WeightSet, stored: Iterable[str]) -> None:
    left = sorted(set(stored) - set(weight_set.weights))
    if not left:
        return
    weight_set.orphans = tuple(left)
    listed = ", ".join(shown(name, 60) for name in left[:4])
    message = f"{count(len(left), 'weight file')} that the model does not use: {listed}"
    weight_set.cautions.append(Caution("index.orphan", message))


def _readable(files: Files, names: Iterable[str], read_one: ReadOne) -> Iterator[WeightFile]:
    """The headers of files that the model does not use; one that cannot be read is none of its business."""
    for name in names:
        with suppress(UnreadableError):
            yield read_one(files, name)[0]


def _config(naming: Naming, listing: Listing, files: Files, weight_set: _WeightSet) -> Document | None:
    """The config of the directory. For one shard of many it would describe tensors that are not in sight."""
    _require_regular(listing, files, CONFIG)
    if CONFIG not in listing.top:
        return None
    if weight_set.layout is Layout.FILE and re.search(naming.shard, weight_set.weights[0]):
        weight_set.cautions.append(
            Caution(
                "layout.one-shard", f"{shown(weight_set.weights[0])} is one shard of a model; inspect its directory"
            )
        )
        return None
    document, cautions = read_config(files)
    weight_set.cautions += cautions
    return document


def _index_cautions(weight_set: _WeightSet, weights: tuple[WeightFile, ...]) -> list[Caution]:
    """Where index and headers disagree. The headers are what is there."""
    cautions: list[Caution] = []
    homes, repeated = _homes(weights)
    if repeated:
        cautions.append(Caution("index.repeated", f"{count(len(repeated), 'tensor')} in more than one shard", repeated))
    if weight_set.index is None:
        return cautions
    held = {(tensor.name, file.name) for file in weights for tensor in file.tensors} if repeated else homes.items()
    absent = tuple(name for name, shard in weight_set.weight_map.items() if (name, shard) not in held)
    if absent:
        cautions.append(
            Caution("index.absent-tensor", f"the index places {count(len(absent), 'tensor')} where it is not", absent)
        )
    extra = tuple(name for name in homes if name not in weight_set.weight_map)
    if extra:
        cautions.append(Caution("index.extra-tensor", f"{count(len(extra), 'tensor')} the index does not name", extra))
    return cautions + _total_cautions(weight_set.index, weights)


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
    tensors = [tensor for file in weights for tensor in file.tensors]
    actual = sum(tensor.nbytes for tensor in tensors)
    # Writers of shared storages count them once or once a name; both are in use.
    once = sum({(tensor.range, tensor.stride): tensor.nbytes for tensor in tensors}.values())
    if declared is None or declared in (actual, once):
        return []
    return [Caution("index.total-size", f"the index declares total_size {shown(declared)}, the shards hold {actual}")]
