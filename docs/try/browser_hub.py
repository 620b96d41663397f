"""Let huggingface_hub ask the Hub through the browser. Runs in Pyodide.

Python waits for its answers, and all browsers let it wait in a worker for one kind of request: a synchronous
XMLHttpRequest. Such a request ends when all bytes arrived. A long range is therefore asked for in pieces, so that a
reader who stops early does not fetch the rest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.parser import Parser
from typing import Any

import httpx2
import page_network  # worker.js registers it
from huggingface_hub import set_client_factory
from huggingface_hub.constants import HF_HUB_DOWNLOAD_TIMEOUT

FIRST = 256 * 1024
"""Bytes of the first piece of a range. Each further piece has twice as many."""
LARGEST = 4 << 20
"""The most bytes of a piece."""
_OF_MODELS = re.compile(r"https://huggingface\.co/(api/models[/?]|[^/]+/[^/]+/resolve/).+", re.DOTALL)
_ASKED = re.compile(r"bytes=(\d+)-(\d+)")


class Transport(httpx2.BaseTransport):
    """Sends requests without a token or a cookie. The browser decodes, follows redirects and hides some headers."""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response, or the first piece of a range with the headers of the whole range."""
        asked = _ASKED.fullmatch(request.headers.get("Range", ""))
        if asked is None:
            return _whole(*_ask(request, ""))
        start, end = int(asked[1]), int(asked[2]) + 1
        until = min(end, start + FIRST)
        status, headers, data = _ask(request, f"bytes={start}-{until - 1}")
        size = _size_of(headers.get("Content-Range"), start, until, request)
        if status != 206 or size is None or len(data) != until - start:
            return _whole(status, headers, data)
        headers = headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(end - start)}
        return httpx2.Response(206, headers=headers, stream=_Pieces(request, data, until, end, size), request=request)


class _Pieces(httpx2.SyncByteStream):
    """The bytes of a range: the first piece, then the rest up to ``end`` when it is read."""

    def __init__(self, request: httpx2.Request, first: bytes, position: int, end: int, size: str) -> None:
        self._request, self._first, self._position, self._end, self._size = request, first, position, end, size

    def __iter__(self) -> Iterator[bytes]:
        yield self._first
        length = FIRST
        while self._position < self._end:
            length = min(2 * length, LARGEST)
            until = min(self._end, self._position + length)
            status, headers, data = _ask(self._request, f"bytes={self._position}-{until - 1}")
            size = _size_of(headers.get("Content-Range"), self._position, until, self._request)
            if status != 206 or size != self._size or len(data) != until - self._position:
                raise httpx2.ReadError("the server answered a part of the range otherwise", request=self._request)
            yield data
            self._position = until


def _ask(request: httpx2.Request, span: str) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body. Raises `httpx2.TransportError`, also for what is no model's address."""
    if request.method != "GET" or not _OF_MODELS.fullmatch(str(request.url)):
        raise httpx2.ConnectError("the page asks only for models", request=request)
    answer: Any = page_network.ask(str(request.url), span, float(HF_HUB_DOWNLOAD_TIMEOUT))
    if answer.failure == "TimeoutError":
        raise httpx2.ReadTimeout("no answer in time", request=request)
    if answer.failure:
        raise httpx2.ConnectError("no answer", request=request)
    headers = {name.title(): value for name, value in Parser().parsestr(answer.headers).items()}
    return answer.status, headers, answer.body.to_bytes()


def _size_of(header: str | None, start: int, end: int, request: httpx2.Request) -> str | None:
    """Return the size of the file in a Content-Range header, or ``None`` if the header states another range.

    A server may hide the header from the page. The status and the number of bytes then say that the range is right.
    """
    if header is None:
        return str(request.extensions["tieconv.limit"])
    match = re.fullmatch(rf"bytes {start}-{end - 1}/(\d+)", header.strip())
    return match[1] if match else None


def _whole(status: int, headers: dict[str, str], data: bytes) -> httpx2.Response:
    """Return a response with all its bytes. The browser decoded them, so the headers of the encoding do not hold."""
    headers = {name: value for name, value in headers.items() if name not in ("Content-Encoding", "Content-Length")}
    return httpx2.Response(status, headers=headers | {"Content-Length": str(len(data))}, stream=httpx2.ByteStream(data))


set_client_factory(lambda: httpx2.Client(transport=Transport(), follow_redirects=True, timeout=None))
