"""Models below a directory, and models that a pattern names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from glob import glob, has_magic

from tieconv.errors import UnreadableError
from tieconv.text import shell_word, shown

_WEIGHTS = re.compile(
    r".*\.(safetensors|gguf|onnx|distcp)|(pytorch_model|adapter_model).*\.bin|consolidated.*\.pth"
    r"|.*\.(safetensors|bin)\.index\.json",
    re.IGNORECASE | re.DOTALL,
)
"""Names of files that make a directory a model; a `.pt` or `.bin` of another name may be anything."""

MOST = 100_000
"""Directories that are entered below one argument."""


def models_of(source: str, *, recursive: bool) -> tuple[str, ...]:
    """Return the models that an argument of `check` stands for.

    A pattern stands for what it matches. A directory without weights of its own stands for the models below it; with
    ``recursive`` so does one that is a model itself, beside that model. Dot-directories, virtual environments and
    links to directories are passed over. Raises `UnreadableError` for a pattern that nothing matches and for a
    directory with too many directories below it.
    """
    if has_magic(source) and not os.path.lexists(source):
        return _matching(source)
    if not os.path.isdir(source) or (not recursive and _holds_weights(source)):
        return (source,)
    below = tuple(_below(source))
    return below or (source,)


def _matching(pattern: str) -> tuple[str, ...]:
    paths = (path for path in glob(pattern, recursive=True) if os.path.isdir(path) or _WEIGHTS.fullmatch(path))
    matches = sorted(path.rstrip(os.sep) for path in paths if not os.path.isdir(path) or _holds_weights(path))
    directories = {path for path in matches if os.path.isdir(path)}
    matches = [path for path in matches if os.path.dirname(path) not in directories or path in directories]
    if not matches:
        raise UnreadableError(
            f"no model matches {shown(pattern)}",
            f"look below a directory with: tieconv check --recursive {shell_word(os.path.dirname(pattern) or '.')}",
            "path.pattern",
        )
    return tuple(matches)


def _below(root: str) -> Iterator[str]:
    """Yield the directories under ``root``, itself included, that hold weights or cannot be listed."""
    closed: list[OSError] = []
    for number, (directory, subdirectories, files) in enumerate(os.walk(root, onerror=closed.append)):
        if number > MOST:
            raise UnreadableError(
                f"{shown(root)} holds more than {MOST:,} directories", "name a directory of models", "path.too-large"
            )
        subdirectories[:] = sorted(name for name in subdirectories if not _is_skipped(os.path.join(directory, name)))
        if any(_WEIGHTS.fullmatch(name) for name in files):
            yield os.path.normpath(directory)
    yield from (os.path.normpath(error.filename) for error in closed)  # reading it says why


def _is_skipped(directory: str) -> bool:
    """Return whether nobody keeps a model there, or a link leads out of the tree."""
    name = os.path.basename(directory)
    hidden = name.startswith(".") or name in ("__pycache__", "node_modules")
    return hidden or os.path.islink(directory) or os.path.lexists(os.path.join(directory, "pyvenv.cfg"))


def _holds_weights(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(_WEIGHTS.fullmatch(entry.name) for entry in entries)
    except OSError:
        return True  # what may not be listed is told by what reads it
