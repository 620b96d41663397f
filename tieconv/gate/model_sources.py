"""Turn the arguments of `check` into models: patterns, prefixes, directories, and filters by name and age."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from glob import glob, has_magic
from itertools import islice

from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError, UnreadableError
from tieconv.formats.gguf import models_among
from tieconv.gate.settings import matches
from tieconv.sources import is_hub, is_object, is_pattern, is_prefix
from tieconv.sources.local import locate
from tieconv.sources.user_files import read_text
from tieconv.text import shell_word, shown

# Find the models below a directory, and the models that match a pattern.


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
        paths = (path for path in glob(source, recursive=True) if os.path.isdir(path) or is_weight(path))
        matches = sorted(path.rstrip(os.sep) for path in paths if not os.path.isdir(path) or holds_weights(path))
        directories = {path for path in matches if os.path.isdir(path)}
        matches = [path for path in matches if os.path.dirname(path) not in directories or path in directories]
        if not matches:
            raise UnreadableError(
                f"no model matches {shown(source)}",
                f"look below a directory with: tieconv check --recursive {shell_word(os.path.dirname(source) or '.')}",
                "path.pattern",
            )
        return tuple(model for path in matches for model in _each_gguf(path))
    if not os.path.isdir(source):
        return (source,)
    if not recursive and holds_weights(source) and not _is_collection(source):
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


def _below(root: str) -> Iterator[str]:
    """Yield the directories under ``root``, itself included, that hold weights or cannot be listed."""
    closed: list[OSError] = []
    for number, (directory, subdirectories, files) in enumerate(os.walk(root, onerror=closed.append)):
        if number > MOST:
            problem = f"{shown(root)} holds more than {MOST:,} directories"
            raise UnreadableError(problem, "name a directory of models", "path.too-large")
        subdirectories[:] = sorted(name for name in subdirectories if not _is_skipped(os.path.join(directory, name)))
        if any(map(is_weight, files)):
            yield os.path.normpath(directory)
    yield from (os.path.normpath(error.filename) for error in closed)  # inspecting it reports why


def _is_skipped(directory: str) -> bool:
    """Return whether the search skips a directory: hidden, a cache, a virtual environment or a symlink."""
    name = os.path.basename(directory)
    hidden = name.startswith(".") or name in ("__pycache__", "node_modules")
    return hidden or os.path.islink(directory) or os.path.lexists(os.path.join(directory, "pyvenv.cfg"))


def passed_over(root: str) -> Iterator[tuple[str, str]]:
    """Yield what a search below ``root`` passes over, with the reason: links to models, and models without weights."""
    for directory, subdirectories, files in os.walk(root):
        if "config.json" in files and not any(map(is_weight, files)):
            yield directory, "config.json without weights"
        paths = [os.path.join(directory, name) for name in sorted(subdirectories)]
        linked = (path for path in paths if os.path.islink(path) and holds_weights(path))
        yield from ((path, "a search follows no link, so name the model") for path in linked)
        subdirectories[:] = [os.path.basename(path) for path in paths if not _is_skipped(path)]


def holds_weights(directory: str) -> bool:
    """Return whether a directory holds a weight file, or cannot be listed."""
    try:
        with os.scandir(directory) as entries:
            return any(is_weight(entry.name) for entry in entries)
    except OSError:
        return True  # inspecting the directory reports why it cannot be listed


# Turn the arguments of `check` into models: patterns, prefixes, directories, and filters by name and age.


Dated = tuple[str, float | None]
"""A model, and when it was changed (seconds since 1970), if the listing says so."""


@record
class Choice:
    """Which models of the arguments are chosen.

    ``task`` and ``limit`` restrict patterns of the Hub, and ``limit`` also prefixes. With ``recursive``, a directory
    that is a model also includes the models below it. ``include`` and ``exclude`` are patterns as in a `.gitignore`.
    A pattern without a slash is for the last name of a model. ``newer_than`` is in seconds since 1970.
    """

    task: str | None = None
    limit: int | None = None
    recursive: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    newer_than: float | None = None

    def names(self, source: str) -> bool:
        """Return whether a model passes the patterns."""
        if any(_matches(pattern, source) for pattern in self.exclude):
            return False
        return not self.include or any(_matches(pattern, source) for pattern in self.include)

    def chooses(self, model: Dated) -> bool:
        """Return whether a model passes the filters. May make a request to learn its age."""
        source, when = model
        if not self.names(source):
            return False
        return self.newer_than is None or (modified(source) if when is None else when) >= self.newer_than


def _matches(pattern: str, source: str) -> bool:
    if "/" not in pattern:
        name = os.path.basename(source.rstrip("/") if "://" in source else os.path.abspath(source))
        return matches(pattern, name, os.curdir)
    return matches(pattern, source if "://" in source else os.path.abspath(source), os.getcwd())


def is_collection(source: str) -> bool:
    """Return whether an argument means several remote models, or a list of models."""
    return is_pattern(source) or is_prefix(source) or is_list(source)


def is_list(source: str) -> bool:
    """Return whether an argument is a list of models: ``-`` for standard input, or ``@FILE``."""
    return source == "-" or (source.startswith("@") and not os.path.lexists(source))


def listed(text: str, name: str) -> list[str]:
    """Return the models of a list: one in a line, without empty lines and lines that start with ``#``.

    Raises `UnreadableError` for an empty list: a gate that checks no model would pass.
    """
    models = [line.strip() for line in text.splitlines()]
    models = [model for model in models if model and not model.startswith("#")]
    if not models:
        raise UnreadableError(f"{name} names no model", "write one model in a line", "check.list")
    return models


def read_list(source: str) -> list[str]:
    """Return the models of ``@FILE``. Raises `UnreadableError` or `SettingsError`."""
    path = source.removeprefix("@")
    if not os.path.lexists(path):
        raise UnreadableError(f"{shown(path)}: no such list of models", "check the path after @", "check.list")
    return listed(read_text(path), shown(path))


def chosen_models(sources: Iterable[str], choice: Choice) -> tuple[str, ...]:
    """Return the models of the arguments, each once.

    Raises `UnreadableError` if a pattern or prefix has none, or if ``include`` and ``exclude`` leave none.
    """
    sources = tuple(sources)
    models: list[str] = []
    for source in sources:
        passed = (name for name, when in _expanded(source, choice) if choice.chooses((name, when)))
        models += islice(passed, choice.limit) if is_pattern(source) or is_prefix(source) else passed
    if (
        sources
        and not models
        and not any(choice.names(name) for source in sources for name, _ in _expanded(source, choice))
    ):
        raise UnreadableError("no model passes --include and --exclude", "check the patterns", "check.filters")
    unique: dict[str, str] = {}
    for model in models:
        unique.setdefault(model if "://" in model else os.path.abspath(model), model)
    return tuple(unique.values())


def _expanded(source: str, choice: Choice) -> Iterable[Dated]:
    if is_pattern(source):
        from tieconv.sources.hub.source import expand

        filtered = choice.include or choice.exclude or choice.newer_than is not None
        limit = None if filtered else choice.limit
        return expand(source, choice.task, limit, dated=choice.newer_than is not None)
    if is_hub(source) or (is_object(source) and not is_prefix(source) and not choice.recursive):
        return ((source, None),)
    if is_object(source):
        from tieconv.sources.objects.source import directories, fixed_part

        root = fixed_part(source)
        models = directories(root, is_weight)
        if root != source.removesuffix("/"):
            models = tuple(model for model in models if matches(source, model.source, ""))
        elif models and models[0].source == root and not choice.recursive:
            models = models[:1]
        if not models:
            problem = f"no model matches {shown(source)}"
            raise UnreadableError(problem, "check the bucket and the prefix", "objects.no-models")
        return tuple((model.source, model.modified) for model in models)
    return ((model, None) for model in models_of(source, recursive=choice.recursive))


_AGE = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_age(text: str) -> float:
    """Return the time of an age (``12h``, ``7d``, ``2w``) before now or of a date, in seconds since 1970.

    A date without a zone is local. Raises `SettingsError` for other text.
    """
    if match := _AGE.fullmatch(text):
        return time.time() - int(match[1]) * _SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        problem = f"--newer-than: {shown(text)} is not an age or a date"
        raise SettingsError(problem, "write 12h, 7d, 2w or 2026-11-01", "check.age") from None


def modified(source: str) -> float:
    """Return when the newest file of a model was written, in seconds since 1970. Makes a request for a remote model.

    Returns infinity for a model that cannot be read, so that the check of the model reports why.
    """
    try:
        if is_object(source):
            from tieconv.sources.objects.source import open_model

            with open_model(source) as (_, files, _):
                return max(stored.modified for stored in files.listed.stored.values())
        if is_hub(source):
            from tieconv.sources.hub.source import modified_on_hub

            return modified_on_hub(source)
    except UnreadableError:
        return math.inf
    try:
        if not os.path.isdir(source):
            return os.stat(source).st_mtime
        with os.scandir(source) as entries:
            return max((entry.stat().st_mtime for entry in entries if entry.is_file()), default=0.0)
    except OSError:
        return math.inf


# Identify the content of a model by its listing, without reading its files.


@record
class ListedContent:
    """What a listing says about a model.

    ``fingerprint`` is a commit on the Hub, or a SHA-256 of names, sizes and ETags. For local files it is a SHA-256 of
    names, sizes, times and inodes. ``bytes`` is the size of all files.
    """

    fingerprint: str
    bytes: int


def listed_content(source: str) -> ListedContent:
    """List a model. Raises `TieconvError` or ``OSError`` if it cannot be listed."""
    if is_object(source):
        from tieconv.sources.objects.source import open_model

        with open_model(source) as (listing, _, fingerprint):
            return ListedContent(fingerprint, sum(listing.entries.values()))
    if is_hub(source):
        from tieconv.sources.hub.source import open_model as open_hub_model

        with open_hub_model(source) as (listing, _, commit):
            return ListedContent(commit, sum(listing.entries.values()))
    import hashlib  # only a run over many models needs it

    listing = locate(source)
    states = [(name, os.stat(os.path.join(listing.root, name))) for name in listing.entries]
    entries = [(name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino) for name, state in states]
    return ListedContent(hashlib.sha256(json.dumps(entries).encode()).hexdigest(), sum(listing.entries.values()))
