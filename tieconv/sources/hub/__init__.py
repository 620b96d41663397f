"""Read models on the Hugging Face Hub, by ranges and through the cache of huggingface_hub."""

from __future__ import annotations

import re

from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.sources import PREFIX, is_inside
from tieconv.text import shown

# Parse names of models on the Hub, ``hf://org/name[@revision][/path]``, and patterns of one owner's models.


_KINDS = ("datasets/", "spaces/", "buckets/")
"""Repositories on the Hub that are not models."""
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_NAMED = re.compile(
    r"(?P<repo>[^/@]*/[^/@]*)(?P<at>@(?P<revision>refs/(?:pr|convert)/[^/@]+|[^/]*))?(?:/(?P<path>.+))?", re.DOTALL
)
"""The syntax of huggingface_hub. A slash in a branch name is written ``%2F``."""
_PATTERN = re.compile(rf"({_PART})/([A-Za-z0-9._?*-]{{1,96}})")


@record
class RepoPath:
    """A repository, with an optional revision (branch, tag or commit) and an optional path in it."""

    repo: str
    revision: str | None = None
    path: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        return f"{PREFIX}{self.repo}{revision}{f'/{self.path}' if self.path else ''}"


def parse(source: str) -> RepoPath:
    """Parse ``hf://org/name[@revision][/path]``. Raises `UnreadableError` for other text."""
    match = _NAMED.fullmatch(source.removeprefix(PREFIX))
    repo = match["repo"] if match else ""
    if (
        match is None
        or not _REPOSITORY.fullmatch(repo)
        or ".." in repo
        or "--" in repo
        or repo.endswith(".git")
        or repo.startswith(_KINDS)
    ):
        raise UnreadableError(f"{shown(source)} is not a valid model name of the Hub", _SYNTAX, "hub.name")
    revision = match["revision"].replace("%2F", "/") if match["at"] else None
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        raise UnreadableError(f"{shown(source)} has an invalid revision", _SYNTAX, "hub.revision-name")
    path = match["path"] or ""
    if path and not is_inside(path):
        raise UnreadableError(f"{shown(source)} has an invalid file path", _SYNTAX, "hub.path")
    return RepoPath(repo, revision, path)


_SYNTAX = "write hf://org/name or hf://org/name@revision (a branch, a tag or a commit), and /path for a file in it"


def parse_pattern(source: str) -> tuple[str, str]:
    """Return the owner and the name pattern of ``hf://org/PATTERN``. Raises `UnreadableError`."""
    match = _PATTERN.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        problem = f"{shown(source)} is not a pattern of models"
        raise UnreadableError(problem, "write hf://org/* or hf://org/prefix-*", "hub.pattern")
    return match[1], match[2]
