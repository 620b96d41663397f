"""Read a model from its directory: one weight file, or shards and their index. All formats share this code."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from tieconv.checkpoint.files.cautions import NOT_ALONE, Caution
from tieconv.checkpoint.files.model_files import Checkpoint, Document, Layout, Listing
from tieconv.checkpoint.files.weight_file import WeightFile
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.formats.documents import CONFIG, HF_QUANT, PARAMS, read_config
from tieconv.formats.interface import prepare
from tieconv.formats.weight_set import Naming, WeightSet, require_regular, with_orphans
from tieconv.text import count, path_word, shown

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import Files

ReadOne = Callable[["Files", str], tuple[WeightFile, tuple[Caution, ...]]]
"""Reads the header of one weight file; returns it with cautions."""


@record
class Model:
    """A format: its file names and the reader of one file. See `tieconv.formats.interface.Format`."""

    naming: Naming
    read_one: ReadOne

    @property
    def name(self) -> str:
        return self.naming.format

    def claims(self, listing: Listing) -> bool:
        return self.naming.claims(listing)

    def read(self, listing: Listing, files: Files) -> Checkpoint:
        return read_model(self.naming, listing, files, self.read_one)


def read_model(naming: Naming, listing: Listing, files: Files, read_one: ReadOne) -> Checkpoint:
    """Read the checkpoint that ``listing`` names. Raises `UnreadableError` for malformed or ambiguous input."""
    weight_set = _find_weights(naming, listing, files)
    prepare(files, weight_set.weights)
    read = [read_one(files, name) for name in weight_set.weights]
    weights = tuple(file for file, _ in read)
    cautions = [*weight_set.cautions, *(caution for _, file_cautions in read for caution in file_cautions)]
    if weight_set.index is not None or len(weights) > 1:
        from tieconv.formats.indexed import index_cautions  # most models are one file

        cautions += index_cautions(weight_set, weights)
    config, config_cautions = _config(naming, listing, files, weight_set)
    cautions += config_cautions
    quantiser = read_config(files, HF_QUANT)[0] if config and HF_QUANT in listing.top else None
    documents = (weight_set.index, config, quantiser)
    named = [*weight_set.weights, *(document.name for document in documents if document)]
    whole = weight_set.layout is not Layout.FILE
    return Checkpoint(
        source=listing.source,
        root=listing.root,
        layout=weight_set.layout,
        format=naming.format,
        files=weights,
        config=config,
        quantiser=quantiser,
        index=weight_set.index,
        companions={name: size for name, size in listing.entries.items() if name not in named} if whole else {},
        special=listing.special if whole else (),
        cautions=(*cautions, *(_code_cautions(listing, files) if config else ())),
        states={name: files.state(name) for name in named},
        orphans=tuple(_readable(files, weight_set.orphans, read_one)),
    )


def _find_weights(naming: Naming, listing: Listing, files: Files) -> WeightSet:
    if listing.named and not naming.is_index(listing.named):
        cautions = (not_alone(listing.named),) if naming.index in listing.top else ()
        return WeightSet(Layout.FILE, (listing.named,), cautions=cautions)
    if listing.named:
        return _indexed(naming, listing, files, listing.named)
    for name in (naming.single, naming.index):
        require_regular(listing, files, name)
    stored = [entry for entry in listing.top if naming.is_weights(entry)]
    if naming.single in stored:
        return _single(naming, listing, files, stored)
    indexes = [entry for entry in listing.top if naming.is_index(entry)]
    if naming.index in indexes or len(indexes) == 1:
        return _indexed(naming, listing, files, naming.index if naming.index in indexes else indexes[0])
    if indexes:
        raise UnreadableError(
            f"{shown(listing.source)} holds {len(indexes)} indexes, but no {naming.index}",
            _name_one(listing, indexes[0]),
            "layout.ambiguous",
        )
    return _without_index(naming, listing, stored)


def not_alone(named: str) -> Caution:
    """Return the caution that the directory of the file ``named`` holds other models too."""
    return Caution(NOT_ALONE, f"{shown(named)} is not the only model of its directory")


def _name_one(listing: Listing, name: str) -> str:
    return f"give the path of one of them: {path_word(os.path.join(listing.source, name))}"


def _single(naming: Naming, listing: Listing, files: Files, stored: list[str]) -> WeightSet:
    if naming.index not in listing.top:
        return with_orphans(WeightSet(Layout.SINGLE, (naming.single,)), stored)
    from tieconv.formats.indexed import read_one_file_index  # most models have no index

    weight_set = read_one_file_index(naming, files)
    if weight_set is not None:
        return with_orphans(weight_set, stored)
    caution = Caution(
        "layout.ambiguous",
        f"the directory holds both {naming.single} and {naming.index}: transformers reads the single file, "
        "other loaders read the shards",
    )
    return WeightSet(Layout.SINGLE, (naming.single,), cautions=(caution,))


def _indexed(naming: Naming, listing: Listing, files: Files, name: str) -> WeightSet:
    from tieconv.formats.indexed import read_indexed  # most models are one file

    return read_indexed(naming, listing, files, name)


def _without_index(naming: Naming, listing: Listing, stored: list[str]) -> WeightSet:
    """Choose the weights of a directory with no file of the usual name and no index.

    A single file is the model, and so are numbered shards. Raises `UnreadableError` for anything else.
    """
    shards = [name for name in stored if re.search(naming.shard, name)]
    if len(stored) == 1 and not shards:
        return WeightSet(Layout.SINGLE, tuple(stored))
    if shards and len(shards) == len(stored):
        absent = f"the directory holds {count(len(shards), 'shard')} but no {naming.index}, which loaders need"
        return WeightSet(Layout.SHARDED, tuple(shards), cautions=(Caution("index.absent", absent),))
    raise UnreadableError(
        f"{shown(listing.source)} holds {count(len(stored), naming.noun)}, but no {naming.single} and no index",
        _name_one(listing, stored[0]),
        "layout.ambiguous",
    )


def _code_cautions(listing: Listing, files: Files) -> tuple[Caution, ...]:
    if not any(name.endswith(".py") for name in listing.top):
        return ()
    from tieconv.formats.remote_code import scan  # imports Python's parser, which few models need

    return scan(listing, files)


def _readable(files: Files, names: Iterable[str], read_one: ReadOne) -> Iterator[WeightFile]:
    """Yield the headers of files that the model does not use. Skips files that cannot be read."""
    for name in names:
        with suppress(UnreadableError):
            yield read_one(files, name)[0]


def _config(
    naming: Naming, listing: Listing, files: Files, weight_set: WeightSet
) -> tuple[Document | None, Iterable[Caution]]:
    """Return the directory's config and cautions. Skip the config for one shard: it describes all shards."""
    require_regular(listing, files, CONFIG)
    if CONFIG not in listing.top and PARAMS in listing.top and re.match(r"consolidated", weight_set.weights[0]):
        require_regular(listing, files, PARAMS)
        return read_config(files, PARAMS)
    if CONFIG not in listing.top:
        return None, ()
    if weight_set.layout is Layout.FILE and re.search(naming.shard, weight_set.weights[0]):
        message = f"{shown(weight_set.weights[0])} is one shard of a model; inspect its directory"
        return None, (Caution("layout.one-shard", message),)
    return read_config(files)
