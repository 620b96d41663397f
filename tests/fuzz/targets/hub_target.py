"""Answers of the Hub: listings of any shape, headers that contradict them, bodies that are short, long or packed."""

from __future__ import annotations

import gzip
import hashlib
import random

from tests.fuzz.case import Case
from tests.fuzz.models import config, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES, edited, size
from tests.fuzz.mutate.json_tree import ODD, Pairs, damaged

NAME = "model.safetensors"
COMMIT = hashlib.sha1(b"org/model").hexdigest()
COMMANDS = (("inspect",), ("inspect", "--json"), ("check",), ("inspect", "--depth", "full"), ("untie",), ("diff",))
_EXTRA: tuple[object, ...] = (
    "../x", "/etc/passwd", "a/../b", "config.json", NAME, -1, 0, 1 << 63, 1.5, "12", COMMIT, COMMIT[:39],
    COMMIT.upper(),
    "0" * 64, Pairs([["size", 7], ["sha256", "0" * 64]]), Pairs([["rfilename", "x"]]), Pairs([["rfilename",
    NAME], ["size", 1]]),
)  # fmt: skip
_HEADERS = ("Content-Length", "Content-Range", "Content-Encoding", "Content-Type", "ETag", "X-Linked-Etag",
            "X-Linked-Size",
            "X-Repo-Commit", "Location", "Retry-After", "Transfer-Encoding", "X-Error-Code", "X-Error-Message",
            "Link")  # fmt: skip
_STATUS = (200, 200, 200, 206, 206, 204, 301, 302, 307, 308, 304, 400, 401, 403, 404, 410, 416, 429, 500, 502, 503, 999)


def _answer(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{key}: {value}" for key, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("utf-8", "replace") + body


def _value(rng: random.Random, length: int) -> str:
    """Return what a header may say."""
    words = ("gzip", "deflate", "br", "identity", "chunked", "0", "-1", "1e9", f"{length}", f"{length + 1}",
    f"bytes 0-{length - 1}/{length}",
             f"bytes 1-{length}/{length}", "bytes */0", "bytes 0-1/*", COMMIT, "f" * 40, '"abc"',
             "STORAGE/lfs/org/model/" + NAME,
             "http://[::1", "file:///etc/passwd", "/", "", "3", "Wed, 21 Oct 2099 07:28:00 GMT")  # fmt: skip
    if rng.random() < 0.3:
        return rng.choice(NAMES).replace("\r", "").replace("\n", "") or str(size(rng, length))
    return rng.choice(words)


def make(rng: random.Random) -> Case:
    """Return a good model, and one or two answers that are not what the Hub says."""
    weights = safetensors(tensors(tied=rng.random() < 0.5, copy=rng.random() < 0.5))
    files = {NAME: weights, "config.json": config()}
    answers: dict[str, bytes] = {}
    for kind in rng.sample(("info", "info", "resolve", "stored"), rng.choice((1, 1, 2))):
        answers[kind] = _listing(rng, files) if kind == "info" else _file(rng, weights)
    return Case("hub", files, ".", answers=answers, commands=(rng.choice(COMMANDS),))


def _listing(rng: random.Random, files: dict[str, bytes]) -> bytes:
    siblings = [
        {"rfilename": name, "size": len(data), "blobId": hashlib.sha1(data).hexdigest()} for name, data in files.items()
    ]
    siblings[0]["lfs"] = {
        "size": len(files[NAME]),
        "sha256": hashlib.sha256(files[NAME]).hexdigest(),
        "pointerSize": 134,
    }
    info = {"id": "org/model", "sha": COMMIT, "siblings": siblings, "pipeline_tag": "text-generation", "private": False}
    body = damaged(rng, info, _EXTRA) if rng.random() < 0.9 else str(rng.choice(ODD)).encode("utf-8", "replace")
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    return _answer(*_spoilt(rng, 200, headers, body))


def _file(rng: random.Random, data: bytes) -> bytes:
    body = data if rng.random() < 0.6 else edited(rng, data, most=2)
    etag = f'"{hashlib.sha256(data).hexdigest()}"'
    headers = {
        "Content-Length": str(len(body)),
        "ETag": etag,
        "X-Repo-Commit": COMMIT,
        "Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}",
    }
    return _answer(*_spoilt(rng, rng.choice((200, 206)), headers, body))


def _spoilt(rng: random.Random, status: int, headers: dict[str, str], body: bytes) -> tuple[int, dict[str, str], bytes]:
    if rng.random() < 0.2:
        status = rng.choice(_STATUS)
    for _ in range(rng.choice((0, 0, 1, 2))):
        headers[rng.choice(_HEADERS)] = _value(rng, len(body))
    draw = rng.random()
    if draw < 0.06:
        body = gzip.compress(rng.choice((body, bytes(5_000_000))), 1, mtime=0)
        headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(body))}
    elif draw < 0.12:
        body = body[: rng.randrange(len(body) + 1)]
    elif draw < 0.18:
        del headers["Content-Length"]
    elif draw < 0.2:
        headers["Retry-After"] = "0"
        status = 429
    return status, headers, body
