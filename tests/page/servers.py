"""The server of the page, which lists its requests, and a proxy that lists what the browser asks of other origins."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class _Site(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm", ".mjs": "text/javascript"}

    def log_message(self, *_: Any) -> None:
        self.server.asked.append((self.command, self.path))  # type: ignore[attr-defined]


class _Proxy(BaseHTTPRequestHandler):
    def handle_one_request(self) -> None:
        self.server.asked.append(self.rfile.readline(4096).decode(errors="replace").strip())  # type: ignore[attr-defined]
        self.close_connection = True


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the address of a server of ``folder`` and the list of its requests."""
    with _running(functools.partial(_Site, directory=str(folder))) as server:
        yield f"127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]


@contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """Yield the address of a proxy that answers nothing, and the list of its requests."""
    with _running(_Proxy) as server:
        yield f"127.0.0.1:{server.server_port}", server.asked  # type: ignore[attr-defined]


@contextmanager
def _running(handler: Any) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
