"""List the models of one owner on the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import islice

from tieconv.errors import UnreadableError
from tieconv.sources import PREFIX
from tieconv.sources.hub.repo_path import parse_pattern
from tieconv.sources.hub.source import require
from tieconv.text import shown


def expand(source: str, task: str | None = None, limit: int | None = None) -> tuple[str, ...]:
    """Return the models that match ``hf://org/PATTERN``, in the Hub's order. Raises `UnreadableError` for none."""
    owner, pattern = parse_pattern(source)
    require()
    from tieconv.sources.hub.client import Client

    client = Client()

    def ask() -> tuple[str, ...]:
        models = client.api.list_models(author=owner, pipeline_tag=task, limit=limit if pattern == "*" else None)
        names = (model.id for model in models)
        return tuple(islice(_matching(names, owner, pattern), limit))

    models = client.call(shown(source), ask)
    if not models:
        raise UnreadableError(
            f"{shown(source)} matches no model{f' with the task {shown(task)}' if task else ''}",
            "check the owner and the pattern; for private models log in: hf auth login",
            "hub.no-models",
        )
    return models


def _matching(names: Iterator[str], owner: str, pattern: str) -> Iterator[str]:
    for name in names:
        start, _, rest = name.partition("/")
        if start == owner and fnmatchcase(rest, pattern):
            yield f"{PREFIX}{name}"
