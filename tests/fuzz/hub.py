"""The stub of the Hub with answers of a case's choosing, in a process that knows no other endpoint."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.fuzz.case import Case
from tests.hub.stub import Hub, Quiet, handler

SOURCE = "hf://org/model"
SILENCE = 2
"""Seconds after which the client gives a silent server up."""
_KINDS = (
    ("pages", r"/api/models"),
    ("info", r"/api/models/.*"),
    ("resolve", r"/.*/resolve/.*"),
    ("stored", r"/lfs/.*"),
)


class _Endpoint:
    """Both servers of the stub, and the directory that the Hub's client keeps files in."""

    def __init__(self) -> None:
        if "huggingface_hub" in sys.modules:
            raise RuntimeError("the endpoint is read when huggingface_hub is imported: run python -m tests.fuzz hub")
        self.home = Path(tempfile.mkdtemp(prefix="fuzz-hub-"))
        atexit.register(shutil.rmtree, self.home, ignore_errors=True)
        self.hub, self.answers = Hub(), dict[str, bytes]()
        servers = [Quiet(("127.0.0.1", 0), self._handler(name)) for name in ("hub", "storage")]
        for server in servers:
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        self.hub.url, self.hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
        for key in [key for key in os.environ if key.startswith(("HF_", "HUGGING"))]:
            del os.environ[key]
        os.environ |= {
            "HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_DOWNLOAD_TIMEOUT": str(SILENCE), "HF_HUB_ETAG_TIMEOUT": str(SILENCE),
            "NO_PROXY": "127.0.0.1",
        }  # fmt: skip
        from tieconv.sources.hub import client as hub_client

        hub_client.FIRST_PAUSE, hub_client.SPREAD = 0.001, 0.0005

    def _handler(self, name: str) -> type:
        endpoint = self

        class Handler(handler(self.hub, name)):  # type: ignore[misc]
            def route(self) -> None:
                path = unquote(urlsplit(self.path).path)
                kind = next((kind for kind, pattern in _KINDS if re.fullmatch(pattern, path)), "")
                raw = endpoint.answers.get(kind)
                if raw is None:
                    super().route()
                    return
                self.wfile.write(
                    raw.replace(b"STORAGE", endpoint.hub.storage.encode()).replace(
                        b"http://HUB", endpoint.hub.url.encode()
                    )
                )
                self.close_connection = True

        return Handler


@lru_cache(maxsize=1)
def _endpoint() -> _Endpoint:
    return _Endpoint()


@contextmanager
def served(case: Case) -> Iterator[str]:
    """Serve the files of a case with its answers; the name of the model on that Hub."""
    endpoint = _endpoint()
    folder = endpoint.home / "model"
    for old in (folder, endpoint.home / "hf"):
        shutil.rmtree(old, ignore_errors=True)
    folder.mkdir()
    case.write(folder)
    endpoint.hub.add("org/model", folder)
    endpoint.hub.digests.clear()
    endpoint.hub.requests.clear()
    endpoint.answers = case.answers
    yield SOURCE
