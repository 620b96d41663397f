"""Own a new prefix while a model is written below it, and make the model visible last."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import InlineBytes, Plan, RemoteTransfer
from tieconv.errors import DestinationError, RefusedError, TieconvError, VerificationError
from tieconv.execute import remote_files as multipart
from tieconv.execute.publish import interrupts
from tieconv.execute.target import check_contents, is_file, linked_names, stale
from tieconv.execute.verify import check_promises
from tieconv.sources import is_object
from tieconv.sources.objects import parse
from tieconv.sources.objects.source import CopyUnsupportedError, open_model, require_copier
from tieconv.text import ANOTHER_OUT, Hint, count, option, shown
from tieconv.version import VERSION

if TYPE_CHECKING:
    from tieconv.sources.objects.client import ObjectFiles, StoredObject
    from tieconv.sources.objects.s3_copy import S3Copier
    from tieconv.sources.objects.writer import ObjectWriter


T = TypeVar("T")
CLAIM = ".tieconv-write"
"""The object that keeps other writes away from the prefix until the model is complete."""
_WORKERS = 8
_HEADER = 64 * 1024
_DOCUMENT = 1 << 20
"""The largest companion that an inspection of headers reads, in bytes."""
_HINT = "tieconv removed what it wrote; run the command again, and report this if it repeats"


def check_remote_target(plan: Plan, out: str, options: Mapping[str, object]) -> None:
    """Raise what stops a write to an object store before any request.

    Raises `RefusedError` or `DestinationError`.
    """
    check_contents(plan)
    local = next((name for name in ("in_place", "overwrite", "hardlink") if options.get(name)), None)
    if local is not None:
        raise DestinationError(
            f"{shown(out)}: an object store gets a model only below a new prefix, so {option(local)} cannot be used",
            Hint("give a new prefix with ", option("out")),
            "out.new-prefix",
        )
    source, final = plan.checkpoint.root, parse(out)
    if is_object(source) and f"{final}/".startswith(f"{parse(source)}/"):
        problem = f"{shown(out)} is inside the model {shown(source)}"
        raise DestinationError(problem, Hint("give a path outside the model with ", option("out")), "out.inside-source")
    if options.get("resume"):
        problem = f"{shown(out)}: tieconv resumes only a write to a local path"
        raise DestinationError(problem, Hint("give a local path with ", option("out")), "out.resume")
    if is_file(plan) or not multipart.published(plan):
        problem = f"{shown(plan.checkpoint.source)} has no config or index that tieconv can write last"
        hint = "give a model directory with its config, or write to a local path"
        raise RefusedError(problem, hint, "out.remote-file")


def check_free(writer: ObjectWriter) -> None:
    """Raise `DestinationError` if there are objects below the prefix."""
    listed = writer.listed()
    where = shown(str(writer.path))
    if CLAIM in listed:
        problem = f"{where} holds the files of a write that was killed or still runs"
        hint = Hint(ANOTHER_OUT, f"; after a killed write, first remove all objects below {where}")
        raise DestinationError(problem, hint, "out.unfinished")
    if listed:
        problem = f"{where} exists, and an object store gets a model only below a new prefix"
        raise DestinationError(problem, ANOTHER_OUT, "out.exists")


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
            problem = f"{shown(str(self.writer.path))}: another program removed {CLAIM} while tieconv wrote"
            raise DestinationError(problem, ANOTHER_OUT, "out.replaced")
        del stored[CLAIM]
        sizes = {name: entry.size for name, entry in stored.items()}
        for name in sorted({*sizes, *expected}):
            if sizes.get(name) != expected.get(name):
                problem = f"{self.writer.label(name)} has {count(sizes.get(name, 0), 'byte')}"
                raise VerificationError(f"{problem}, but the plan has {expected.get(name, 0):,}", _HINT, "verify.names")
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
        self, stored: Mapping[str, StoredObject], documents: Mapping[str, bytes], create: Callable[[str, bytes], None]
    ) -> None:
        """Write the config, then the index, if nothing else below the prefix has changed; then remove the claim."""
        if self.listed({name: entry.size for name, entry in stored.items()}) != stored:
            problem = f"{shown(str(self.writer.path))}: another program changed an object while tieconv wrote"
            raise DestinationError(problem, ANOTHER_OUT, "out.replaced")
        for name in multipart.published(self.plan):
            waiting([partial(self.create, name, documents[name], create)])
        self.written.clear()
        with suppress(TieconvError):  # the model is complete; docs/object-stores.md names the file
            self.writer.delete([CLAIM])

    def discard(self) -> None:
        """Remove what this write made, the documents that make it visible first and the claim last."""
        first = [name for name in reversed(multipart.published(self.plan)) if name in self.written]
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
    return {name: texts[name] if name in texts else read(name) for name in multipart.published(plan)}


def differs(label: str) -> VerificationError:
    """Return the error for bytes that the store does not return as they were sent."""
    return VerificationError(f"{label} differs from what tieconv wrote", _HINT, "verify.bytes")


def names_of(entries: Iterable[tuple[str, int]], plan: Plan) -> dict[str, int]:
    """Return names and sizes of all files that are written before the documents that make the model visible."""
    closing = multipart.published(plan)
    return {name: size for name, size in entries if name not in closing}


Progress = Callable[[int, int], None]
_BLOCK = 16 << 20
"""Bytes of each side in one step of a comparison."""


def server_copy(
    plan: Plan,
    writer: ObjectWriter,
    reinspect: Callable[[Path], Inspection],
    *,
    full: bool = False,
    read: int = 0,
    progress: Progress | None = None,
) -> tuple[RemoteTransfer, tuple[str, ...]]:
    """Write the plan below the writer's prefix; return the moved bytes and notes.

    ``read`` counts the bytes that the plan's proofs have read. With ``full``, all copied bytes are compared too. Raises
    `CopyUnsupportedError` if the server cannot copy ranges. After any error the prefix is empty again.
    """
    require_copier()
    from tieconv.sources.objects.s3_copy import S3Copier

    with interrupts() as signals, open_model(plan.checkpoint.root) as (listing, files, fingerprint):
        if fingerprint != plan.checkpoint.revision:
            raise stale(listing.source)
        prefix = NewPrefix(writer, plan)
        job = _Copy(plan, prefix, files, S3Copier(writer.path.bucket), progress)
        try:
            prefix.claim()
            job.write()
            stored, closing = job.verify(reinspect, full=full)
            with signals.shielded():
                prefix.publish(stored, closing, job.create)
        except BaseException:
            with signals.shielded():
                job.abort()
                prefix.discard()
            raise
        received = read + files.client.bytes + writer.bytes
        transfer = RemoteTransfer("server_copy", received, job.uploaded + job.last_bytes, job.copied)
        return transfer, job.notes()


@dataclass
class _Copy:
    plan: Plan
    prefix: NewPrefix
    files: ObjectFiles
    copier: S3Copier
    progress: Progress | None
    uploaded: int = 0
    copied: int = 0
    last_bytes: int = 0
    digests: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    uploads: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.writer = self.prefix.writer
        self.bucket = self.files.listed.path.bucket
        self.made = [multipart.remote_file(self.plan, output) for output in self.plan.weights]
        closing = multipart.published(self.plan)
        self.links = [name for name in linked_names(self.plan) if name not in closing]
        self.texts = {text.name: text.text.encode() for text in self.plan.texts if text.name not in closing}
        self.total = sum(file.size for file in self.made) + sum(map(self.files.size, self.links))

    def write(self) -> None:
        """Write everything but the documents that make the model visible."""
        for key, upload in self.copier.unfinished(self.writer.path.key(""), self.writer.label("")):
            self.copier.abort(key, upload)  # of a killed write: this one owns the prefix
        for file in self.made:
            self._multipart(file, self._like(file.name))
        big = [name for name in self.links if self.files.size(name) > multipart.S3.copy]
        for name in big:
            whole = ByteRange(name, 0, self.files.size(name))
            parts = tuple(multipart.split_parts([(whole.size, True)], multipart.S3))
            self._multipart(multipart.RemoteFile(name, (whole,), parts), self._attributes(name))
        waiting(partial(self._link, name) for name in self.links if name not in big)
        for name, data in self.texts.items():
            waiting([partial(self.prefix.create, name, data, self.create)])
            self.digests[name, 0, len(data)] = hashlib.sha256(data).digest()

    def _like(self, name: str) -> dict[str, Any]:
        """Return the attributes of the file that an output replaces, else of the first weight file."""
        known = self.plan.fingerprint
        return self._attributes(name if name in known else self.plan.checkpoint.files[0].name)

    def _attributes(self, name: str) -> dict[str, Any]:
        return self.copier.attributes(self.bucket, self.files.remote(name))

    def create(self, name: str, data: bytes) -> None:
        """Write a new object with the attributes of the file that it replaces."""
        attributes = self._attributes(name) if name in self.files.listed.stored else {}
        self.copier.create(self.writer.path.key(name), self.writer.label(name), data, attributes)
        self.last_bytes += len(data)

    def _link(self, name: str) -> None:
        source = self.files.remote(name)
        self.prefix.written.add(name)
        self.copier.copy(self.writer.path.key(name), self.bucket, source, self._attributes(name))
        self._tick(copied=source.size)

    def _multipart(self, file: multipart.RemoteFile, attributes: dict[str, Any]) -> None:
        key, label = self.writer.path.key(file.name), self.writer.label(file.name)

        def start() -> str:
            upload = self.uploads[key] = self.copier.start(key, label, attributes)
            return upload

        (upload,) = waiting([start])
        etags = waiting(partial(self._part, file, upload, number, part) for number, part in enumerate(file.parts, 1))
        self.prefix.written.add(file.name)
        waiting([partial(self.copier.complete, key, label, upload, etags)])
        del self.uploads[key]

    def _part(self, file: multipart.RemoteFile, upload: str, number: int, part: multipart.Part) -> str:
        key = self.writer.path.key(file.name)
        if part.piece is not None:
            (span,) = file.spans(part.start, part.end)
            assert isinstance(span, ByteRange)
            source = self.files.remote(span.file)
            etag = self.copier.copy_part(key, upload, number, self.bucket, source, span.start, span.end)
            self._tick(copied=part.size)
            return etag
        data = b"".join(map(self._bytes, file.spans(part.start, part.end)))
        etag = self.copier.upload_part(key, self.writer.label(file.name), upload, number, data)
        self.digests[file.name, part.start, part.end] = hashlib.sha256(data).digest()
        self._tick(uploaded=part.size)
        return etag

    def _bytes(self, span: Any) -> bytes:
        if isinstance(span, ByteRange):
            return self.files.fetch(span.file, span.start, span.end)
        return span.data if isinstance(span, InlineBytes) else bytes(span.size)

    def _tick(self, *, uploaded: int = 0, copied: int = 0) -> None:
        with self.writer.lock:
            self.uploaded += uploaded
            self.copied += copied
            if self.progress is not None:
                self.progress(self.uploaded + self.copied, self.total)

    def verify(
        self, reinspect: Callable[[Path], Inspection], *, full: bool
    ) -> tuple[dict[str, StoredObject], dict[str, bytes]]:
        """Read back every uploaded byte, and inspect the headers; with ``full`` compare the copied bytes too.

        Returns what is stored, and the documents that are to be written last.
        """
        sizes = [
            *((file.name, file.size) for file in self.made),
            *((name, self.files.size(name)) for name in self.links),
        ]
        stored = self.prefix.listed(names_of([*sizes, *((n, len(data)) for n, data in self.texts.items())], self.plan))
        waiting(partial(self._read_back, stored, *key) for key in self.digests)
        if full:
            spans = [
                (file.name, part.start, span)
                for file in self.made
                for part in file.parts
                if part.piece is not None
                for span in file.spans(part.start, part.end)
                if isinstance(span, ByteRange)
            ]
            spans += [(name, 0, ByteRange(name, 0, self.files.size(name))) for name in self.links]
            for name, start, span in spans:
                for done in range(0, span.size, _BLOCK):
                    end = min(done + _BLOCK, span.size)
                    copy = self.writer.fetch(name, stored[name], start + done, start + end)
                    if copy != self.files.fetch(span.file, span.start + done, span.start + end):
                        raise differs(self.writer.label(name))
        closing = documents(self.plan, lambda name: self.files.fetch(name, 0, self.files.size(name)))
        self.prefix.inspect(stored, closing, reinspect)
        return stored, closing

    def _read_back(self, stored: dict[str, StoredObject], name: str, start: int, end: int) -> None:
        data = self.writer.fetch(name, stored[name], start, end) if end > start else b""
        if hashlib.sha256(data).digest() != self.digests[name, start, end]:
            raise differs(self.writer.label(name))

    def abort(self) -> None:
        for key, upload in self.uploads.items():
            with suppress(TieconvError, CopyUnsupportedError):  # the first error is the one to report
                self.copier.abort(key, upload)

    def notes(self) -> tuple[str, ...]:
        unread = self.copier.tags_unread
        return (f"the tags of {count(len(unread), 'object')} may not be read, so tieconv did not carry them over",)[
            : len(unread)
        ]


def upload(
    plan: Plan,
    writer: ObjectWriter,
    local: Path,
    reinspect: Callable[[Path], Inspection],
    *,
    full: bool,
    why: str,
    read: int = 0,
    progress: Progress | None = None,
) -> RemoteTransfer:
    """Upload the directory ``local``, the documents that make the model visible last; return the moved bytes.

    With ``full``, and for torch files, each file is read back and compared. After any error the prefix is empty again.
    """
    files = {str(path.relative_to(local)): path for path in sorted(local.rglob("*")) if path.is_file()}
    with interrupts() as signals:
        prefix = NewPrefix(writer, plan)
        done, total = 0, sum(path.stat().st_size for path in files.values())
        try:
            prefix.claim()
            sizes = names_of(((name, path.stat().st_size) for name, path in files.items()), plan)
            for name, size in sizes.items():
                prefix.written.add(name)
                waiting([partial(writer.upload, name, files[name])])
                done += size
                if progress is not None:
                    progress(done, total)
            stored = prefix.listed(sizes)
            # An inspection needs the whole of a torch file, so its bytes are compared with the verified local file.
            torch = (plan.weights[0] if plan.weights else plan.checkpoint).format == "torch"
            for name in sizes if full or torch else ():
                with files[name].open("rb") as file:
                    for start in range(0, sizes[name], _BLOCK):
                        block = file.read(_BLOCK)
                        if writer.fetch(name, stored[name], start, start + len(block)) != block:
                            raise differs(writer.label(name))
            closing = documents(plan, lambda name: (local / name).read_bytes())
            if not torch:
                prefix.inspect(stored, closing, reinspect)
            with signals.shielded():
                prefix.publish(stored, closing, writer.create)
        except BaseException:
            with signals.shielded():
                prefix.discard()
            raise
    sent = sum(sizes.values()) + sum(len(closing[name]) for name in multipart.published(plan))
    return RemoteTransfer("upload", read + writer.bytes, sent, 0, why)
