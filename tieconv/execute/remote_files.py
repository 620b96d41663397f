"""Describe the files of a planned model as pieces, and choose what the server copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import ByteRange
from tieconv.checkpoint.write_plan import InlineBytes, OutputWeights, Plan, RemoteTransfer, Zeros
from tieconv.execute.file_layout import file_layout
from tieconv.execute.target import linked_names
from tieconv.sources.objects import ObjectPath

_INDEX = ".index.json"
_CONFIG = "config.json"
Source = ByteRange | Zeros | InlineBytes


@record
class RemoteFile:
    """A weight file to write: its pieces in order, and its parts."""

    name: str
    pieces: tuple[Source, ...]
    parts: tuple[Part, ...]

    @property
    def size(self) -> int:
        return self.parts[-1].end

    @property
    def bytes_copied(self) -> int:
        return sum(part.size for part in self.parts if part.piece is not None)

    def spans(self, start: int, end: int) -> Iterator[Source]:
        """Yield what the bytes ``start`` to ``end`` of the file are made of."""
        offset = 0
        for piece in self.pieces:
            begin, stop = max(start - offset, 0), min(end - offset, piece.size)
            if begin < stop:
                yield _cut(piece, begin, stop)
            offset += piece.size


def _cut(piece: Source, begin: int, stop: int) -> Source:
    match piece:
        case ByteRange():
            return ByteRange(piece.file, piece.start + begin, piece.start + stop)
        case InlineBytes(data):
            return InlineBytes(data[begin:stop])
        case Zeros():
            return Zeros(stop - begin)
        case _:
            assert_never(piece)


def remote_file(plan: Plan, output: OutputWeights) -> RemoteFile:
    """Return the pieces and parts of a safetensors file.

    The server can copy ranges only of files above the smallest part.
    """
    limits, whole = S3, file_layout(output)
    ((_, header),) = whole.literals(-1)
    pieces: list[Source] = [InlineBytes(header)]
    for piece in whole.pieces:
        assert isinstance(piece.content, ByteRange | Zeros | InlineBytes)
        pieces.append(piece.content)
    copies = [isinstance(piece, ByteRange) and plan.fingerprint[piece.file].size > limits.least for piece in pieces]
    parts = split_parts([(piece.size, can) for piece, can in zip(pieces, copies, strict=True)], limits)
    return RemoteFile(output.name, tuple(pieces), tuple(parts))


def why_upload(plan: Plan, out: ObjectPath) -> str:
    """Return why a server cannot make the files of this plan by copies; empty if it can."""
    if out.scheme != "s3":
        return "only S3 copies ranges of objects"
    if not plan.checkpoint.root.startswith("s3://"):
        return "the model is not in S3"
    if any(output.format != "safetensors" for output in plan.weights) or plan.checkpoint.table:
        return "tieconv makes only safetensors files from ranges"
    if any(not file.name.endswith(".safetensors") for file in plan.checkpoint.files):
        return "tieconv makes only safetensors files from ranges"
    contents = [part for output in plan.weights for tensor in output.tensors for part in tensor.parts]
    if not all(isinstance(content, ByteRange | Zeros | InlineBytes) for content in contents):
        return "tieconv computes values of tensors"
    if any(len(remote_file(plan, output).parts) > S3.count for output in plan.weights):
        return f"a file would have more than {S3.count:,} parts"
    return ""


def forecast(plan: Plan, out: ObjectPath, read: int) -> RemoteTransfer:
    """Return the bytes that a write will move. ``read`` counts the bytes that the plan's proofs have read."""
    if why := why_upload(plan, out):
        whole = plan.bytes_written + plan.bytes_linked
        source = sum(file.size for file in plan.fingerprint.values()) if "://" in plan.checkpoint.root else 0
        return RemoteTransfer("upload", read + source + whole, whole, 0, why)
    files = [remote_file(plan, output) for output in plan.weights]
    closing = published(plan)
    texts = sum(len(text.text.encode()) for text in plan.texts)
    small = sum(link.bytes for link in plan.links if link.name in closing)
    filled = sum(
        span.size
        for file in files
        for part in file.parts
        if part.piece is None
        for span in file.spans(part.start, part.end)
        if isinstance(span, ByteRange)
    )
    uploaded = sum(file.size - file.bytes_copied for file in files)
    copied = sum(file.bytes_copied for file in files) + plan.bytes_linked - small
    return RemoteTransfer("server_copy", read + filled + uploaded + texts + 2 * small, uploaded + texts + small, copied)


def published(plan: Plan) -> tuple[str, ...]:
    """Return the files that make the model visible, in the order to write them: the config, then the index."""
    names = {*(text.name for text in plan.texts), *linked_names(plan)}
    return (*(name for name in (_CONFIG,) if name in names), *sorted(name for name in names if name.endswith(_INDEX)))


# Split a planned file into the parts of a multipart upload: uploaded parts, and ranges that the server copies.


@record
class Limits:
    """The limits of S3's multipart uploads, in bytes.

    All parts but the last have at least ``least`` bytes. tieconv prefers parts of at most ``upload`` and ``copy``.
    """

    least: int = 5 << 20
    most: int = 5 << 30
    upload: int = 16 << 20
    copy: int = 1 << 30
    count: int = 10_000


S3 = Limits()
"""What Amazon S3 documents; other servers have the same least part."""


@record
class Part:
    """The bytes ``start`` to ``end`` of the file; with ``piece``, the server copies them from that piece's source."""

    start: int
    end: int
    piece: int | None

    @property
    def size(self) -> int:
        return self.end - self.start


def split_parts(pieces: Sequence[tuple[int, bool]], limits: Limits) -> list[Part]:
    """Return the parts of a file. ``pieces`` are (size in bytes, whether the server can copy it), in order.

    An uploaded part before a copied one is filled up to ``least`` bytes from the copied piece.
    """
    total = sum(size for size, _ in pieces)
    copied = min(max(limits.copy, -(-2 * total // limits.count)), limits.most)
    parts: list[Part] = []
    pending = offset = 0
    for number, (size, copies) in enumerate(pieces):
        end = offset + size
        held = offset - pending
        first = offset + (min(size, limits.least - held) if 0 < held < limits.least else 0)
        if copies and first < end and (end - first >= limits.least or end == total):
            parts += _even(pending, first, limits.upload, None)
            parts += _even(first, end, copied, number)
            pending = end
        offset = end
    return [*parts, *_even(pending, total, limits.upload, None)]


def _even(start: int, end: int, most: int, piece: int | None) -> Iterator[Part]:
    """Yield parts of nearly equal sizes, none above ``most`` and none below half of it if there are several."""
    size = end - start
    number = -(-size // most)
    for index in range(number):
        yield Part(start + size * index // number, start + size * (index + 1) // number, piece)
