"""Own a new prefix while a model is written below it, and make the model visible last."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.errors import DestinationError, RefusedError, TieconvError, VerificationError
from tieconv.execute.proof.promises import check_promises
from tieconv.execute.refusals import check_contents
from tieconv.execute.remote.remote_files import published
from tieconv.execute.target import is_file
from tieconv.sources.objects.object_path import ObjectPath
from tieconv.text import shown
from tieconv.version import VERSION

if TYPE_CHECKING:
    from tieconv.sources.objects.object_listing import StoredObject
    from tieconv.sources.objects.object_writer import ObjectWriter

T = TypeVar("T")
CLAIM = ".tieconv-write"
"""The object that keeps other writes away from the prefix until the model is complete."""
_WORKERS = 8
_HEADER = 64 * 1024
_DOCUMENT = 1 << 20
"""The largest companion that an inspection of headers reads, in bytes."""
_HINT = "tieconv removed what it wrote; run the command again, and report this if it repeats"


def check_remote_target(
    plan: Plan,
    out: str,
    *,
    in_place: bool = False,
    overwrite: bool = False,
    hardlink: bool = False,
    resume: bool = False,
) -> None:
    """Raise what stops a write to an object store before any request.

    Raises `RefusedError` or `DestinationError`.
    """
    check_contents(plan)
    if in_place or overwrite or hardlink:
        option = "--in-place" if in_place else "--overwrite" if overwrite else "--hardlink"
        raise DestinationError(
            f"{shown(out)}: an object store gets a model only below a new prefix, so {option} cannot be used",
            "give a new prefix with -o",
            "out.new-prefix",
        )
    if resume:
        raise DestinationError(
            f"{shown(out)}: tieconv resumes only a write to a local path",
            "give a local path with -o",
            "out.resume",
        )
    if is_file(plan) or not published(plan):
        raise RefusedError(
            f"{shown(plan.checkpoint.source)} has no config or index that tieconv can write last",
            "give a model directory with its config, or write to a local path",
            "out.remote-file",
        )


def check_free(writer: ObjectWriter) -> None:
    """Raise `DestinationError` if there are objects below the prefix."""
    listed = writer.listed()
    where = shown(str(writer.path))
    if CLAIM in listed:
        raise DestinationError(
            f"{where} holds the files of a write that was killed or still runs",
            f"give another -o; after a killed write, first remove all objects below {where}",
            "out.unfinished",
        )
    if listed:
        raise DestinationError(
            f"{where} exists, and an object store gets a model only below a new prefix",
            "give another -o",
            "out.exists",
        )


class NewPrefix:
    """The prefix of one write. ``written`` are the names that this write may remove again."""

    def __init__(self, writer: ObjectWriter, plan: Plan) -> None:
        self.writer, self.plan = writer, plan
        self.written: set[str] = set()
        self._claim = f"{VERSION} {secrets.token_hex(16)}\n".encode()

    def claim(self) -> None:
        """Take the prefix, or raise `DestinationError`."""
        check_free(self.writer)
        waiting([partial(self.create, CLAIM, self._claim, self.writer.create)])

    def create(self, name: str, data: bytes, put: Callable[[str, bytes], None]) -> None:
        """Write a new object with ``put``. Raises `DestinationError` if another program wrote it.

        A repeated request finds the object of its first attempt if the response to that was lost.
        """
        self.written.add(name)
        try:
            put(name, data)
        except DestinationError:
            try:
                self.writer.check_own(name, data)
            except DestinationError:
                self.written.discard(name)
                raise

    def listed(self, expected: Mapping[str, int]) -> dict[str, StoredObject]:
        """Return what is stored, without the claim. Raises `VerificationError` if names or sizes are not as planned."""
        stored = self.writer.listed()
        if CLAIM not in stored:
            raise DestinationError(
                f"{shown(str(self.writer.path))}: another program removed {CLAIM} while tieconv wrote",
                "give another -o",
                "out.replaced",
            )
        del stored[CLAIM]
        sizes = {name: entry.size for name, entry in stored.items()}
        for name in sorted({*sizes, *expected}):
            if sizes.get(name) != expected.get(name):
                raise VerificationError(
                    f"{self.writer.label(name)} has {sizes.get(name, 0):,} bytes, but the plan has "
                    f"{expected.get(name, 0):,}",
                    _HINT,
                    "verify.names",
                )
        return stored

    def inspect(
        self,
        stored: Mapping[str, StoredObject],
        documents: Mapping[str, bytes],
        reinspect: Callable[[Path], Inspection],
    ) -> None:
        """Inspect the headers as the store has them, with the documents that are still to be written."""
        from tieconv.sources.temporary import temporary_directory
        from tieconv.sources.user_files import new_file, write_bytes

        with temporary_directory() as directory:
            for name, entry in stored.items():
                path = Path(directory, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                if name.endswith(".safetensors"):
                    with new_file(path) as file:
                        file.write(self._header(name, entry))
                        file.truncate(entry.size)
                elif name.endswith(".json") and entry.size <= _DOCUMENT:
                    with new_file(path) as file:
                        file.write(self.writer.fetch(name, entry, 0, entry.size) if entry.size else b"")
            for name, data in documents.items():
                write_bytes(os.path.join(directory, name), data)
            check_promises(self.plan.promises, Path(directory), reinspect)

    def _header(self, name: str, entry: StoredObject) -> bytes:
        first = self.writer.fetch(name, entry, 0, min(_HEADER, entry.size))
        size = min(8 + int.from_bytes(first[:8], "little"), entry.size)
        return first[:size] if size <= len(first) else first + self.writer.fetch(name, entry, len(first), size)

    def publish(
        self,
        stored: Mapping[str, StoredObject],
        documents: Mapping[str, bytes],
        create: Callable[[str, bytes], None],
    ) -> None:
        """Write the config, then the index, if nothing else below the prefix has changed; then remove the claim."""
        if self.listed({name: entry.size for name, entry in stored.items()}) != stored:
            raise DestinationError(
                f"{shown(str(self.writer.path))}: another program changed an object while tieconv wrote",
                "give another -o",
                "out.replaced",
            )
        for name in published(self.plan):
            waiting([partial(self.create, name, documents[name], create)])
        self.written.clear()
        with suppress(TieconvError):  # the model is complete; docs/object-stores.md names the file
            self.writer.delete([CLAIM])

    def discard(self) -> None:
        """Remove what this write made, the documents that make it visible first and the claim last."""
        first = [name for name in reversed(published(self.plan)) if name in self.written]
        rest = sorted(self.written.difference(first, [CLAIM]))
        with suppress(TieconvError):  # the first error is the one to report, and the claim says that files are left
            self.writer.delete([*first, *rest, *self.written.intersection([CLAIM])])
        self.written.clear()


def waiting(works: Iterable[Callable[[], T]]) -> list[T]:
    """Run requests in threads. On an error or a signal, wait for those that run: none may follow the cleanup."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        futures = [pool.submit(work) for work in works]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def documents(plan: Plan, read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return the documents that are written last. ``read`` returns an unchanged one."""
    texts = {text.name: text.text.encode() for text in plan.texts}
    return {name: texts[name] if name in texts else read(name) for name in published(plan)}


def writer_of(out: str) -> ObjectWriter:
    """Return the writer of a prefix. Raises `MissingPackageError` without the packages of object stores."""
    from tieconv.sources.objects.object_path import parse
    from tieconv.sources.objects.object_source import require

    path: ObjectPath = parse(out)
    require()
    from tieconv.sources.objects.object_writer import ObjectWriter

    return ObjectWriter(path)


def differs(label: str) -> VerificationError:
    """Return the error for bytes that the store does not return as they were sent."""
    return VerificationError(f"{label} differs from what tieconv wrote", _HINT, "verify.bytes")


def names_of(entries: Iterable[tuple[str, int]], plan: Plan) -> dict[str, int]:
    """Return names and sizes of all files that are written before the documents that make the model visible."""
    closing = published(plan)
    return {name: size for name, size in entries if name not in closing}
