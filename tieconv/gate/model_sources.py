"""Turn the arguments of `check` into models: patterns, prefixes, directories, and filters by name and age."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.errors import SettingsError, UnreadableError
from tieconv.gate.discover import is_weight, models_of
from tieconv.gate.policy import matches
from tieconv.sources import is_hub, is_object
from tieconv.sources.hub.repo_path import is_pattern
from tieconv.sources.objects.object_source import is_prefix
from tieconv.sources.user_files import read_text
from tieconv.text import shown

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

    def chooses(self, model: Dated) -> bool:
        """Return whether a model passes the filters. May make a request to learn its age."""
        source, when = model
        if any(_matches(pattern, source) for pattern in self.exclude):
            return False
        if self.include and not any(_matches(pattern, source) for pattern in self.include):
            return False
        return self.newer_than is None or (modified(source) if when is None else when) >= self.newer_than

    @property
    def filters(self) -> bool:
        """Whether any filter is set."""
        return bool(self.include or self.exclude or self.newer_than is not None)


def _matches(pattern: str, source: str) -> bool:
    if "/" not in pattern:
        name = os.path.basename(source.rstrip("/") if "://" in source else os.path.abspath(source))
        return matches(pattern, name, os.curdir)
    return matches(pattern, source if "://" in source else os.path.abspath(source), os.getcwd())


def parse_choice(newer_than: str | None, **options: Any) -> Choice:
    """Return the choice of the options of `check`. Raises `SettingsError` for an invalid age."""
    return Choice(newer_than=None if newer_than is None else parse_age(newer_than), **options)


def is_collection(source: str) -> bool:
    """Return whether an argument means several remote models, or a list of models."""
    return is_pattern(source) or is_prefix(source) or is_list(source)


def is_list(source: str) -> bool:
    """Return whether an argument is a list of models: ``-`` for standard input, or ``@FILE``."""
    return source == "-" or (source.startswith("@") and not os.path.lexists(source))


def listed(text: str) -> Iterator[str]:
    """Yield the models of a list: one in a line, without empty lines and lines that start with ``#``."""
    for line in text.splitlines():
        model = line.strip()
        if model and not model.startswith("#"):
            yield model


def read_list(source: str) -> Iterator[str]:
    """Yield the models of ``@FILE``. Raises `UnreadableError` or `SettingsError`."""
    path = source.removeprefix("@")
    if not os.path.lexists(path):
        raise UnreadableError(f"{shown(path)}: no such list of models", "check the path after @", "check.list")
    return listed(read_text(path))


def chosen_models(sources: Iterable[str], choice: Choice) -> tuple[str, ...]:
    """Return the models of the arguments, each once. Raises `UnreadableError` if a pattern or prefix has none."""
    models: list[str] = []
    for source in sources:
        passed = (name for name, when in _expanded(source, choice) if choice.chooses((name, when)))
        models += islice(passed, choice.limit) if is_pattern(source) or is_prefix(source) else passed
    return tuple(dict.fromkeys(models))


def _expanded(source: str, choice: Choice) -> Iterable[Dated]:
    if is_pattern(source):
        from tieconv.sources.hub.owner_models import expand

        limit = None if choice.filters else choice.limit
        return expand(source, choice.task, limit, dated=choice.newer_than is not None)
    if is_hub(source) or (is_object(source) and not is_prefix(source) and not choice.recursive):
        return ((source, None),)
    if is_object(source):
        return _below_prefix(source, choice.recursive)
    return ((model, None) for model in models_of(source, recursive=choice.recursive))


def _below_prefix(source: str, recursive: bool) -> tuple[Dated, ...]:
    """Return the models below a prefix. As for a directory, a prefix with weights is one model unless ``recursive``."""
    from tieconv.sources.objects.object_source import directories, fixed_part

    root = fixed_part(source)
    models = directories(root, is_weight)
    if root != source.removesuffix("/"):
        models = tuple(model for model in models if matches(source, model.source, ""))
    elif models and models[0].source == root and not recursive:
        models = models[:1]
    if not models:
        raise UnreadableError(
            f"no model matches {shown(source)}", "check the bucket and the prefix", "objects.no-models"
        )
    return tuple((model.source, model.modified) for model in models)


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
        raise SettingsError(
            f"--newer-than: {shown(text)} is not an age or a date", "write 12h, 7d, 2w or 2026-11-01", "check.age"
        ) from None


def modified(source: str) -> float:
    """Return when the newest file of a model was written, in seconds since 1970. Makes a request for a remote model.

    Returns infinity for a model that cannot be read, so that the check of the model reports why.
    """
    try:
        if is_object(source):
            return _modified_object(source)
        if is_hub(source):
            from tieconv.sources.hub.owner_models import modified_on_hub

            return modified_on_hub(source)
    except UnreadableError:
        return math.inf
    return _modified_locally(source)


def _modified_object(source: str) -> float:
    from tieconv.sources.objects.object_source import open_model

    with open_model(source) as (_, files, _):
        return max(stored.modified for stored in files.listed.stored.values())


def _modified_locally(source: str) -> float:
    try:
        if not os.path.isdir(source):
            return os.stat(source).st_mtime
        with os.scandir(source) as entries:
            return max((entry.stat().st_mtime for entry in entries if entry.is_file()), default=0.0)
    except OSError:
        return math.inf
