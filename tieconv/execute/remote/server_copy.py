"""Make a model in S3 from another one: tieconv uploads what changes, and the server copies the rest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.write_plan.output import InlineBytes
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.checkpoint.write_plan.remote_transfer import RemoteTransfer
from tieconv.errors import TieconvError
from tieconv.execute.publish.interrupts import interrupts
from tieconv.execute.refusals import stale
from tieconv.execute.remote import parts as multipart
from tieconv.execute.remote.new_prefix import NewPrefix, differs, documents, names_of, waiting
from tieconv.execute.remote.parts import Part, split_parts
from tieconv.execute.remote.remote_files import RemoteFile, published, remote_file
from tieconv.execute.target import linked_names
from tieconv.sources.objects.object_source import CopyUnsupportedError, open_model, require_copier
from tieconv.text import count

if TYPE_CHECKING:
    from tieconv.sources.objects.object_files import ObjectFiles
    from tieconv.sources.objects.object_listing import StoredObject
    from tieconv.sources.objects.object_writer import ObjectWriter
    from tieconv.sources.objects.s3_copy import S3Copier

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
            stored = job.verify(reinspect, full=full)
            with signals.shielded():
                job.publish(stored)
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
        self.made = [remote_file(self.plan, output) for output in self.plan.weights]
        closing = published(self.plan)
        self.links = [name for name in linked_names(self.plan) if name not in closing]
        self.texts = {text.name: text.text.encode() for text in self.plan.texts if text.name not in closing}
        self.total = sum(file.size for file in self.made) + sum(map(self.files.size, self.links))

    def write(self) -> None:
        """Write everything but the documents that make the model visible."""
        for key, upload in self.copier.unfinished(self.writer.key(""), self.writer.label("")):
            self.copier.abort(key, upload)  # of a killed write: this one owns the prefix
        for file in self.made:
            self._multipart(file, self._like(file.name))
        big = [name for name in self.links if self.files.size(name) > multipart.S3.copy]
        for name in big:
            whole = ByteRange(name, 0, self.files.size(name))
            parts = tuple(split_parts([(whole.size, True)], multipart.S3))
            self._multipart(RemoteFile(name, (whole,), parts), self._attributes(name))
        waiting(partial(self._link, name) for name in self.links if name not in big)
        for name, data in self.texts.items():
            waiting([partial(self.prefix.create, name, data, self._create)])
            self.digests[name, 0, len(data)] = hashlib.sha256(data).digest()

    def _like(self, name: str) -> dict[str, Any]:
        """Return the attributes of the file that an output replaces, else of the first weight file."""
        known = self.plan.fingerprint
        return self._attributes(name if name in known else self.plan.checkpoint.files[0].name)

    def _attributes(self, name: str) -> dict[str, Any]:
        return self.copier.attributes(self.bucket, self.files.remote(name))

    def _create(self, name: str, data: bytes) -> None:
        attributes = self._attributes(name) if name in self.files.listed.stored else {}
        self.copier.create(self.writer.key(name), self.writer.label(name), data, attributes)
        self.last_bytes += len(data)

    def _link(self, name: str) -> None:
        source = self.files.remote(name)
        self.prefix.written.add(name)
        self.copier.copy(self.writer.key(name), self.bucket, source, self._attributes(name))
        self._tick(copied=source.size)

    def _multipart(self, file: RemoteFile, attributes: dict[str, Any]) -> None:
        key, label = self.writer.key(file.name), self.writer.label(file.name)

        def start() -> str:
            upload = self.uploads[key] = self.copier.start(key, label, attributes)
            return upload

        (upload,) = waiting([start])
        etags = waiting(partial(self._part, file, upload, number, part) for number, part in enumerate(file.parts, 1))
        self.prefix.written.add(file.name)
        waiting([partial(self.copier.complete, key, label, upload, etags)])
        del self.uploads[key]

    def _part(self, file: RemoteFile, upload: str, number: int, part: Part) -> str:
        key = self.writer.key(file.name)
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

    def verify(self, reinspect: Callable[[Path], Inspection], *, full: bool) -> dict[str, StoredObject]:
        """Read back every uploaded byte, and inspect the headers; with ``full`` compare the copied bytes too."""
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
                self._compare(stored, name, start, span)
        self.closing = documents(self.plan, lambda name: self.files.fetch(name, 0, self.files.size(name)))
        self.prefix.inspect(stored, self.closing, reinspect)
        return stored

    def _read_back(self, stored: dict[str, StoredObject], name: str, start: int, end: int) -> None:
        data = self.writer.fetch(name, stored[name], start, end) if end > start else b""
        if hashlib.sha256(data).digest() != self.digests[name, start, end]:
            raise differs(self.writer.label(name))

    def _compare(self, stored: dict[str, StoredObject], name: str, start: int, span: ByteRange) -> None:
        for done in range(0, span.size, _BLOCK):
            end = min(done + _BLOCK, span.size)
            copy = self.writer.fetch(name, stored[name], start + done, start + end)
            if copy != self.files.fetch(span.file, span.start + done, span.start + end):
                raise differs(self.writer.label(name))

    def publish(self, stored: dict[str, StoredObject]) -> None:
        """Make the model visible."""
        self.prefix.publish(stored, self.closing, self._create)

    def abort(self) -> None:
        """Discard the parts of unfinished uploads."""
        for key, upload in self.uploads.items():
            with suppress(TieconvError, CopyUnsupportedError):  # the first error is the one to report
                self.copier.abort(key, upload)

    def notes(self) -> tuple[str, ...]:
        """Return the note about tags that could not be carried over."""
        unread = self.copier.tags_unread
        return (f"the tags of {count(len(unread), 'object')} may not be read, so tieconv did not carry them over",)[
            : len(unread)
        ]
