"""Read the files of a model in an object store by ranges."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from tieconv.checkpoint.model_files import FileState, Listing
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.sources import is_inside
from tieconv.sources.local.files import MAX_FILES
from tieconv.sources.objects import ObjectPath
from tieconv.sources.objects.object_client import ObjectClient, ObjectStream, RemoteObject
from tieconv.sources.ranged.ranged_files import DOCUMENT, READ_AHEAD, SECTION, RangedFiles, Tick
from tieconv.sources.temporary import make_temporary
from tieconv.sources.threads import workers
from tieconv.sources.user_files import new_file
from tieconv.text import shown, size

_DOCUMENTS = (".json", ".txt", ".md", ".jinja", ".py", ".yaml", ".yml")


class ObjectFiles(RangedFiles):
    """The files of one listing. Each request is for the listed ETag, so a replaced file is refused.

    An ETag is not a hash of the content, so no file has a ``content_id``.
    """

    client: ObjectClient

    def __init__(
        self, client: ObjectClient, listed: ObjectListing, tick: Tick | None = None, *, proving: bool = False
    ) -> None:
        super().__init__(client, listed.listing, tick, proving=proving)
        self.listed = listed
        # A weight file that one request fetches is read as a whole, at no further cost.
        self.costly = any(size > READ_AHEAD for name, size in listed.listing.entries.items() if not _is_text(name))

    def state(self, name: str) -> FileState:
        """Return a state as for a local file. Two states are equal only for one key with one ETag."""
        stored = self.listed.file(name)
        identity = f"{self.listed.path}/{name} {stored.etag}"
        return FileState(
            -3,
            int(sha256(identity.encode("utf-8", "surrogatepass")).hexdigest(), 16),
            stored.size,
            int(stored.modified * 1e9),
        )

    def size(self, name: str) -> int:
        return self.listed.file(name).size

    def is_document(self, name: str) -> bool:
        """Return whether a file is a text beside the weights, by its name."""
        return _is_text(name) and self.size(name) <= DOCUMENT

    def fetch(self, name: str, start: int, end: int) -> bytes:
        """Fetch bytes of the listed ETag. Raises `UnreadableError` if the file was replaced."""
        return self.client.read(self.remote(name), start, end)

    def open(self, name: str, start: int, end: int) -> ObjectStream:
        return self.client.open(self.remote(name), start, end)

    def remote(self, name: str) -> RemoteObject:
        """Return the listed object of a file."""
        stored = self.listed.file(name)
        return RemoteObject(self.listed.key(name), self.listed.label(name), stored.size, stored.etag)


def _is_text(name: str) -> bool:
    return name.endswith(_DOCUMENTS)


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


_WORKERS = 4
_BLOCK = 8 << 20


def fetch(listing: Listing, files: ObjectFiles, names: Iterable[str]) -> str:
    """Copy the files ``names`` to a new temporary directory, and return the model's path in it.

    The directory is removed at the end of the command or of the process. Its parent has the fingerprint of the listing
    as its name. Raises `UnreadableError` if a file was replaced, or if the disk is full.
    """
    wanted = list(names)
    needed = sum(files.size(name) for name in wanted)
    base = tempfile.gettempdir()
    if needed > shutil.disk_usage(base).free:
        raise _no_space(listing.source, f"{size(needed)} do not fit into {shown(base)}")
    try:
        root = os.path.join(make_temporary(), files.listed.fingerprint, os.path.basename(str(files.listed.path)))
        for directory in {os.path.dirname(os.path.join(root, name)) for name in wanted} | {root}:
            os.makedirs(directory, exist_ok=True)
        with workers(_WORKERS) as pool:
            for _ in pool.map(partial(_copy, files, root), wanted):
                continue
    except OSError as error:
        raise _no_space(listing.source, f"{shown(base)}: {(error.strerror or 'error').lower()}") from error
    return os.path.join(root, listing.named) if listing.named else root


def _no_space(source: str, why: str) -> UnreadableError:
    return UnreadableError(
        f"{shown(source)} cannot be copied to the temporary directory: {why}",
        "use a directory with free space: TMPDIR=DIR",
        "objects.copy",
    )


def _copy(files: ObjectFiles, root: str, name: str) -> None:
    target = os.path.join(root, name)
    whole = files.size(name)
    with new_file(target) as out:
        for start in range(0, whole, SECTION):
            stream = files.open(name, start, min(start + SECTION, whole))
            try:
                while stream.position < stream.end:
                    block = memoryview(bytearray(min(_BLOCK, stream.end - stream.position)))
                    stream.read_into(block)
                    out.write(block)
            finally:
                stream.close()
