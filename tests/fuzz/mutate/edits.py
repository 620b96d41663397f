"""Damage to plain bytes: flips, cuts, copies, and numbers that a reader may trust."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

NUMBERS = (0, 1, 2, 3, 7, 8, 31, 64, 127, 128, 255, 256, 4095, 4096, 65535, 1 << 16, (1 << 31) - 1, 1 << 31,
           (1 << 32) - 1, 1 << 32, 1 << 40, (1 << 53) + 1, (1 << 62), (1 << 63) - 1, 1 << 63,
           (1 << 64) - 1)  # fmt: skip
"""Numbers at which widths, signs and products break."""

NAMES = (
    "", " ", ".", "..", "/", "a/b", "../x", "/etc/passwd", "..\\x", "a\0b", "\n", "\r", "\t", "\x1b[31m",
    "\x1b]0;title\x07", "\x9b31m", "\x7f", "\n::error file=x::y", "::warning::x", "::set-output name=a::b",
    "##[error]x",
    "%0A::error::x", "\u202eevil", "\u200b", "\u2028::error::x", "\ufeff", "\u0301", "é", "e\u0301", "\U0001f600",
    "__metadata__", "[bold]x[/bold]", "{x}", "%s", "$(id)", "`id`", "-o", "--help", "hf://a/b", "NaN", "null", "true",
    "lm_head.weight", "model.embed_tokens.weight", "x" * 300, "x" * 5000, "model.safetensors", "config.json",
)  # fmt: skip
"""Names that terminals, CI runners, file systems and shells take for something else."""


def size(rng: random.Random, length: int) -> int:
    """Return a number of interest for something of ``length`` bytes."""
    nearby = (length, length - 1, length + 1, length * 2, length // 2, -1)
    return rng.choice(NUMBERS) if rng.random() < 0.6 else rng.choice(nearby)


def edited(rng: random.Random, data: bytes, start: int = 0, end: int | None = None, most: int = 4) -> bytes:
    """Return ``data`` with up to ``most`` edits that begin between ``start`` and ``end``."""
    for _ in range(rng.randint(1, most)):
        stop = max(start, len(data) if end is None else min(end, len(data)))
        data = rng.choice(_EDITS)(rng, data, rng.randint(start, stop))
    return data


def _flip(rng: random.Random, data: bytes, at: int) -> bytes:
    if at >= len(data):
        return data
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _replace(rng: random.Random, data: bytes, at: int) -> bytes:
    return data[:at] + bytes([rng.choice((0, 1, 0x20, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + data[at + 1 :]


def _insert(rng: random.Random, data: bytes, at: int) -> bytes:
    return data[:at] + rng.randbytes(rng.randint(1, 9)) + data[at:]


def _delete(rng: random.Random, data: bytes, at: int) -> bytes:
    return data[:at] + data[at + rng.randint(1, 9) :]


def _number(rng: random.Random, data: bytes, at: int) -> bytes:
    layout = rng.choice(("<B", "<H", "<I", "<Q", ">I", ">Q"))
    width = struct.calcsize(layout)
    value = size(rng, len(data)) & ((1 << 8 * width) - 1)
    return data[:at] + struct.pack(layout, value) + data[at + width :]


def _cut(rng: random.Random, data: bytes, at: int) -> bytes:
    return data[:at] if rng.random() < 0.5 else data + rng.randbytes(rng.randint(1, 40))


def _copy(rng: random.Random, data: bytes, at: int) -> bytes:
    part = data[at : at + rng.randint(1, 64)]
    to = rng.randint(0, len(data))
    return data[:to] + part + data[to + (len(part) if rng.random() < 0.5 else 0) :]


_EDITS: tuple[Callable[[random.Random, bytes, int], bytes], ...] = (
    _flip, _flip, _replace, _insert, _delete, _number, _number, _cut, _copy,
)  # fmt: skip
