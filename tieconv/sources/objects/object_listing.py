"""List the objects of a model with sizes and ETags, in one request for each thousand keys."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.sources import is_inside
from tieconv.sources.local.files import MAX_FILES
from tieconv.sources.objects.object_client import ObjectClient
from tieconv.sources.objects.object_path import ObjectPath
from tieconv.text import shown

_INDEX = ".index.json"
_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".json", ".npz", ".h5", ".msgpack")
"""Ends of addresses that mean one file. Other addresses mean a prefix."""


@record
class StoredObject:
    """One object: its size in bytes, its ETag and when it was written, in seconds since 1970."""

    size: int
    etag: str | None
    modified: float


@record
class ObjectListing:
    """The objects of a model. ``fingerprint`` is a hash of their names, sizes and ETags."""

    path: ObjectPath
    listing: Listing
    stored: Mapping[str, StoredObject]
    fingerprint: str

    def label(self, name: str) -> str:
        """Return the file's name for messages."""
        return f"{shown(self.listing.source)}: {shown(name)}"

    def key(self, name: str) -> str:
        """Return the key of a file."""
        return f"{self.path.path}/{name}" if self.path.path else name

    def file(self, name: str) -> StoredObject:
        """Return the stored object of a file. Raises `UnreadableError` if the model has no such file."""
        try:
            return self.stored[name]
        except KeyError:
            raise UnreadableError(
                f"{self.label(name)} is not in the object store", "check the address", "objects.absent"
            ) from None


def look_up(client: ObjectClient, source: str, path: ObjectPath) -> ObjectListing:
    """List the files of a model. Raises `UnreadableError` if there is none."""
    if path.path.endswith(_FILES):
        directory, _, named = path.path.rpartition("/")
        above = ObjectPath(path.scheme, path.bucket, directory)
        pages = (
            client.pages(shown(source), directory)
            if named.endswith(_INDEX)
            else [client.level(shown(source), directory)]
        )
        stored = _stored(source, above, pages)
        if named in stored:
            return _listing(source, above, named, stored)
    stored = _stored(source, path, client.pages(shown(source), path.path))
    if not stored:
        raise UnreadableError(
            f"{shown(source)}: no such file or prefix in the object store", "check the address", "objects.absent"
        )
    return _listing(source, path, None, stored)


def _listing(source: str, path: ObjectPath, named: str | None, stored: dict[str, StoredObject]) -> ObjectListing:
    entries = {name: stored[name].size for name in sorted(stored)}
    text = repr([(name, stored[name].size, stored[name].etag or stored[name].modified) for name in entries])
    fingerprint = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return ObjectListing(path, Listing(source, str(path), named, entries, ()), stored, fingerprint)


def _stored(source: str, path: ObjectPath, pages: Iterable[Iterable[Any]]) -> dict[str, StoredObject]:
    """Return the objects below ``path`` by their relative names, without the empty objects that mark directories."""
    below = f"{path.path}/" if path.path else ""
    files: dict[str, StoredObject] = {}
    for page in pages:
        for entry in page:
            name = str(entry["path"]).removeprefix(below)
            if entry["path"] == path.path and not entry["size"]:
                continue
            if not is_inside(name):
                raise UnsafePathError(
                    f"{shown(source)} holds the key {shown(name)}, which is not a relative path",
                    "copy the model to a prefix with ordinary names",
                    "objects.key",
                )
            files[name] = StoredObject(int(entry["size"]), entry["e_tag"], entry["last_modified"].timestamp())
            if len(files) > MAX_FILES:
                raise UnreadableError(
                    f"{shown(source)} holds more than {MAX_FILES:,} files",
                    "give the prefix that holds the weights",
                    "objects.too-large",
                )
    directories = {name[:end] for name in files for end in _slashes(name)}
    return {name: file for name, file in files.items() if file.size or name not in directories}


def _slashes(name: str) -> list[int]:
    return [at for at, character in enumerate(name) if character == "/"]
