"""Upload files to the Hub in one commit or one pull request, based on the compared commit."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

from tieconv.checkpoint.model_files import Listing
from tieconv.checkpoint.results.push import FileChange, Push
from tieconv.errors import RefusedError, TieconvError
from tieconv.sources.digest import hash_file, kind_of
from tieconv.sources.hub.errors import Transport, status_of, translate
from tieconv.sources.hub.listing import Snapshot
from tieconv.sources.hub.session import transferring
from tieconv.sources.local.files import FileSet
from tieconv.text import shown
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
    """Upload the changes, and return the URL of the pull request or commit. Raises `TieconvError`."""
    operations = [_operation(change, root) for change in push.changes]
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
    return str(done.pr_url if push.pull_request else done.commit_url)


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
        return UploadError(
            f"{label}: the upload failed", "try again, or upload without xet: HF_HUB_DISABLE_XET=1", "hub.upload"
        )
    status = status_of(error)
    if status in (401, 403):
        return RefusedError(
            f"{label}: your token has no write access",
            "log in with a write token: hf auth login",
            "hub.read-only",
        )
    if status in (409, 412):
        return RefusedError(f"{shown(label)} has a new commit since tieconv compared it", "push again", "hub.moved")
    return translate(error, label)
