"""Send requests to object stores with obstore: its retries, deadlines and signatures.

Only the modules of this package import obstore.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from tieconv.checkpoint.model_files import FileState, Listing
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.sources import is_inside, ranged
from tieconv.sources.local import MAX_FILES
from tieconv.sources.objects import ObjectPath
from tieconv.sources.objects.host_gate import HostGate, relays
from tieconv.sources.objects.store_settings import allowed_hosts, store_settings
from tieconv.sources.temporary import make_temporary, room_for
from tieconv.sources.user_files import new_file
from tieconv.text import shown

T = TypeVar("T")

SILENCE = timedelta(seconds=30)
"""The longest wait for the first byte of a response, and between two bytes."""
CONNECT = timedelta(seconds=10)
RESPONSE = timedelta(minutes=5)
"""The longest time of one response. A stream requests at most 64 MiB at a time."""
RETRIES = 5
RETRY_FOR = timedelta(minutes=2)
"""No attempt starts later than this after the first."""
CHUNK = 1 << 20

_STORES = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_stores: dict[tuple[int, str, str, bool], tuple[Any, HostGate]] = {}
PAGE_BYTES = 16 << 20
"""The most bytes of `PAGE` keys of a listing. A key has at most 1,024 bytes."""
PAGE_SECONDS = 60.0
"""The most time for `PAGE` keys of a listing, its retries included. Pages without keys count towards it."""


@record
class RemoteObject:
    """A listed object: its key, its name in errors, its size in bytes and its ETag."""

    key: str
    label: str
    size: int
    etag: str | None


def store_of(path: ObjectPath, *, lists: bool = False) -> tuple[Any, HostGate]:
    """Return obstore's store of a bucket, and the gate that it connects through. Listings have a separate one.

    Each process opens its own, because stores do not survive a fork.
    """
    key = os.getpid(), path.scheme, path.bucket, lists
    if key not in _stores or _stores[key][1].closed:
        settings, client = store_settings(path.scheme)
        account = str(settings.get("account_name", ""))
        gate = HostGate(allowed_hosts(path.scheme, path.bucket, client.pop("_endpoint"), account))
        options = {**client, "timeout": RESPONSE, "read_timeout": SILENCE, "connect_timeout": CONNECT}
        if relays():
            options["proxy_url"] = gate.url
        retries = {"max_retries": RETRIES, "retry_timeout": RETRY_FOR}
        opens: Any = _STORES[path.scheme]
        _stores[key] = opens(path.bucket, client_options=options, retry_config=retries, **settings), gate
    return _stores[key]


class ObjectClient(ranged.Traffic):
    """Reads ranges of the objects of one bucket, and counts requests without obstore's retries."""

    def __init__(self, path: ObjectPath, label: str) -> None:
        super().__init__()
        self._path = path
        self._store, self._gate = call(label, partial(store_of, path))

    def pages(self, label: str, prefix: str) -> Iterator[Any]:
        """Yield the objects below a prefix, a page at a time. Raises `UnreadableError`, also for an endless listing."""
        store, gate = call(label, partial(store_of, self._path, lists=True))
        pages = call(label, lambda: store.list(prefix or None, chunk_size=ranged.PAGE), gate)
        bounds = ranged.ListingBounds(label, _ENDPOINT, "objects")
        try:
            while True:
                gate.allow(PAGE_BYTES)
                page = call(label, lambda: next(pages, None), gate, PAGE_SECONDS)
                if page is None:
                    return
                _check_etags(page, label)
                self.count(requests=1)
                repeats = len({entry["path"] for entry in page}) < len(page)
                bounds.page(str(page[0]["path"]) if len(page) else "", repeats)
                yield page
        except UnreadableError:
            gate.cut()
            raise

    def level(self, label: str, prefix: str) -> Any:
        """Return the objects directly below a prefix, without those of its directories. Raises `UnreadableError`."""
        store, gate = call(label, partial(store_of, self._path, lists=True))
        gate.allow(PAGE_BYTES * 4)
        result = call(label, lambda: store.list_with_delimiter(prefix or None), gate, PAGE_SECONDS)
        _check_etags(result["objects"], label)
        self.count(requests=1 + len(result["objects"]) // ranged.PAGE)
        return result["objects"]

    def get(self, file: RemoteObject, start: int, end: int) -> Any:
        """Request a range, and return obstore's response. Raises `UnreadableError` if it is of another object."""
        options: dict[str, Any] = {"range": (start, end)}
        if file.etag is not None:
            options["if_match"] = file.etag
        self.count(requests=1)
        response = call(file.label, lambda: self._store.get(file.key, options=options), self._gate)
        etag, replaced = response.meta.get("e_tag"), response.meta["size"] != file.size
        if replaced or (file.etag and etag and etag.strip('"') != file.etag.strip('"')):
            raise translate(exceptions.PreconditionError(), file.label)
        if tuple(response.range) != (start, end):
            problem = f"{file.label}: the server sent another range than tieconv requested"
            raise UnreadableError(problem, _ENDPOINT, "objects.content-range")
        return response

    def open(self, file: RemoteObject, start: int, end: int) -> ObjectStream:
        """Return a stream of the bytes ``start`` to ``end`` of an object."""
        return ObjectStream(self, file, start, end)


def _check_etags(entries: Any, label: str) -> None:
    """Refuse etags that no If-Match header can hold: object_store 0.14 panics when it signs such a request."""
    if any(not (etag.isascii() and etag.isprintable()) for entry in entries if (etag := entry["e_tag"])):
        problem = f"{label} cannot be listed: the response of the server is malformed"
        raise UnreadableError(problem, _ENDPOINT, "objects.malformed")


def call(label: str, ask: Callable[[], T], gate: HostGate | None = None, timeout: float | None = None) -> T:
    """Call obstore in a thread, so that an interrupt works meanwhile. Raises `UnreadableError`.

    A panic of its Rust code is a `BaseException`, and counts as an error of the settings.
    """

    def late() -> UnreadableError:
        if gate is not None:
            gate.cut()
        problem = f"{label} cannot be listed: the server did not send {ranged.PAGE:,} keys"
        hint = "give a longer prefix, or try again later"
        return UnreadableError(f"{problem}, or the rest, in {timeout or 0:.0f} s", hint, "objects.endless")

    try:
        return ranged.interruptible(ask, timeout, late)
    except (KeyboardInterrupt, SystemExit, GeneratorExit, UnreadableError):
        raise
    except BaseException as error:
        if not isinstance(error, OBSTORE) and type(error).__name__ != "PanicException":
            raise
        if gate is not None and (refusal := _refusal(gate, label)):
            raise refusal from None
        raise translate(error, label) from None  # the cause's text may hold a signed address


def _refusal(gate: HostGate, label: str) -> UnreadableError | None:
    """Return the error for what the gate refused, and forget it."""
    refused, gate.refused = gate.refused, ""
    if refused:
        problem = f"{label} cannot be read: the server redirects to another host, which tieconv does not follow"
        return UnreadableError(problem, "check the endpoint variables and the region", "objects.redirect")
    if gate.too_long:
        problem = f"{label} cannot be listed: the server sent more than {PAGE_BYTES >> 20} MiB for {ranged.PAGE:,} keys"
        return UnreadableError(problem, _ENDPOINT, "objects.too-long")
    return None


_ENDPOINT = "check the endpoint variables and proxies"


class ObjectStream(ranged.Stream):
    """A range of an object. obstore continues an interrupted response itself."""

    def __init__(self, client: ObjectClient, file: RemoteObject, start: int, end: int) -> None:
        super().__init__(start, end)
        self._client, self._file = client, file
        self._chunks: Iterator[Any] | None = None

    def _next(self) -> memoryview:
        if self._chunks is None:
            self._chunks = iter(self._client.get(self._file, self.position, self.end).stream(min_chunk_size=CHUNK))
        chunks = self._chunks
        chunk = memoryview(call(self._file.label, lambda: next(chunks, b""), self._client._gate))
        self._client.count(bytes=len(chunk))
        if not 0 < len(chunk) <= self.end - self.position:
            problem = f"{self._file.label}: the server sent {'too few' if not chunk else 'too many'} bytes"
            raise UnreadableError(problem, _ENDPOINT, "objects.length")
        return chunk

    def close(self) -> None:
        super().close()
        self._chunks = None


OBSTORE = (exceptions.BaseError, OSError, ValueError, AssertionError)
"""Errors of obstore and of its credential providers."""

_STATUS = re.compile(r"status code: (\d{3})\b")
_RETRIES = re.compile(r"after (\d+) retries")
_LOGIN = "check the credentials in the environment; `tieconv` uses those of the AWS, Google and Azure tools"

_KINDS: tuple[tuple[type[BaseException], str, str, str], ...] = (
    (FileNotFoundError, "is not in the object store", "check the address", "objects.absent"),
    (exceptions.PreconditionError, "was replaced while tieconv read it", "run the command again", "objects.changed"),
    (exceptions.PermissionDeniedError, "may not be read with these credentials", _LOGIN, "objects.forbidden"),
    (exceptions.UnauthenticatedError, "may not be read without valid credentials", _LOGIN, "objects.unauthorized"),
    (exceptions.InvalidPathError, "holds a key that is not a relative path, such as one with .. or a control character",
     "copy the model to a prefix with ordinary names", "objects.key"),
)  # fmt: skip
_STATUSES: dict[str, type[BaseException]] = {
    "401": exceptions.UnauthenticatedError,
    "403": exceptions.PermissionDeniedError,
    "404": FileNotFoundError,
}
"""Errors of a listing, for which obstore has no type."""
_TEXTS: tuple[tuple[str, str, str, str], ...] = (
    (r"169\.254\.169\.254|metadata\.google\.internal|/metadata/|security-credentials|CredentialProvider",
     "may not be read: tieconv found no credentials",
     "log in with the tool of your cloud, or set its variables; for a public bucket: AWS_SKIP_SIGNATURE=true",
     "objects.no-credentials"),
    ("redirect without LOCATION", "is in a bucket of another region",
     "set AWS_REGION to the region of the bucket", "objects.region"),
    ("non-partial response", "cannot be read by ranges: the server sent the whole file",
     "copy the model to a local directory", "objects.range-ignored"),
    (r"Requested \d+\.\.\d+, got|Content-Range|Wanted range",
     "cannot be read: the server sent another range than tieconv requested", _ENDPOINT, "objects.content-range"),
    ("list response", "cannot be listed: the response of the server is malformed", _ENDPOINT, "objects.malformed"),
    ("TimedOut|kind: Timeout", "could not be read: the server did not answer in time",
     "try again later", "objects.timeout"),
)  # fmt: skip


def translate(error: BaseException, label: str) -> UnreadableError:
    """Return the error for the user. ``label`` names the model or file."""
    if isinstance(error, UnreadableError):
        return error
    for kind, why, hint, code in _KINDS:
        if isinstance(error, kind):
            return UnreadableError(f"{label} {why}", hint, code)
    text = str(error)
    for pattern, why, hint, code in _TEXTS:
        if re.search(pattern, text):
            return UnreadableError(f"{label} {why}", hint, code)
    retries = _RETRIES.search(text)
    tries = f" ({int(retries[1]) + 1} attempts)" if retries and int(retries[1]) else ""
    status = _STATUS.search(text)
    if status and (known := _STATUSES.get(status[1])):
        return translate(known(), label)
    if status:
        problem = f"{label}: the object store returned HTTP {status[1]}{tries}"
        return UnreadableError(problem, "try again later", "objects.http")
    if isinstance(error, exceptions.UnknownConfigurationKeyError) or ("Http" not in text and "HTTP" not in text):
        problem = f"{label} cannot be opened with the settings of this object store"
        hint = "check the variables of its endpoint, account and credentials"
        return UnreadableError(problem, hint, "objects.settings")
    problem = f"{label}: the connection to the object store failed{tries}"
    return UnreadableError(problem, "check the network, the endpoint variables and proxies", "objects.network")


# Read the files of a model in an object store by ranges.


class ObjectFiles(ranged.RangedFiles):
    """The files of one listing. Each request is for the listed ETag, so a replaced file is refused.

    An ETag is not a hash of the content, so no file has a ``content_id``.
    """

    client: ObjectClient

    def __init__(
        self, client: ObjectClient, listed: ObjectListing, tick: ranged.Tick | None = None, *, proving: bool = False
    ) -> None:
        super().__init__(client, listed.listing, tick, proving=proving)
        self.listed = listed
        # A weight file that one request fetches is read as a whole, at no further cost.
        self.costly = any(
            size > ranged.READ_AHEAD for name, size in listed.listing.entries.items() if not _is_text(name)
        )

    def state(self, name: str) -> FileState:
        """Return a state as for a local file. Two states are equal only for one key with one ETag."""
        stored = self.listed.file(name)
        identity = f"{self.listed.path}/{name} {stored.etag}"
        number = int.from_bytes(sha256(identity.encode("utf-8", "surrogatepass")).digest())
        return FileState(-3, number, stored.size, int(stored.modified * 1e9))

    def size(self, name: str) -> int:
        return self.listed.file(name).size

    def is_document(self, name: str) -> bool:
        """Return whether a file is a text beside the weights, by its name."""
        return _is_text(name) and self.size(name) <= ranged.DOCUMENT

    def remote(self, name: str) -> RemoteObject:
        """Return the listed object of a file."""
        stored = self.listed.file(name)
        return RemoteObject(self.listed.path.key(name), self.listed.label(name), stored.size, stored.etag)


def _is_text(name: str) -> bool:
    return name.endswith((".json", ".txt", ".md", ".jinja", ".py", ".yaml", ".yml"))


_INDEX = ".index.json"
_FILES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".json", ".npz", ".h5", ".msgpack")
"""Ends of addresses that mean one file. Other addresses mean a prefix."""


@record
class StoredObject:
    """One object: its size in bytes, its ETag and when it was written, in seconds since 1970."""

    size: int
    etag: str | None
    modified: float


def stored_object(entry: Any) -> StoredObject:
    """Return an entry of obstore's listing."""
    return StoredObject(int(entry["size"]), entry["e_tag"], entry["last_modified"].timestamp())


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

    def file(self, name: str) -> StoredObject:
        """Return the stored object of a file. Raises `UnreadableError` if the model has no such file."""
        try:
            return self.stored[name]
        except KeyError:
            problem = f"{self.label(name)} is not in the object store"
            raise UnreadableError(problem, "check the address", "objects.absent") from None


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
        problem = f"{shown(source)}: no such file or prefix in the object store"
        raise UnreadableError(problem, "check the address", "objects.absent")
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
                problem = f"{shown(source)} holds the key {shown(name)}, which is not a relative path"
                raise UnsafePathError(problem, "copy the model to a prefix with ordinary names", "objects.key")
            files[name] = stored_object(entry)
            if len(files) > MAX_FILES:
                problem = f"{shown(source)} holds more than {MAX_FILES:,} files"
                raise UnreadableError(problem, "give the prefix that holds the weights", "objects.too-large")
    directories = {name[:end] for name in files for end, character in enumerate(name) if character == "/"}
    return {name: file for name, file in files.items() if file.size or name not in directories}


_WORKERS = 4
_BLOCK = 8 << 20


def fetch(listing: Listing, files: ObjectFiles, names: Iterable[str]) -> str:
    """Copy the files ``names`` to a new temporary directory, and return the model's path in it.

    The directory is removed at the end of the command or of the process. Its parent has the fingerprint of the listing
    as its name. Raises `UnreadableError` if a file was replaced, or if the disk is full.
    """
    wanted = list(names)
    with room_for(shown(listing.source), sum(map(files.size, wanted)), "objects.copy"):
        root = os.path.join(make_temporary(), files.listed.fingerprint, os.path.basename(str(files.listed.path)))
        for directory in {os.path.dirname(os.path.join(root, name)) for name in wanted} | {root}:
            os.makedirs(directory, exist_ok=True)
        for _ in ranged.concurrently(partial(_copy, files, root), wanted, _WORKERS):
            continue
    return os.path.join(root, listing.named) if listing.named else root


def _copy(files: ObjectFiles, root: str, name: str) -> None:
    target = os.path.join(root, name)
    whole = files.size(name)
    with new_file(target) as out:
        for start in range(0, whole, ranged.SECTION):
            stream = files.open(name, start, min(start + ranged.SECTION, whole))
            try:
                while stream.position < stream.end:
                    block = memoryview(bytearray(min(_BLOCK, stream.end - stream.position)))
                    stream.read_into(block)
                    out.write(block)
            finally:
                stream.close()
