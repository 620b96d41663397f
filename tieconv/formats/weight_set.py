"""Decide by file names which files of a directory are the weights of a model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING

from tieconv.checkpoint.files.cautions import Caution
from tieconv.checkpoint.files.model_files import Document, Layout, Listing
from tieconv.checkpoint.value_type import record
from tieconv.formats.limits import INDEX_SUFFIX
from tieconv.text import count, shown

if TYPE_CHECKING:
    from tieconv.checkpoint.files.interface import Files


@record
class Naming:
    """The file names of a format.

    ``single`` is the name that loaders look for. Every weight file ends with one of ``suffixes``. ``shard`` matches
    the number in a shard's name. ``others`` matches files that end like weights but hold something else.
    """

    format: str
    noun: str
    single: str
    suffixes: tuple[str, ...]
    shard: str
    others: str | None = None

    @property
    def index(self) -> str:
        return self.single + INDEX_SUFFIX

    def is_index(self, name: str) -> bool:
        return name.endswith(tuple(suffix + INDEX_SUFFIX for suffix in self.suffixes))

    def is_weights(self, name: str) -> bool:
        return name.endswith(self.suffixes) and not (self.others and re.search(self.others, name))

    def claims(self, listing: Listing) -> bool:
        """Return whether MODEL has this format, judged by names alone. For one file the suffix decides."""
        if listing.named:
            return listing.named.endswith(self.suffixes) or self.is_index(listing.named)
        return any(self.is_weights(entry) or self.is_index(entry) for entry in listing.top)


@record
class WeightSet:
    """The weight files of a model. ``orphans`` are weight files of its directory that the model does not use."""

    layout: Layout
    weights: tuple[str, ...]
    index: Document | None = None
    weight_map: Mapping[str, str] = field(default_factory=dict)
    cautions: tuple[Caution, ...] = ()
    orphans: tuple[str, ...] = ()


def require_regular(listing: Listing, files: Files, name: str) -> None:
    """Raise an error if the file that a loader would open exists but may not be read."""
    if name in listing.special:
        files.state(name)


def with_orphans(weight_set: WeightSet, stored: Iterable[str]) -> WeightSet:
    """Return the set with the ``stored`` weight files that the model does not use, and a caution."""
    left = sorted(set(stored) - set(weight_set.weights))
    if not left:
        return weight_set
    listed = ", ".join(shown(name, 60) for name in left[:4])
    message = f"the model does not use {count(len(left), 'weight file')}: {listed}"
    cautions = (*weight_set.cautions, Caution("index.orphan", message))
    return replace(weight_set, orphans=tuple(left), cautions=cautions)
