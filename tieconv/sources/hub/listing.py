"""List the files of a repository at one commit, with sizes and hashes, in one request."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError, UnsafePathError
from tieconv.sources import is_inside
from tieconv.sources.hub.client import Client
from tieconv.sources.hub.repo_path import RepoPath
from tieconv.sources.local.files import MAX_FILES
from tieconv.text import shown

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@record
class Stored:
    """One file: its size in bytes, its SHA-256 (LFS and xet files only) and its git blob hash."""

    size: int
    sha256: str | None
    blob: str

    @property
    def digest(self) -> str:
        """The hash of its content. Its length shows the kind."""
        return self.sha256 or self.blob


@record
class Snapshot:
    """A repository at a commit."""

    repo: str
    commit: str
    listing: Listing
    stored: Mapping[str, Stored]
    below: str = ""  # the directory that names are relative to, with its slash

    def label(self, name: str) -> str:
        """Return the file's name for messages."""
        return f"{shown(self.listing.source)}: {shown(name)}"

    def file(self, name: str) -> Stored:
        """Return the stored file ``name``. Raises `UnreadableError` if the repository has no such file."""
        try:
            return self.stored[name]
        except KeyError:
            problem = f"{self.label(name)} is not in the repository"
            raise UnreadableError(problem, "check the name", "hub.no-file") from None


def look_up(client: Client, source: str, repo_path: RepoPath) -> Snapshot:
    """Resolve ``repo_path`` to a commit and list its files. Raises `UnreadableError`."""
    info = client.call(
        shown(source),
        lambda: client.api.model_info(
            repo_path.repo, revision=repo_path.revision, files_metadata=True, timeout=_timeout()
        ),
    )
    commit = info.sha
    if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
        raise _malformed(source, "the response has no commit hash")
    below, named, stored = _at(source, repo_path.path, _stored(source, info.siblings or ()))
    deep = named is None or named.endswith(".index.json")
    entries = {name: stored[name].size for name in sorted(stored) if deep or "/" not in name}
    root = f"hf://{repo_path.repo}@{commit}/{below}".removesuffix("/")
    return Snapshot(repo_path.repo, commit, Listing(source, root, named, entries, ()), stored, below)


def _at(source: str, path: str, stored: dict[str, Stored]) -> tuple[str, str | None, dict[str, Stored]]:
    """Return the directory of ``path``, the file name in it (or ``None``), and the stored files below it."""
    if path in stored:
        directory, _, named = path.rpartition("/")
    else:
        directory, named = path, ""
    below = f"{directory}/" if directory else ""
    inside = {name.removeprefix(below): file for name, file in stored.items() if name.startswith(below)}
    if path and not inside:
        raise UnreadableError(f"{shown(source)}: no such file in the repository", "check the path", "hub.no-file")
    return below, named or None, inside


def _timeout() -> float:
    from huggingface_hub import constants

    return float(constants.HF_HUB_ETAG_TIMEOUT)


def _stored(source: str, siblings: Iterable[Any]) -> dict[str, Stored]:
    files: dict[str, Stored] = {}
    for sibling in siblings:
        name, size, lfs = sibling.rfilename, sibling.size, sibling.lfs
        if not isinstance(name, str) or not is_inside(name):
            raise UnsafePathError(
                f"{shown(source)} lists {shown(name)}, which is not a path inside a repository",
                "do not trust this endpoint",
                "hub.escape",
            )
        if type(size) is not int or size < 0:
            raise _malformed(source, f"the response has no size for {shown(name)}")
        sha256 = lfs.sha256 if lfs is not None else None
        if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256) and lfs.size == size):
            raise _malformed(source, f"the response has contradictory entries for {shown(name)}")
        if sha256 is None and not (isinstance(sibling.blob_id, str) and _COMMIT.fullmatch(sibling.blob_id)):
            raise _malformed(source, f"the response has no hash for {shown(name)}")
        files[name] = Stored(size, sha256, str(sibling.blob_id))
        if len(files) > MAX_FILES:
            raise UnreadableError(
                f"{shown(source)} holds more than {MAX_FILES:,} files",
                "fetch one model with hf download and give its directory",
                "hub.too-large",
            )
    return files


def _malformed(source: str, why: str) -> UnreadableError:
    return UnreadableError(f"{shown(source)}: {why}", "check HF_ENDPOINT and proxies", "hub.malformed")
