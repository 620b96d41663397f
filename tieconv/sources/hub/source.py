"""Open models on the Hub. Imports huggingface_hub only when a model is opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tieconv.checkpoint.model_files import Listing
from tieconv.errors import RefusedError, SettingsError, TieconvError, UnreadableError
from tieconv.install import install_command
from tieconv.sources import is_hub
from tieconv.sources.hub.repo_path import RepoPath, parse
from tieconv.text import path_word, shell_word, shown

if TYPE_CHECKING:
    from tieconv.sources.hub.files import HubFiles
    from tieconv.sources.local.files import FileSet
    from tieconv.sources.ranged.ranged_files import Tick


class MissingProviderError(TieconvError):
    """An optional package is not installed."""


def require() -> None:
    """Raise `MissingProviderError` if huggingface_hub is not installed or too old."""
    try:
        from tieconv.sources.hub import client as hub_client  # noqa: F401
    except ImportError as error:
        if (error.name or "").startswith("tieconv"):
            raise
        raise MissingProviderError(
            "models on the Hub need the package huggingface_hub (2.4 or newer), which is not installed",
            install_command("hub"),
            "hub.provider",
        ) from error
    except ValueError as error:  # huggingface_hub 2.4 reads its variables when it is imported
        raise SettingsError(
            f"huggingface_hub does not accept a variable of the environment: {shown(str(error))}",
            "give HF_HUB_DOWNLOAD_TIMEOUT and HF_HUB_ETAG_TIMEOUT whole numbers of seconds",
            "hub.settings",
        ) from error


def guard_push(directory: str, repo_path: RepoPath, pull_request: bool) -> None:
    """Raise `RefusedError` for a push with contradictory arguments."""
    if repo_path.path:
        raise RefusedError(
            f"{repo_path} is a path inside a repository, but push compares the whole repository",
            f"tieconv push {path_word(directory)} hf://{repo_path.repo}",
            "push.path",
        )
    if is_hub(directory):
        raise RefusedError(
            f"{shown(directory)} is on the Hub, but push needs a local directory",
            "write the model to a directory first, with -o",
            "push.source",
        )
    if pull_request and repo_path.revision not in (None, "main"):
        raise RefusedError(
            f"{repo_path} has a branch, but a pull request always targets main",
            "remove the branch, or add --no-pr to push to it",
            "push.branch",
        )


def fetch(listing: Listing, reader: object, names: Iterable[str]) -> str:
    """Fetch the files ``names`` into the local cache, check their hashes, and return the model's path.

    ``reader`` is the reader that `open_model` returned with ``listing``. Raises the errors of `open_model`.
    """
    repo_path = parse(listing.source)
    require()
    from tieconv.sources.hub import cache as hub_cache

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
        raise UnreadableError(
            f"{repo_path} is not complete in the local cache: {error.message}", hint, error.code
        ) from None


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
    from tieconv.sources.hub import cache as hub_cache
    from tieconv.sources.hub import client as hub_client

    if hub_client.is_offline():
        from tieconv.sources.local.files import open_files

        listing, commit = hub_cache.locate_cached(source, repo_path)
        with open_files(listing.root) as cached, _complete(repo_path):
            yield listing, cached, commit
        return
    from tieconv.sources.hub.files import HubFiles
    from tieconv.sources.hub.listing import look_up

    client = hub_client.Client()
    snapshot = look_up(client, source, repo_path)
    with HubFiles(client, snapshot, tick, proving=proving) as files:
        yield snapshot.listing, files, snapshot.commit
