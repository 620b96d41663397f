"""Split a planned file into the parts of a multipart upload: uploaded parts, and ranges that the server copies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tieconv.checkpoint.value_type import record


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
