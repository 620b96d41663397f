"""The part of S3's protocol that writing needs: conditional puts, copies, multipart uploads, tags. And faults.

A fault of `Store.faults` has the key ``OPERATION key``, such as ``copy_part out/model.safetensors``. Its kind is
``status`` (with the code and the error's name as value), ``lost`` (the request is done, the connection closed without a
response) or ``replaces`` (the copied source is replaced just before).
"""

from __future__ import annotations

import hashlib
import re
import ssl
import threading
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from tests.objects.stub import Fault, Handler, Request, Store


@dataclass
class Writes:
    """The state of a writable store: ``operations`` in order, attributes and tags by key, uploads in progress."""

    least: int = 5 << 20
    operations: list[tuple[str, str]] = field(default_factory=list)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    uploads: dict[str, tuple[str, dict[int, bytes]]] = field(default_factory=dict)
    received: int = 0
    copied: int = 0
    hold: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    stop_after: int = 1 << 60


class WritableHandler(Handler):
    """Serves and changes the store of its server."""

    writes: Writes

    def do_PUT(self) -> None:
        key, query = self._asked()
        self.sent = body = self._body()
        source = self.headers.get("x-amz-copy-source")
        name = ("copy_part" if source else "put_part") if "partNumber" in query else "copy" if source else "put"
        if not self._faulty(name, key, source):
            getattr(self, f"_{name}")(key, query, body, source)

    def do_POST(self) -> None:
        key, query = self._asked()
        body = self._body()
        if "uploads" in query:
            if not self._faulty("start", key, None):
                upload = f"upload{len(self.writes.operations)}"
                self.writes.uploads[upload] = (key, {})
                self._keep(key, f"{upload}:{key}")
                self._reply(200, f"<R><UploadId>{upload}</UploadId></R>")
        elif "delete" in query:
            named = [unescape(name) for name in re.findall(r"<Key>(.*?)</Key>", body.decode())]
            for name in named:
                self._faulty("delete", name, None)
                self.store.objects.pop(name, None)
            rows = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in named)
            self._reply(200, f"<DeleteResult>{rows}</DeleteResult>")
        elif not self._faulty("complete", key, None):
            self._complete(key, query["uploadId"][0], body.decode())

    def do_DELETE(self) -> None:
        key, query = self._asked()
        if "uploadId" in query:
            if not self._faulty("abort", key, None):
                self.writes.uploads.pop(query["uploadId"][0], None)
                self._reply(204, "")
        elif not self._faulty("delete", key, None):
            self.store.objects.pop(key, None)
            self._reply(204, "")

    def do_GET(self) -> None:
        key, query = self._asked()
        if "uploads" in query:
            prefix = query.get("prefix", [""])[0]
            rows = "".join(
                f"<Upload><Key>{escape(name)}</Key><UploadId>{upload}</UploadId></Upload>"
                for upload, (name, _) in self.writes.uploads.items()
                if name.startswith(prefix)
            )
            self._reply(200, f"<R>{rows}</R>")
        elif "tagging" in query:
            if not self._faulty("tags", key, None):
                pairs = parse_qs(self.writes.tags.get(key, ""))
                rows = "".join(f"<Tag><Key>{name}</Key><Value>{text[0]}</Value></Tag>" for name, text in pairs.items())
                self._reply(200, f"<Tagging><TagSet>{rows}</TagSet></Tagging>")
        else:
            super().do_GET()

    def end_headers(self) -> None:
        if self.command == "HEAD":
            for name, value in self.writes.attributes.get(self._asked()[0], {}).items():
                self.send_header(name, value)
        super().end_headers()

    def _asked(self) -> tuple[str, dict[str, list[str]]]:
        parts = urlsplit(self.path)
        return unquote(parts.path.partition("/bucket")[2].lstrip("/")), parse_qs(parts.query, keep_blank_values=True)

    def _body(self) -> bytes:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return data
        plain = b""
        while data:
            size, _, data = data.partition(b"\r\n")
            length = int(size.split(b";")[0], 16)
            if not length:
                break
            plain, data = plain + data[:length], data[length + 2 :]
        return plain

    def _faulty(self, operation: str, key: str, source: str | None) -> bool:
        with self.store.lock:
            self.writes.operations.append((operation, key))
            if len(self.writes.operations) > self.writes.stop_after:
                self.writes.reached.set()
            fault = self.store.faults.get(f"{operation} {key}") or self.store.faults.get(operation)
            number = self.writes.operations.count((operation, key))
        if self.writes.reached.is_set():
            self.writes.hold.wait(60)
        if fault is None or not fault.after < number <= fault.after + fault.times:
            return False
        if fault.kind == "replaces" and source:
            path = unquote(source).lstrip("/").partition("/")[2]
            self.store.objects[path] = self.store.objects[path][:-1] + b"\x7f"
            return False
        if fault.kind == "lost":
            self.close_connection = True
            if operation == "put":
                self.store.objects.setdefault(key, fault.value.encode() or self.sent)
            return True
        if fault.kind == "corrupts":
            self.corrupt = True
            return False
        code, _, name = fault.value.partition(" ")
        self._error(int(code), name)
        return True

    sent = b""
    corrupt = False

    def _put(self, key: str, query: Any, body: bytes, source: str | None) -> None:
        if self.headers.get("If-None-Match") == "*" and key in self.store.objects:
            self._error(412, "PreconditionFailed")
            return
        self.store.objects[key] = body
        self.writes.received += len(body)
        self._keep(key, key)
        self._reply(200, "", {"ETag": self.store.etag(key)})

    def _keep(self, key: str, place: str) -> None:
        kept = ("x-amz-meta-", "x-amz-storage-class", "x-amz-server-side-encryption")
        named = {name.lower(): value for name, value in self.headers.items()}
        self.writes.attributes[place] = {
            name: value for name, value in named.items() if name.startswith(kept) or name == "content-type"
        }
        if tags := named.get("x-amz-tagging"):
            self.writes.tags[place] = tags

    def _source(self, source: str | None) -> bytes | None:
        key = unquote(source or "").lstrip("/").partition("/")[2]
        if self.headers.get("x-amz-copy-source-if-match") != self.store.etag(key):
            self._error(412, "PreconditionFailed")
            return None
        return self.store.objects[key]

    def _copy(self, key: str, query: Any, body: bytes, source: str | None) -> None:
        data = self._source(source)
        if data is not None:
            old = unquote(source or "").lstrip("/").partition("/")[2]
            self.store.objects[key] = data
            self.writes.copied += len(data)
            self.writes.attributes[key] = dict(self.writes.attributes.get(old, {}))
            if old in self.writes.tags:
                self.writes.tags[key] = self.writes.tags[old]
            self._reply(200, f"<R><ETag>{escape(self.store.etag(key))}</ETag></R>")

    def _put_part(self, key: str, query: Any, body: bytes, source: str | None) -> None:
        data = body[:-1] + b"\x7f" if self.corrupt else body
        self.corrupt = False
        self.writes.received += len(body)
        self.writes.uploads[query["uploadId"][0]][1][int(query["partNumber"][0])] = data
        self._reply(200, "", {"ETag": f'"{hashlib.md5(data).hexdigest()}"'})

    def _copy_part(self, key: str, query: Any, body: bytes, source: str | None) -> None:
        data = self._source(source)
        if data is None:
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["x-amz-copy-source-range"])
        assert match and int(match[2]) < len(data)
        piece = data[int(match[1]) : int(match[2]) + 1]
        piece = piece[:-1] + b"\x7f" if self.corrupt else piece
        self.corrupt = False
        self.writes.copied += len(piece)
        self.writes.uploads[query["uploadId"][0]][1][int(query["partNumber"][0])] = piece
        self._reply(200, f'<R><ETag>"{hashlib.md5(piece).hexdigest()}"</ETag></R>')

    def _complete(self, key: str, upload: str, body: str) -> None:
        parts = self.writes.uploads[upload][1]
        named = re.findall(r"<ETag>(?:&quot;|\")?([0-9a-f]+)(?:&quot;|\")?</ETag>", body)
        assert named == [hashlib.md5(parts[number]).hexdigest() for number in range(1, len(parts) + 1)]
        if any(len(parts[number]) < self.writes.least for number in range(1, len(parts))):
            self._error(400, "EntityTooSmall")
            return
        self.store.objects[key] = b"".join(parts[number] for number in range(1, len(parts) + 1))
        for kept in (self.writes.attributes, self.writes.tags):
            if f"{upload}:{key}" in kept:
                kept[key] = kept.pop(f"{upload}:{key}")  # type: ignore[attr-defined]
        del self.writes.uploads[upload]
        self._reply(200, "<R/>")

    def _error(self, status: int, name: str) -> None:
        self._reply(status, f"<Error><Code>{name}</Code><Message>secret words</Message></Error>")

    def _reply(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        asked = Request(self.command, "", None, None, None, {})
        self._answer(asked, status, body.encode(), {"Content-Type": "application/xml", **(headers or {})})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def start_writable(context: ssl.SSLContext | None = None) -> tuple[Store, Writes, Any]:
    """Return a running store, what was written to it, and the function that ends it. With a context it speaks TLS."""
    store, writes = Store(), Writes()
    server = _Server(("127.0.0.1", 0), type("Bound", (WritableHandler,), {"store": store, "writes": writes}))
    store.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()

    def stop() -> None:
        writes.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()

    return store, writes, stop


__all__ = ["Fault", "Writes", "start_writable"]
