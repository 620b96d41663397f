"""Open models on the Hub. Imports huggingface_hub only when a model is opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.model_files import Listing
from tieconv.errors import RefusedError, SettingsError, TieconvError, UnreadableError
from tieconv.install import install_command
from tieconv.sources import PREFIX, is_hub
from tieconv.sources.hub import RepoPath, parse, parse_pattern
from tieconv.text import Hint, call, option, shell_word, shown

if TYPE_CHECKING:
    from tieconv.sources.hub.files import HubFiles
    from tieconv.sources.local import FileSet
    from tieconv.sources.ranged import Tick


class MissingProviderError(TieconvError):
    """An optional package is not installed."""


def require() -> None:
    """Raise `MissingProviderError` if huggingface_hub is not installed or too old."""
    try:
        from tieconv.sources.hub import client as hub_client  # noqa: F401
    except ImportError as error:
        if (error.name or "").startswith("tieconv"):
            raise
        problem = "models on the Hub need the package huggingface_hub (2.4 or newer), which is not installed"
        raise MissingProviderError(problem, install_command("hub"), "hub.provider") from error
    except ValueError as error:  # huggingface_hub 2.4 reads its variables when it is imported
        problem = f"huggingface_hub does not accept a variable of the environment: {shown(str(error))}"
        hint = "give HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT whole numbers of seconds"
        raise SettingsError(problem, hint, "hub.settings") from error


def guard_push(directory: str, repo_path: RepoPath, pull_request: bool) -> None:
    """Raise `RefusedError` for a push with contradictory arguments."""
    if repo_path.path:
        problem = f"{repo_path} is a path inside a repository, but push compares the whole repository"
        raise RefusedError(problem, call("push", directory, f"hf://{repo_path.repo}"), "push.path")
    if is_hub(directory):
        problem = f"{shown(directory)} is on the Hub, but push needs a local directory"
        raise RefusedError(problem, Hint("write the model to a directory first, with ", option("out")), "push.source")
    if pull_request and repo_path.revision not in (None, "main"):
        hint = Hint("remove the branch, or add ", option(pull_request=False), " to push to it")
        raise RefusedError(f"{repo_path} has a branch, but a pull request always targets main", hint, "push.branch")


def fetch(listing: Listing, reader: object, names: Iterable[str]) -> str:
    """Fetch the files ``names`` into the local cache, check their hashes, and return the model's path.

    ``reader`` is the reader that `open_model` returned with ``listing``. Raises the errors of `open_model`.
    """
    repo_path = parse(listing.source)
    require()
    from tieconv.sources.hub import files as hub_cache

    known = getattr(reader, "known_hash", None)
    return hub_cache.fetch(listing, repo_path, {name: known(name)[1] if known else "" for name in names})


@contextmanager
def _complete(repo_path: RepoPath) -> Iterator[None]:
    """Report a missing shard as not fetched, so that no hint suggests to rebuild the index."""
    try:
        yield
    except UnreadableError as error:
        if error.code != "index.absent-shard":
            raise
        revision = f" --revision {shell_word(repo_path.revision)}" if repo_path.revision else ""
        hint = f"unset HF_HUB_OFFLINE, or fetch the rest first: hf download {shell_word(repo_path.repo)}{revision}"
        problem = f"{repo_path} is not complete in the local cache: {error.message}"
        raise UnreadableError(problem, hint, error.code) from None


@contextmanager
def open_model(
    source: str, tick: Tick | None = None, *, proving: bool = False
) -> Iterator[tuple[Listing, HubFiles | FileSet, str]]:
    """Yield the listing of a model, its reader and its commit. Offline mode uses only the local cache.

    ``tick(done, total)`` is called for each header that arrives. If ``proving`` is true, tensors are compared in full.
    Raises `UnreadableError` if the model is missing or may not be read, and `MissingProviderError` without
    huggingface_hub.
    """
    repo_path = parse(source)
    require()
    from tieconv.sources.hub import client as hub_client, files as hub_cache

    if hub_client.is_offline():
        from tieconv.sources.local import open_files

        listing, commit = hub_cache.locate_cached(source, repo_path)
        with open_files(listing.root) as cached, _complete(repo_path):
            yield listing, cached, commit
        return
    client = hub_client.Client()
    snapshot = hub_client.look_up(client, source, repo_path)
    with hub_cache.HubFiles(client, snapshot, tick, proving=proving) as files:
        yield snapshot.listing, files, snapshot.commit


# List the models of one owner on the Hub.


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
        problem = f"{shown(source)} matches no model{f' with the task {shown(task)}' if task else ''}"
        hint = "check the owner and the pattern; for private models log in: hf auth login"
        raise UnreadableError(problem, hint, "hub.no-models")
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
