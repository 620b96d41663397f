"""Find the models that a list of revisions names, and the training step of each."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.sources import is_hub, is_object, is_remote
from tieconv.text import shown

_STEP = re.compile(r"(?:step|iter|checkpoint|ckpt)[^0-9]{0,2}(\d{1,15})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,15}(?!\d)")


@record
class Revision:
    """A revision as the user wrote it, its MODEL, and its training step if the name has a number."""

    name: str
    source: str
    step: int | None


def revisions(model: str, listed: str | Sequence[str]) -> tuple[Revision, ...]:
    """Return the revisions, in the order of their steps if every name has one.

    ``listed`` separates the names with commas or white space. A name is a revision of a model on the Hub. Otherwise it
    is a directory below MODEL, or a whole MODEL (``hf://…``, ``s3://…``, ``/…``).

    Raises `RefusedError` for fewer than two names, for a name twice, and for a MODEL that already has a revision.
    """
    names = re.split(r"[,\s]+", listed.strip(", \t\r\n")) if isinstance(listed, str) else list(listed)
    if len(names) < 2:
        raise RefusedError(
            "a list of revisions needs two names or more", "separate their names with commas: step1000,step2000"
        )
    repeated = next((name for name, times in Counter(names).items() if times > 1), None)
    if repeated is not None:
        raise RefusedError(f"the list of revisions has {shown(repeated)} twice", "name each revision once")
    listed_revisions = [Revision(name, _source(model, name), _step(name)) for name in names]
    steps = [revision.step for revision in listed_revisions if revision.step is not None]
    if len(set(steps)) == len(listed_revisions):
        return tuple(sorted(listed_revisions, key=lambda revision: revision.step or 0))
    return tuple(Revision(revision.name, revision.source, None) for revision in listed_revisions)


def _source(model: str, name: str) -> str:
    """Return the MODEL of a revision."""
    if is_remote(name) or os.path.isabs(name):
        return name
    if is_hub(model):
        return _on_the_hub(model, name)
    if is_object(model):
        return f"{model.rstrip('/')}/{name}"
    return os.path.join(model, name)


def _on_the_hub(model: str, name: str) -> str:
    from tieconv.sources.hub.repo_path import RepoPath, parse

    path = parse(model)
    if path.revision is not None:
        raise RefusedError(
            f"{shown(model)} already names the revision {shown(path.revision)}",
            f"name the model without a revision: {shown(RepoPath(path.repo, None, path.path))}",
        )
    return str(parse(str(RepoPath(path.repo, name, path.path))))


def _step(name: str) -> int | None:
    """Return the number after a word such as "step" in the last part of a name, or its first number."""
    end = re.split(r"[/@]", name.rstrip("/"))[-1]
    match = _STEP.search(end)
    if match:
        return int(match[1])
    match = _NUMBER.search(end)
    return int(match[0]) if match else None
