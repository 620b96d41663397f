"""Identify the content of a model by its listing, without reading its files."""

from __future__ import annotations

import hashlib
import json
import os

from tieconv.checkpoint.value_type import record
from tieconv.sources import is_hub, is_object
from tieconv.sources.local.files import locate


@record
class ListedContent:
    """What a listing says about a model.

    ``fingerprint`` is a commit on the Hub, or a SHA-256 of names, sizes and ETags. For local files it is a SHA-256 of
    names, sizes, times and inodes. ``bytes`` is the size of all files.
    """

    fingerprint: str
    bytes: int


def listed_content(source: str) -> ListedContent:
    """List a model. Raises `TieconvError` or ``OSError`` if it cannot be listed."""
    if is_object(source):
        from tieconv.sources.objects.object_source import open_model

        with open_model(source) as (listing, _, fingerprint):
            return ListedContent(fingerprint, sum(listing.entries.values()))
    if is_hub(source):
        from tieconv.sources.hub.source import open_model as open_hub_model

        with open_hub_model(source) as (listing, _, commit):
            return ListedContent(commit, sum(listing.entries.values()))
    listing = locate(source)
    states = [(name, os.stat(os.path.join(listing.root, name))) for name in listing.entries]
    entries = [(name, state.st_size, state.st_mtime_ns, state.st_ino) for name, state in states]
    return ListedContent(hashlib.sha256(json.dumps(entries).encode()).hexdigest(), sum(listing.entries.values()))
