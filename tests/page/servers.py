"""The server of the page, which lists its requests, and a proxy that lists what the browser asks of other origins.

The proxy answers for the Hub and its storage with the stub of tests/hub, and for no other origin.
"""

from __future__ import annotations

import functools
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.hub.stub import Hub, handler

HOSTS = {"huggingface.co:443": "hub", "cas-bridge.xethub.hf.co:443": "storage"}
EXPOSED = "X-Repo-Commit, X-Error-Code, ETag, X-Linked-Etag, Content-Range"


class _Site(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm", ".mjs": "text/javascript"}

    def log_message(self, *_: Any) -> None:
        self.server.asked.append((self.command, self.path))


class _Proxy(BaseHTTPRequestHandler):
    def handle_one_request(self) -> None:
        server: Any = self.server
        line = self.rfile.readline(4096).decode(errors="replace").strip()
        server.asked.append(line)
        self.close_connection = True
        host = HOSTS.get(line.removeprefix("CONNECT ").split(" ")[0])
        if host is None:
            return
        while self.rfile.readline(4096).strip():
            continue
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with server.tls.wrap_socket(self.request, server_side=True) as connection:
            _cross_origin(server.hub, host)(connection, self.client_address, server)


def _cross_origin(hub: Hub, name: str) -> type[BaseHTTPRequestHandler]:
    """The stub, whose answers a page of another origin may read. The storage hides the range of its answers."""

    class Handler(handler(hub, name)):  # type: ignore[misc]
        def end_headers(self) -> None:
            self.send_header("Access-Control-Allow-Origin", "*")
            if name == "hub":
                self.send_header("Access-Control-Expose-Headers", EXPOSED)
            super().end_headers()

    return Handler


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the address of a server of ``folder`` and the list of its requests."""
    with _running(functools.partial(_Site, directory=str(folder))) as server:
        yield f"127.0.0.1:{server.server_port}", server.asked


@contextmanager
def proxy(scratch: Path) -> Iterator[tuple[str, list[str], Hub]]:
    """Yield the address of a proxy, the list of its requests, and the Hub that it answers for."""
    certificate = scratch / "certificate.pem"
    call = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=huggingface.co"]
    subprocess.run([*call, "-keyout", certificate, "-out", scratch / "public.pem"], check=True, capture_output=True)
    with certificate.open("a") as file:
        file.write((scratch / "public.pem").read_text())
    with _running(_Proxy) as server:
        server.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.tls.load_cert_chain(certificate)
        server.hub = Hub(storage="https://cas-bridge.xethub.hf.co")
        yield f"127.0.0.1:{server.server_port}", server.asked, server.hub


@contextmanager
def _running(handler: Any) -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.asked = []
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
