"""Match path patterns as in a `.gitignore`: `*` and `?` stay within one name, `**` does not."""

from __future__ import annotations

import os
import re
from functools import lru_cache


def matches(pattern: str, path: str, base: str) -> bool:
    """Return whether ``pattern`` matches the absolute ``path`` or a directory above it.

    A relative pattern starts at the directory ``base``.
    """
    if "://" not in path:
        if os.path.isabs(pattern):
            pattern = os.path.normpath(pattern)
        else:
            path = os.path.relpath(path, base)
            pattern = os.path.normpath(pattern)
    return _compiled(pattern).match(path) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(f"(?s:{''.join(map(_piece, _TOKENS.findall(pattern)))})(?:/|\\Z)")


_TOKENS = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]/]*\]|[\s\S]")


def _piece(token: str) -> str:
    simple = {"**/": "(?:[^/]*/)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    if token in simple:
        return simple[token]
    if len(token) > 1:
        inside = token[1:-1].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
        return f"(?!/)[{'^' + inside[1:] if inside.startswith('!') else inside.replace('^', chr(92) + '^', 1)}]"
    return re.escape(token)
