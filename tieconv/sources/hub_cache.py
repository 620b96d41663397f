"""The cache of huggingface_hub: snapshots that are read where they lie, and fetched there. Never written into."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from huggingface_hub import constants, snapshot_download
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from tieconv.checkpoint.records import Listing
from tieconv.errors import UnreadableError
from tieconv.sources.hub import Place
from tieconv.sources.hub_errors import Transport, translate
from tieconv.sources.local import locate
from tieconv.text import shell_word, shown
from tieconv.version import VERSION

_COMMIT = re.compile(r"[0-9a-f]{40}")


def snapshot(repo: str, commit: str) -> str:
    """Where the cache keeps a commit, be it there or not."""
    return os.path.join(_folder(repo), "snapshots", commit)


def _folder(repo: str) -> str:
    return os.path.join(constants.HF_HUB_CACHE, repo_folder_name(repo_id=repo, repo_type="model"))


def locate_cached(source: str, place: Place) -> tuple[Listing, str]:
    """The snapshot that the cache holds of a model, and its commit; no request is made. Raises `UnreadableError`."""
    commit = _resolve(place)
    directory = snapshot(place.repo, commit) if commit else ""
    if commit is None or not os.path.isdir(directory):
        at = f" at {shown(place.revision)}" if place.revision else ""
        raise UnreadableError(
            f"hf://{place.repo}{at} is not in the local cache, and HF_HUB_OFFLINE forbids the network",
            f"unset HF_HUB_OFFLINE, or fetch it first: hf download {shell_word(place.repo)}",
            "hub.not-cached",
        )
    path = os.path.join(directory, place.path) if place.path else directory
    if not os.path.exists(path):
        raise UnreadableError(
            f"{shown(source)} is not in the local cache, and HF_HUB_OFFLINE forbids the network",
            f"unset HF_HUB_OFFLINE, or fetch it first: hf download {shell_word(place.repo)} {shell_word(place.path)}",
            "hub.not-cached",
        )
    return replace(locate(path), source=source), commit


def _resolve(place: Place) -> str | None:
    """The commit of a revision as the cache last saw it."""
    revision = place.revision or constants.DEFAULT_REVISION
    if _COMMIT.fullmatch(revision):
        return revision
    try:
        with open(os.path.join(_folder(place.repo), "refs", revision), encoding="ascii") as file:
            commit = file.read(64).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return commit if _COMMIT.fullmatch(commit) else None


def fetch(listing: Listing, place: Place, names: Iterable[str]) -> str:
    """The model in the cache, the files ``names`` of it fetched there. Raises `UnreadableError`."""
    inside = place.path if listing.named is None else os.path.dirname(place.path)
    wanted = [_literal(os.path.join(inside, name)) for name in names]
    with bars():
        try:
            root = snapshot_download(
                place.repo,
                revision=place.revision,
                allow_patterns=wanted,
                library_name="tieconv",
                library_version=VERSION,
            )
        except Transport as error:
            raise translate(error, shown(listing.source)) from None
    return os.path.join(root, place.path) if place.path else str(root)


def _literal(name: str) -> str:
    """A pattern that fits the name alone."""
    return re.sub(r"([*?\[])", r"[\1]", name)


@contextmanager
def bars() -> Iterator[None]:
    """Within it, huggingface_hub's progress bars on a terminal only."""
    hide = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if hide:
        disable_progress_bars()
    try:
        yield
    finally:
        if hide:
            enable_progress_bars()
