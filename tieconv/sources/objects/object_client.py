"""Send requests to object stores with obstore: its retries, deadlines and signatures.

Only the modules of this package import obstore.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from obstore.store import AzureStore, GCSStore, S3Store

from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.sources.objects.object_errors import OBSTORE, translate
from tieconv.sources.objects.object_path import ObjectPath
from tieconv.sources.objects.store_settings import store_settings
from tieconv.sources.ranged.traffic import Traffic, read_range
from tieconv.sources.threads import interruptible

T = TypeVar("T")

SILENCE = timedelta(seconds=30)
"""The longest wait for the first byte of a response, and between two bytes."""
CONNECT = timedelta(seconds=10)
RESPONSE = timedelta(minutes=5)
"""The longest time of one response. A stream requests at most 64 MiB at a time."""
RETRIES = 5
RETRY_FOR = timedelta(minutes=2)
"""No attempt starts later than this after the first."""
PAGE = 1000
"""The most keys of one response of a listing."""
CHUNK = 1 << 20

_STORES = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_stores: dict[tuple[int, str, str], Any] = {}


@record
class RemoteObject:
    """A listed object: its key, its name in errors, its size in bytes and its ETag."""

    key: str
    label: str
    size: int
    etag: str | None


def store_of(path: ObjectPath) -> Any:
    """Return obstore's store of a bucket. Each process opens its own, because stores do not survive a fork."""
    key = os.getpid(), path.scheme, path.bucket
    if key not in _stores:
        settings, client = store_settings(path.scheme)
        options = {**client, "timeout": RESPONSE, "read_timeout": SILENCE, "connect_timeout": CONNECT}
        retries = {"max_retries": RETRIES, "retry_timeout": RETRY_FOR}
        opens: Any = _STORES[path.scheme]
        _stores[key] = opens(path.bucket, client_options=options, retry_config=retries, **settings)
    return _stores[key]


class ObjectClient(Traffic):
    """Reads ranges of the objects of one bucket, and counts requests without obstore's retries."""

    def __init__(self, path: ObjectPath, label: str) -> None:
        super().__init__()
        self._store = call(label, partial(store_of, path))

    def pages(self, label: str, prefix: str) -> Iterator[Any]:
        """Yield the objects below a prefix, a page at a time. Raises `UnreadableError`."""
        pages = call(label, lambda: self._store.list(prefix or None, chunk_size=PAGE))
        while True:
            page = call(label, lambda: next(pages, None))
            if page is None:
                return
            self.count(requests=1)
            yield page

    def level(self, label: str, prefix: str) -> Any:
        """Return the objects directly below a prefix, without those of its directories. Raises `UnreadableError`."""
        result = call(label, lambda: self._store.list_with_delimiter(prefix or None))
        self.count(requests=1 + len(result["objects"]) // PAGE)
        return result["objects"]

    def get(self, file: RemoteObject, start: int, end: int) -> Any:
        """Request a range, and return obstore's response. Raises `UnreadableError` if it is of another object."""
        options: dict[str, Any] = {"range": (start, end)}
        if file.etag is not None:
            options["if_match"] = file.etag
        self.count(requests=1)
        response = call(file.label, lambda: self._store.get(file.key, options=options))
        check_response(file, response.range, response.meta, start, end)
        return response

    def open(self, file: RemoteObject, start: int, end: int) -> ObjectStream:
        """Return a stream of the bytes ``start`` to ``end`` of an object."""
        return ObjectStream(self, file, start, end)

    def read(self, file: RemoteObject, start: int, end: int) -> bytes:
        """Return the bytes ``start`` to ``end`` of an object. Raises `UnreadableError`."""
        return read_range(self.open(file, start, end))


def call(label: str, ask: Callable[[], T]) -> T:
    """Call obstore in a thread, so that an interrupt works meanwhile. Raises `UnreadableError`."""
    try:
        return interruptible(ask)
    except OBSTORE as error:
        raise translate(error, label) from None  # the cause's text may hold a signed address


def check_response(file: RemoteObject, sent: tuple[int, int], meta: Any, start: int, end: int) -> None:
    """Refuse a response with another ETag, size or range than the request."""
    etag = meta.get("e_tag")
    if meta["size"] != file.size or (file.etag and etag and etag.strip('"') != file.etag.strip('"')):
        raise UnreadableError(
            f"{file.label} was replaced while tieconv read it", "run the command again", "objects.changed"
        )
    if tuple(sent) != (start, end):
        raise UnreadableError(
            f"{file.label}: the server sent another range than tieconv requested",
            "check the endpoint variables and proxies",
            "objects.content-range",
        )


class ObjectStream:
    """Streams the bytes ``start`` to ``end`` of an object. Requests them on first use."""

    def __init__(self, client: ObjectClient, file: RemoteObject, start: int, end: int) -> None:
        self.position, self.end = start, end
        self._client, self._file = client, file
        self._chunks: Iterator[Any] | None = None
        self._left = memoryview(b"")

    def read_into(self, buffer: memoryview) -> None:
        """Fill ``buffer``. Raises `UnreadableError` if the server does not send what it listed."""
        done = 0
        while done < len(buffer):
            if not self._left:
                self._next()
            piece = self._left[: len(buffer) - done]
            buffer[done : done + len(piece)] = piece
            self._left = self._left[len(piece) :]
            self.position += len(piece)
            done += len(piece)

    def _next(self) -> None:
        """Read the next chunk. obstore continues an interrupted response itself."""
        if self._chunks is None:
            self._chunks = iter(self._client.get(self._file, self.position, self.end).stream(min_chunk_size=CHUNK))
        chunks = self._chunks
        chunk = memoryview(call(self._file.label, lambda: next(chunks, b"")))
        self._client.count(bytes=len(chunk))
        if not 0 < len(chunk) <= self.end - self.position:
            raise UnreadableError(
                f"{self._file.label}: the server sent {'too few' if not chunk else 'too many'} bytes",
                "check the endpoint variables and proxies",
                "objects.length",
            )
        self._left = chunk

    def close(self) -> None:
        """Close the connection without reading the rest."""
        self._chunks, self._left = None, memoryview(b"")
