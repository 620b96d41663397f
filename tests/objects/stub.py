"""An object store on 127.0.0.1 that speaks the part of S3's protocol that reading needs, with faults on demand.

Google Cloud Storage lists and serves objects in the same form, so the stub serves ``gs://`` too. Signatures are not
checked. A key maps to its bytes. `Store.faults` maps a key (or ``LIST``) to what goes wrong with its requests.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LIST = "LIST"
PAGE = 1000


@dataclass
class Request:
    """What the server was asked."""

    method: str
    key: str
    range: str | None
    if_match: str | None
    authorization: str | None
    query: dict[str, list[str]]
    sent: int = 0


@dataclass
class Fault:
    """What goes wrong: ``kind`` as in `Handler`, for the first ``times`` requests, and from request ``after`` on."""

    kind: str
    times: int = 1_000_000
    value: str = ""
    after: int = 0


@dataclass
class Store:
    """One bucket named ``bucket``. ``requests`` is everything that was asked, in order."""

    objects: dict[str, bytes] = field(default_factory=dict)
    faults: dict[str, Fault] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    modified: dict[str, str] = field(default_factory=dict)
    etags: dict[str, str] = field(default_factory=dict)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, prefix: str, directory: Path) -> None:
        """Store the files of a directory below a prefix."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.objects[f"{prefix}/{path.relative_to(directory)}"] = path.read_bytes()

    def etag(self, key: str) -> str:
        return self.etags.get(key, f'"{hashlib.md5(self.objects[key]).hexdigest()}"')

    @property
    def sent_of_files(self) -> int:
        """The bytes of the last command's files, without listings."""
        last = max(number for number, request in enumerate(self.requests) if request.key == LIST)
        return sum(request.sent for request in self.requests[last:] if request.key != LIST)

    @property
    def sent(self) -> int:
        return sum(request.sent for request in self.requests)


class Handler(BaseHTTPRequestHandler):
    """Serves the store of its server."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    store: Store

    def log_message(self, *words: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = parse_qs(parts.query)
        key = unquote(parts.path.partition("/bucket")[2].lstrip("/"))
        listing = "list-type" in query
        given = map(self.headers.get, ("Range", "If-Match", "Authorization"))
        asked = Request(self.command, LIST if listing else key, *given, query)
        with self.store.lock:
            self.store.requests.append(asked)
            fault = self.store.faults.get(asked.key)
            number = sum(request.key == asked.key for request in self.store.requests)
            kind = fault.kind if fault and fault.after < number <= fault.after + fault.times else ""
        value = fault.value if fault else ""
        if kind == "status":
            code, _, header = value.partition(" ")
            headers = dict([header.split("=")]) if header else {}
            self._answer(asked, int(code), b"<Error><Message>secret words</Message></Error>", headers)
        elif kind == "slow":
            time.sleep(float(value))
            self.close_connection = True
        elif kind == "closed":
            self.close_connection = True
        elif listing:
            self._list(asked, query, kind, value)
        elif key not in self.store.objects:
            self._answer(asked, 404, b"<Error><Code>NoSuchKey</Code><Message>secret words</Message></Error>")
        else:
            self._object(asked, key, kind, value)

    def _object(self, asked: Request, key: str, kind: str, value: str) -> None:
        data, etag = self.store.objects[key], self.store.etag(key)
        if asked.if_match and asked.if_match != etag and kind != "ignores-if-match":
            self._answer(asked, 412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        headers = {"ETag": etag, "Last-Modified": "Mon, 02 Nov 2026 10:00:00 GMT"}
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", asked.range or "")
        if kind == "whole" or match is None:
            self._answer(asked, 200, data, headers)
            return
        start, end = int(match[1]), min(int(match[2]) + 1, len(data))
        body = data[start:end]
        told = f"bytes {start}-{end - 1}/{len(data)}"
        if kind == "shifted":
            told = f"bytes {start + 1}-{end}/{len(data)}"
        elif kind == "resized":
            told = f"bytes {start}-{end - 1}/{len(data) + 5}"
        elif kind == "short":
            body = body[: len(body) // 2]
            told = f"bytes {start}-{start + len(body) - 1}/{len(data)}"
        headers["Content-Range"] = told
        if kind == "truncated":
            self._answer(asked, 206, body, headers, cut=int(value))
        elif kind == "stalls":
            self._answer(asked, 206, body, headers, cut=100, pause=float(value))
        else:
            self._answer(asked, 206, body, headers)

    def _list(self, asked: Request, query: dict[str, list[str]], kind: str, value: str) -> None:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", [""])[0]
        delimiter = query.get("delimiter", [""])[0]
        keys = sorted(key for key in self.store.objects if key.startswith(prefix) and key > after)
        prefixes: list[str] = []
        if delimiter:
            deep = {prefix + key.removeprefix(prefix).split("/")[0] + "/" for key in keys if "/" in key[len(prefix) :]}
            prefixes, keys = sorted(deep), [key for key in keys if "/" not in key[len(prefix) :]]
        page, more = keys[:PAGE], len(keys) > PAGE
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>"
            f"{self.store.modified.get(key, '2026-11-02T10:00:00.000Z')}</LastModified>"
            f"<ETag>{escape(self.store.etag(key))}</ETag><Size>{len(self.store.objects[key])}</Size></Contents>"
            for key in page
        )
        rows += "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in prefixes)
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        if kind == "malformed":
            body = value
        self._answer(asked, 200, body.encode(), {"Content-Type": "application/xml"})

    def _answer(
        self, asked: Request, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None,
        pause: float = 0,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = body if cut is None else body[:cut]
        asked.sent = len(sent)
        try:
            self.wfile.write(sent)
            self.wfile.flush()
            if pause:
                time.sleep(pause)
        except OSError:
            pass
        if cut is not None:
            self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def start() -> tuple[Store, Any]:
    """Return a running store, and the function that ends it."""
    store = Store()
    server = _Server(("127.0.0.1", 0), type("Bound", (Handler,), {"store": store}))
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return store, stop
