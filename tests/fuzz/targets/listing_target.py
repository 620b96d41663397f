"""Pages of listings, of an object store and of the Hub: odd keys, sizes and dates, pages that repeat, endless pages."""

from __future__ import annotations

import hashlib
import json
import random
from xml.sax.saxutils import escape

from tests.fuzz.case import Case
from tests.fuzz.models import config, safetensors, tensors
from tests.fuzz.mutate.edits import NAMES, edited, size
from tests.fuzz.mutate.json_tree import damaged

STORE, HUB = "store", "pages"
COMMANDS = {
    STORE: (("inspect", "s3://bucket/m"), ("check", "s3://bucket/m/"), ("check", "s3://bucket/"),
            ("inspect", "--json", "s3://bucket/m/model.safetensors"), ("untie", "s3://bucket/m")),
    HUB: (("check", "hf://org/*"), ("check", "--format", "json", "hf://org/m*")),
}  # fmt: skip
_KEYS = (
    "m/model.safetensors", "m/config.json", "m/", "m/a", "a", "", "/", "m//x", "m/../x", "../m", "m/sub/config.json",
)  # fmt: skip
_DATES = ("2026-11-02T10:00:00.000Z", "2026-11-02", "", "now", "9999999-01-01T00:00:00Z", "1969-12-31T23:59:59Z")
_NEXT = "<http://HUB/api/models?cursor={}>; rel={}"
_LINKS = (
    "",
    "<http://HUB/api/models?author=org>; rel=next",
    "<ftp://x>; rel=next",
    "<//x/api>; rel=next",
    "next",
    "<>",
)


def make(rng: random.Random) -> Case:
    """Return a good model, and what the server says where it is asked for a list."""
    kind = rng.choice((STORE, HUB))
    files = {"model.safetensors": safetensors(tensors(tied=True, copy=False)), "config.json": config()}
    body = _store(rng, files) if kind == STORE else _hub(rng)
    return Case("listing", files, answers={kind: body}, commands=(rng.choice(COMMANDS[kind]),))


def _store(rng: random.Random, files: dict[str, bytes]) -> bytes:
    good = [_entry(f"m/{name}", len(data), _DATES[0], hashlib.md5(data).hexdigest()) for name, data in files.items()]
    odd = [
        _entry(rng.choice((*_KEYS, *NAMES)), rng.choice((0, -1, 1 << 63, 1 << 64, size(rng, 60))), rng.choice(_DATES))
        for _ in range(rng.choice((0, 0, 1, 3)))
    ]
    rows = (
        good + odd + [f"<CommonPrefixes><Prefix>{rng.choice(_KEYS)}</Prefix></CommonPrefixes>"] * rng.choice((0, 0, 1))
    )
    rng.shuffle(rows)
    more = rng.random() < 0.15
    token = f"<NextContinuationToken>{rng.choice(('', 'x', 'm/a'))}</NextContinuationToken>" if more else ""
    truncated = rng.choice(("true", "false", "1", "", "maybe")) if rng.random() < 0.1 else str(more).lower()
    rows = rows * 2 if rng.random() < 0.05 else rows[: rng.randrange(len(rows) + 1)] if rng.random() < 0.1 else rows
    page = f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{token}{''.join(rows)}</ListBucketResult>"
    data = page.encode("utf-8", "replace")
    return edited(rng, data, most=2) if rng.random() < 0.2 else data


def _entry(key: str, length: object, date: str, tag: str = "e") -> str:
    told = f'<Key>{escape(key)}</Key><LastModified>{date}</LastModified><ETag>"{tag}"</ETag><Size>{length}</Size>'
    return f"<Contents>{told}</Contents>"


def _hub(rng: random.Random) -> bytes:
    names = rng.sample(("org/model", "org/m", "other/m", "org/../m", "m", "org/m/x"), rng.choice((0, 1, 3)))
    models = [
        {"id": name, "modelId": name, "lastModified": _DATES[0], "private": False, "tags": []}
        for name in ("org/model", *names[1:])
    ]
    odd = ("org/m", "../m", 0, -1, None, 1 << 64)
    body = damaged(rng, models, odd) if rng.random() < 0.4 else json.dumps(models).encode()
    drawn = rng.choice((*_LINKS, _NEXT.format(rng.randrange(3), "next"), _NEXT.format("x", '"next"')))
    link = drawn if rng.random() < 0.4 else ""
    head = ["HTTP/1.1 200 X", "Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close"]
    lines = [*head, *([f"Link: {link}"] if link else []), "", ""]
    return "\r\n".join(lines).encode() + body
