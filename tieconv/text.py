"""The one escaper for text that came from a file, and the one way that sizes are written."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]"
)
_LIMIT = 200


def shown(value: object, limit: int = _LIMIT) -> str:
    """``value`` as text that cannot move the cursor, reorder or hide anything, at most ``limit`` characters."""
    text = str(value)
    if len(text) > limit:
        text = f"{text[: limit - 1]}…"
    safe = _UNSAFE.sub(_escape, text)
    # A printed line that starts with `::` is a command to a CI runner.
    return safe.replace("::", ":\\x3a") if safe.startswith("::") else safe


def _escape(match: re.Match[str]) -> str:
    point = ord(match.group())
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def size(number: int) -> str:
    """Bytes for people: decimal units, three digits (`525 MB`)."""
    value, unit = float(number), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"


def count(number: int, noun: str) -> str:
    """``3 tensors``, ``1 tensor``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


_UNITS = {"": 1, **{f"{unit}B": 1000**power for power, unit in enumerate(("", "K", "M", "G", "T"))}}
_UNITS |= {f"{unit}IB": 1024**power for power, unit in enumerate(("K", "M", "G", "T"), 1)}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_size(text: str) -> int:
    """Bytes of a size such as ``5GB``, ``500 MB`` or ``2GiB``; ``ValueError`` for anything else and for none."""
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{shown(text)} is no size: write 5GB, 500MB or 2GiB")
    number = int(float(match[1]) * _UNITS[match[2].upper()])
    if number < 1:
        raise ValueError(f"{shown(text)} is no size that holds a tensor")
    return number
