"""How models on the Hub are named: ``hf://org/name[@revision][/path]``, and patterns of one owner's models."""

from __future__ import annotations

import re

from tieconv.checkpoint.value_type import record
from tieconv.errors import UnreadableError
from tieconv.sources import PREFIX, is_hub
from tieconv.text import shown

_KINDS = ("datasets/", "spaces/", "buckets/")
"""What else there is on the Hub beside models."""
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_NAMED = re.compile(
    r"(?P<repo>[^/@]*/[^/@]*)(?P<at>@(?P<revision>refs/(?:pr|convert)/[^/@]+|[^/]*))?(?:/(?P<path>.+))?", re.DOTALL
)
"""As huggingface_hub names files: of a branch whose name holds a slash that is written ``%2F``."""
_PATTERN = re.compile(rf"({_PART})/([A-Za-z0-9._?*-]{{1,96}})")


@record
class RepoPath:
    """A repository and, where they were given, a branch, a tag or a commit, and a file or directory in it."""

    repo: str
    revision: str | None = None
    path: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision.replace('/', '%2F')}" if self.revision else ""
        return f"{PREFIX}{self.repo}{revision}{f'/{self.path}' if self.path else ''}"


def parse(source: str) -> RepoPath:
    """``hf://org/name[@revision][/path]``. Raises `UnreadableError` for anything else."""
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
        raise UnreadableError(f"{shown(source)} names no model of the Hub", _SYNTAX, "hub.name")
    revision = match["revision"].replace("%2F", "/") if match["at"] else None
    if revision is not None and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        raise UnreadableError(f"{shown(source)} names no revision", _SYNTAX, "hub.revision-name")
    path = match["path"] or ""
    if path and not is_inside(path):
        raise UnreadableError(f"{shown(source)} names no file of a repository", _SYNTAX, "hub.path")
    return RepoPath(repo, revision, path)


_SYNTAX = "write hf://org/name, hf://org/name@revision (a branch, a tag or a commit), or a file below: …/model.gguf"


def is_inside(name: str) -> bool:
    """Whether ``name`` is a path inside a repository."""
    parts = name.split("/")
    return "\\" not in name and "\0" not in name and not any(part in ("", ".", "..") for part in parts)


def is_pattern(source: str) -> bool:
    """Whether MODEL stands for several models of one owner (``hf://org/*``)."""
    return is_hub(source) and bool(set("*?") & set(source))


def parse_pattern(source: str) -> tuple[str, str]:
    """The owner of ``hf://org/PATTERN``, and the pattern of the names. Raises `UnreadableError`."""
    match = _PATTERN.fullmatch(source.removeprefix(PREFIX))
    if match is None:
        raise UnreadableError(
            f"{shown(source)} is no pattern of models", "write hf://org/* or hf://org/prefix-*", "hub.pattern"
        )
    return match[1], match[2]
