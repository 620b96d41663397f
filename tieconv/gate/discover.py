"""Find the models below a directory, and the models that match a pattern."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from glob import glob, has_magic

from tieconv.errors import UnreadableError
from tieconv.formats.gguf import models_among
from tieconv.text import shell_word, shown

_WEIGHTS = re.compile(
    r".*\.(safetensors|gguf|onnx|distcp)|(pytorch_model|adapter_model).*\.bin|consolidated.*\.pth"
    r"|.*\.(safetensors|bin)\.index\.json",
    re.IGNORECASE | re.DOTALL,
)
"""Names of files that make a directory a model. Other `.pt` and `.bin` files may hold anything."""


def is_weight(name: str) -> bool:
    """Return whether a file with this name makes its directory a model."""
    return _WEIGHTS.fullmatch(name) is not None


MOST = 100_000
"""Most directories that one argument may have below it."""


def models_of(source: str, *, recursive: bool) -> tuple[str, ...]:
    """Return the models that an argument of `check` selects.

    A pattern selects the models that match it. A directory with weights selects itself; one without weights selects the
    models below it. With ``recursive``, a directory with weights also selects the models below it. Hidden directories,
    virtual environments and symlinks to directories are skipped. A directory with several GGUF models selects each
    file.

    Raises `UnreadableError` if a pattern matches no model, or if a directory has too many subdirectories.
    """
    if has_magic(source) and not os.path.lexists(source):
        return tuple(model for path in _matching(source) for model in _each_gguf(path))
    if not os.path.isdir(source):
        return (source,)
    if not recursive and _holds_weights(source) and not _is_collection(source):
        return _each_gguf(source)
    below = tuple(model for directory in _below(source) for model in (*_each_gguf(directory), *_graphs(directory)))
    return below or (source,)


def _each_gguf(path: str) -> tuple[str, ...]:
    """Return each GGUF model of a directory that holds several, as releases do, else the path.

    The directory itself comes first if it also holds a model in another format.
    """
    names = _names(path) if os.path.isdir(path) else []
    models = models_among(names)
    if len(models) < 2:
        return (path,)
    whole = any(is_weight(name) and not name.endswith(".gguf") for name in names)
    return (*((path,) if whole else ()), *(os.path.join(path, name) for name in models))


def _graphs(directory: str) -> tuple[str, ...]:
    """Return the graphs in a directory whose model is in another format."""
    weights = [name for name in _names(directory) if is_weight(name)]
    graphs = [name for name in weights if name.endswith(".onnx")]
    return tuple(os.path.join(directory, name) for name in graphs) if len(graphs) < len(weights) else ()


def _is_collection(directory: str) -> bool:
    """Return whether all weights in a directory are loose GGUF files or graphs, which are models beside those below.

    A config beside them means that they are one model.
    """
    names = _names(directory)
    return "config.json" not in names and all(
        name.lower().endswith((".gguf", ".onnx")) for name in names if is_weight(name)
    )


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []  # inspecting the directory reports why it cannot be listed


def _matching(pattern: str) -> tuple[str, ...]:
    paths = (path for path in glob(pattern, recursive=True) if os.path.isdir(path) or is_weight(path))
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
        if any(map(is_weight, files)):
            yield os.path.normpath(directory)
    yield from (os.path.normpath(error.filename) for error in closed)  # inspecting it reports why


def _is_skipped(directory: str) -> bool:
    """Return whether the search skips a directory: hidden, a cache, a virtual environment or a symlink."""
    name = os.path.basename(directory)
    hidden = name.startswith(".") or name in ("__pycache__", "node_modules")
    return hidden or os.path.islink(directory) or os.path.lexists(os.path.join(directory, "pyvenv.cfg"))


def _holds_weights(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(is_weight(entry.name) for entry in entries)
    except OSError:
        return True  # inspecting the directory reports why it cannot be listed
