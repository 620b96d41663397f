"""Push a model to the Hub."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from tieconv.checkpoint.inspection import Depth
from tieconv.errors import RefusedError, UnreadableError
from tieconv.opened import inspected, opened
from tieconv.text import shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tieconv.checkpoint.results.push import Push


def plan_push(
    directory: str | Path,
    target: str,
    *,
    message: str | None = None,
    pull_request: bool = True,
    include: Sequence[str] = (),
) -> Push:
    """Plan a pull request that changes ``target`` (``hf://org/name``) to a local model.

    The description lists the changes of tensors, config values and files. Bytes are compared only if the local cache
    has the commit, as after another command on ``hf://``. The push deletes weight and index files that the repository's
    model uses and the directory lacks. Dot-files, keys and caches are left out, unless ``include`` has their name or
    that of a parent directory. Raises `RefusedError` if the directory cannot be pushed, and `UnreadableError` if one of
    the models cannot be read.
    """
    from tieconv.checkpoint.results.push import Push
    from tieconv.comparison.differences import effects
    from tieconv.reporters.text.plan_text import description, title
    from tieconv.sources.hub import parse
    from tieconv.sources.hub.source import guard_push, require

    repo_path = parse(target)
    require()
    from tieconv.sources.hub.files import HubFiles
    from tieconv.sources.hub.push import changes, grouped, is_private, private, refuse_special

    guard_push(os.fspath(directory), repo_path, pull_request)
    with opened(target) as remote, opened(os.fspath(directory)) as local:
        if not isinstance(remote[1], HubFiles):
            problem = "a push needs the network, and HF_HUB_OFFLINE is set"
            raise UnreadableError(problem, "unset HF_HUB_OFFLINE", "hub.offline")
        if local[0].named:
            raise RefusedError(f"{shown(directory)} is not a directory", "give the model's directory", "push.directory")
        refuse_special(local[0].root, (name for name in local[0].special if not is_private(name)))
        hub_files = remote[1]
        kept_back = private(local[0].entries, include)
        # Only bytes in the local cache are compared; nothing is downloaded for it.
        compares = not hub_files.costly
        before = inspected(remote, Depth.CANDIDATES if compares else Depth.HEADER, None, None)
        after = inspected(local, Depth.CANDIDATES, None, None)
        used = [name for name in (*before.checkpoint.states, *before.checkpoint.others) if name != "config.json"]
        file_changes = changes(hub_files.snapshot, local[0], local[1], used, kept_back)  # type: ignore[arg-type]
        left_out = grouped((*kept_back, *local[0].special), local[0].root)
        same = set(local[0].entries) - {change.name for change in file_changes}
        uploaded = [change.name for change in file_changes if change.kind != "delete"]
        read = after.checkpoint.states
        states = {name: read.get(name) or local[1].state(name) for name in uploaded}
        push_effects = effects(before, after, (hub_files, local[1]), same, compares=compares)
    return Push(
        directory=os.fspath(directory),
        repo=repo_path.repo,
        revision=repo_path.revision,
        commit=remote[2],
        pull_request=pull_request,
        title=message or title(file_changes),
        description=description(push_effects, file_changes, before, after),
        effects=push_effects,
        changes=file_changes,
        left_out=left_out,
        states=states,
    )


def push(planned: Push) -> Push:
    """Upload a planned push as a pull request or a commit.

    Raises `StalePlanError` if a file has changed since it was planned, and another `TieconvError` if the Hub refuses.
    """
    from tieconv.sources.hub.push import upload

    if not planned.changes:
        return planned
    return replace(planned, executed=True, url=upload(planned, os.path.abspath(planned.directory)))
