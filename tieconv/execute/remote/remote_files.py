"""Describe the files of a planned model as pieces, and choose what the server copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from tieconv.checkpoint.files.weight_file import ByteRange
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.write_plan.output import InlineBytes, OutputWeights, Zeros
from tieconv.checkpoint.write_plan.plan import Plan
from tieconv.checkpoint.write_plan.remote_transfer import RemoteTransfer
from tieconv.execute.contents.file_layout import file_layout
from tieconv.execute.remote import parts as multipart
from tieconv.execute.remote.parts import Part, split_parts
from tieconv.execute.target import linked_names
from tieconv.sources.objects.object_path import ObjectPath

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
    limits, whole = multipart.S3, file_layout(output)
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
    if any(len(remote_file(plan, output).parts) > multipart.S3.count for output in plan.weights):
        return f"a file would have more than {multipart.S3.count:,} parts"
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
