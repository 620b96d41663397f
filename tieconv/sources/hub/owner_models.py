"""List the models of one owner on the Hub."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from tieconv.errors import UnreadableError
from tieconv.sources import PREFIX
from tieconv.sources.hub.repo_path import parse, parse_pattern
from tieconv.sources.hub.source import require
from tieconv.text import shown

Dated = tuple[str, float | None]
"""The address of a model, and when it was changed (seconds since 1970), if that is known."""


def expand(source: str, task: str | None = None, limit: int | None = None, *, dated: bool = False) -> tuple[Dated, ...]:
    """Return the models that match ``hf://org/PATTERN``, in the Hub's order. Raises `UnreadableError` for none.

    With ``dated``, the listing also says when each model was changed.
    """
    owner, pattern = parse_pattern(source)
    require()
    from tieconv.sources.hub.client import Client

    client = Client()

    def ask() -> tuple[Dated, ...]:
        models = client.api.list_models(
            author=owner,
            pipeline_tag=task,
            limit=limit if pattern == "*" else None,
            expand=["lastModified"] if dated else None,
        )
        return tuple(islice(_matching(models, owner, pattern), limit))

    models = client.call(shown(source), ask)
    if not models:
        raise UnreadableError(
            f"{shown(source)} matches no model{f' with the task {shown(task)}' if task else ''}",
            "check the owner and the pattern; for private models log in: hf auth login",
            "hub.no-models",
        )
    return models


def _matching(models: Iterable[Any], owner: str, pattern: str) -> Iterator[Dated]:
    """Yield the matching models. Raises `UnreadableError` for a model that the server lists twice."""
    seen: set[str] = set()
    for model in models:
        if model.id in seen:
            problem = f"{PREFIX}{shown(owner)} cannot be listed: the server sent {shown(model.id)} twice"
            raise UnreadableError(problem, "check HF_ENDPOINT and proxies", "hub.repeated")
        seen.add(model.id)
        start, _, rest = model.id.partition("/")
        if start == owner and fnmatchcase(rest, pattern):
            yield f"{PREFIX}{model.id}", _seconds(getattr(model, "last_modified", None))


def modified_on_hub(source: str) -> float:
    """Return when a repository was changed, in seconds since 1970; 0 if the Hub does not say. Raises `TieconvError`."""
    repo_path = parse(source)
    require()
    from tieconv.sources.hub.client import Client

    client = Client()
    info = client.call(shown(source), lambda: client.api.model_info(repo_path.repo, revision=repo_path.revision))
    return _seconds(info.last_modified) or 0.0


def _seconds(moment: object) -> float | None:
    return moment.timestamp() if isinstance(moment, datetime) else None
