"""Upload files to the Hub in one commit or one pull request, based on the compared commit."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from fnmatch import fnmatchcase

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.results.push import FileChange, Push
from tieconv.errors import RefusedError, StalePlanError, TieconvError, UnsafePathError
from tieconv.sources.digest import hash_file, kind_of
from tieconv.sources.hub.client import Snapshot
from tieconv.sources.hub.session import Transport, status_of, transferring, translate
from tieconv.sources.local import FileSet, follow, open_files
from tieconv.text import Hint, count, option, shown
from tieconv.version import VERSION


class UploadError(TieconvError):
    """The upload failed, and nothing was committed."""


def changes(
    snapshot: Snapshot, local: Listing, files: FileSet, used: Iterable[str], kept_back: Collection[str] = ()
) -> tuple[FileChange, ...]:
    """Return the files of ``local`` that are new or different by size and hash, except ``kept_back``.

    Names in ``used`` that are not in ``local`` are deleted.
    """
    offered = [name for name in local.entries if name not in kept_back]
    return (
        *(change for name in offered if (change := _change(snapshot, local, files, name))),
        *(FileChange("delete", name, snapshot.stored[name].size) for name in sorted(set(used) - set(local.entries))),
    )


def _change(snapshot: Snapshot, local: Listing, files: FileSet, name: str) -> FileChange | None:
    size, stored = local.entries[name], snapshot.stored.get(name)
    if stored is None:
        return FileChange("add", name, size)
    if stored.size == size and hash_file(files, name, kind_of(stored.digest)) == stored.digest:
        return None
    return FileChange("replace", name, size)


def upload(push: Push, root: str) -> str:
    """Upload the changes, and return the URL of the pull request or commit.

    Raises `StalePlanError` for a file that is not the planned one, before the upload or after it. The commit then
    exists.
    """
    _check_unchanged(push, root)
    operations = [_operation(change, root) for change in push.changes]  # hashes the files
    _check_unchanged(push, root)
    api = HfApi(library_name="tieconv", library_version=VERSION)
    label = f"hf://{push.repo}"
    with transferring():
        try:
            done = api.create_commit(
                push.repo,
                operations,
                commit_message=push.title,
                commit_description=push.description,
                revision=push.revision,
                create_pr=push.pull_request,
                parent_commit=push.commit,
            )
        except TieconvError:
            raise
        except Exception as error:  # noqa: BLE001 - the errors below huggingface_hub are not documented
            raise _untaken(_cause(error), label) from None
    url = str(done.pr_url if push.pull_request else done.commit_url)
    _check_unchanged(push, root, url)
    return url


def _check_unchanged(push: Push, root: str, url: str = "") -> None:
    """Raise `StalePlanError` if a file to upload is not the planned one. ``url`` is that of an existing commit."""
    with open_files(root) as files:
        for name, state in push.states.items():
            try:
                same = state.is_still(files.state(name))
            except TieconvError:
                same = False
            if not same and url:
                problem = f"{shown(name)} changed during the upload, so its description may not match {shown(url)}"
                raise StalePlanError(problem, "close or revert it, then push again", "push.changed")
            if not same:
                problem = f"{shown(name)} changed after the plan was made, so nothing was pushed"
                raise StalePlanError(problem, "push again", "plan.stale")


def _operation(change: FileChange, root: str) -> CommitOperationAdd | CommitOperationDelete:
    if change.kind == "delete":
        return CommitOperationDelete(change.name, is_folder=False)
    return CommitOperationAdd(change.name, os.path.join(root, change.name))


def _cause(error: BaseException) -> Exception:
    """Return the HTTP or connection error behind an error of an upload, or another error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, Transport):
            return cause
        cause = cause.__cause__
    return RuntimeError()


def _untaken(error: Exception, label: str) -> TieconvError:
    if not isinstance(error, Transport):
        problem = f"{label}: the upload failed"
        return UploadError(problem, "try again, or upload without xet: HF_HUB_DISABLE_XET=1", "hub.upload")
    status = status_of(error)
    if status in (401, 403):
        problem = f"{label}: your token has no write access"
        return RefusedError(problem, "log in with a write token: hf auth login", "hub.read-only")
    if status in (409, 412):
        return RefusedError(f"{shown(label)} has a new commit since tieconv compared it", "push again", "hub.moved")
    return translate(error, label)


_PRIVATE = (
    ".*", "__pycache__", "*.pem", "*.key", "*.p12", "*.pfx", "*.ppk", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "*credentials*", "secrets.*", "*service[-_]account*.json", "kubeconfig", "token", "token.txt",
    "hf_token", "hf_token.*", "access_token*", "api_key*", "stored_tokens",
)  # fmt: skip
"""Names of files and directories, in any case."""
_FORBIDDEN = frozenset({".git", ".cache"})
"""Directories that huggingface_hub never uploads."""


def is_private(name: str) -> bool:
    """Return whether a file, or a directory above it, has a private name."""
    return any(fnmatchcase(part, pattern) for part in name.lower().split("/") for pattern in _PRIVATE)


def private(names: Iterable[str], include: Sequence[str]) -> frozenset[str]:
    """Return the private ``names`` that ``include`` does not list as a file or a directory.

    Raises `RefusedError` for an entry of ``include`` that matches no file, or that the Hub refuses.
    """
    every = list(names)
    for wanted in include:
        if _FORBIDDEN.intersection(wanted.split("/")):
            problem = f"{shown(wanted)} cannot be pushed: the Hub refuses files of a .git or .cache directory"
            raise RefusedError(problem, Hint("remove it from ", option("include")), "push.include")
        if not any(_stands_for(wanted, name) for name in every):
            hint = "give a path relative to the model directory"
            raise RefusedError(f"--include {shown(wanted)} matches no file", hint, "push.include")
    return frozenset(
        name
        for name in every
        if is_private(name) and not any(_stands_for(included_name, name) for included_name in include)
    )


def _stands_for(wanted: str, name: str) -> bool:
    return name == wanted or name.startswith(f"{wanted.rstrip('/')}/")


def grouped(names: Iterable[str], root: str) -> tuple[str, ...]:
    """Return the names for people. Counts the files of private directories and adds the .git directory."""
    several = Counter(_group(name) for name in names)
    groups = [f"{name} ({count(number, 'file')})" if name.endswith("/") else name for name, number in several.items()]
    return tuple(sorted([*groups, *([".git/"] if os.path.lexists(os.path.join(root, ".git")) else [])]))


def _group(name: str) -> str:
    parts = name.split("/")
    for number in range(1, len(parts)):
        if is_private(parts[number - 1]):
            return "/".join(parts[:number]) + "/"
    return name


def refuse_special(root: str, names: Iterable[str]) -> None:
    """Raise `RefusedError` for the first name that is not a regular file of the directory ``root``."""
    for name in names:
        path = os.path.join(root, name)
        hint = "replace it with the file itself, or move it out of the model directory"
        raise RefusedError(f"{shown(name)} {_description(path, root)}", hint, "push.directory")


def _description(path: str, root: str) -> str:
    if not os.path.islink(path):
        return "is not a regular file"
    try:
        target = follow(path, root)
    except UnsafePathError:
        return f"is a symlink that points outside the model directory, to {shown(os.readlink(path))}"
    if os.path.isdir(target):
        return "is a symlink to a directory"
    return "is a symlink to a missing file"
