"""Join tables of several models by their tokens. Imports numpy: import it lazily."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.text import Hint, call, count, shown

# The tables of an alignment and their common tokens.

Array = npt.NDArray[Any]

BLOCK = 8 << 20
"""Bytes of float32 rows in memory at a time, of each table."""

FEWEST = 3
"""The fewest tokens with a direction that are aligned or drawn."""
_SHORTEST, _LONGEST = 1e-15, 1e15
"""The lengths of the shortest and the longest row. Sums of products of other rows leave the range of float32."""


@record
class Table:
    """A matrix of one row per token, (rows, width), read block by block.

    ``read`` returns the float rows of ascending row numbers, (len, width). ``tokens`` are the tokens of the rows, with
    ``None`` for a row without a token. It is ``None`` without a tokenizer. Rows after the last token are padding.
    """

    name: str
    rows: int
    width: int
    read: Callable[[Array], Array]
    tokens: Sequence[Hashable | None] | None = None

    @classmethod
    def of(cls, name: str, matrix: Array, tokens: Sequence[Hashable | None] | None = None) -> Table:
        """Return a table that is in memory."""
        return cls(name, len(matrix), matrix.shape[1], lambda numbers: matrix[numbers], tokens)

    def take(self, numbers: Array) -> Array:
        """Return rows in any order as float32, (len, width). Raises the errors of ``read``."""
        if (np.diff(numbers) > 0).all():
            return self.read(numbers).astype(np.float32, copy=False)
        order = np.argsort(numbers, kind="stable")
        taken = np.empty((len(numbers), self.width), np.float32)
        taken[order] = self.read(numbers[order])
        return taken


@record
class Joined:
    """Tables whose rows are the same tokens in the same order: ``numbers[i]`` are the rows of ``tables[i]``.

    ``lengths[i]`` are the lengths of these rows, (tokens,) float32.
    """

    tables: tuple[Table, ...]
    numbers: tuple[Array, ...]
    by: str
    dropped: int = 0
    lengths: tuple[Array, ...] = ()

    @property
    def count(self) -> int:
        """The number of common tokens."""
        return len(self.numbers[0])

    @property
    def block_rows(self) -> int:
        """The number of rows that fit in `BLOCK` bytes."""
        return max(1, BLOCK // (4 * max(table.width for table in self.tables)))

    def take(self, which: int, places: Array) -> Array:
        """Return the rows of table ``which`` at ``places`` of the common order, as float32."""
        return self.tables[which].take(self.numbers[which][places])

    def blocks(self) -> Iterator[Array]:
        """Yield places of the common order, each time as many as fit in `BLOCK` bytes."""
        for part in self.parts(self.count):
            yield np.arange(part.start, part.stop)

    def parts(self, count: int, blocks: int = 1) -> Iterator[slice]:
        """Yield consecutive parts of 0 … ``count`` − 1, each as long as rows fit in ``blocks`` times `BLOCK` bytes."""
        step = blocks * self.block_rows
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))


def join(tables: Sequence[Table]) -> Joined:
    """Match the tables by token string, or by row number if a table has no tokens.

    The result omits strings of two rows of one table. It also omits tokens without a direction in float32. Their row is
    not finite, or not between 10⁻¹⁵ and 10¹⁵ long in some table. Raises `RefusedError` for fewer than three common
    tokens, and for tables without tokens that have different numbers of rows.
    """
    numbers, by = _by_token(tables) if all(table.tokens is not None for table in tables) else _by_row(tables)
    joined = _with_direction(Joined(tuple(tables), numbers, by))
    if joined.count < FEWEST <= joined.count + joined.dropped:
        rows = f"{joined.dropped:,} of {count(joined.count + joined.dropped, 'common row')}"
        problem = f"{_names(tables)} cannot be aligned: {rows} are zeros, NaN or infinite in one of them"
        raise RefusedError(problem, Hint("see what each model stores: ", call("analyze", Hint("MODEL"))))
    if joined.count < FEWEST:
        problem = f"{_names(tables)} have {joined.count} tokens in common that have a direction, too few to align"
        hint = "compare models whose tokenizers share tokens, and put a tokenizer.json next to the weights of each"
        raise RefusedError(problem, hint)
    return joined


def directed_rows(table: Table) -> Joined:
    """Return the rows of one table that have a direction, by row number."""
    alone = Table(table.name, table.rows, table.width, table.read)
    return _with_direction(Joined((alone,), (np.arange(table.rows),), "row number"))


def _with_direction(joined: Joined) -> Joined:
    lengths = [np.empty(joined.count, np.float32) for _ in joined.tables]
    with np.errstate(over="ignore", invalid="ignore"):
        for places in joined.blocks():
            for which, rows in enumerate(joined.take(which, places) for which in range(len(lengths))):
                lengths[which][places] = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    usable = np.flatnonzero(np.all([has_direction(side) for side in lengths], axis=0))
    numbers, lengths = ([side[usable] for side in sides] for sides in (joined.numbers, lengths))
    return Joined(joined.tables, tuple(numbers), joined.by, joined.count - len(usable), tuple(lengths))


def has_direction(lengths: Array) -> Array:
    """Return which rows have a direction in float32, by their lengths."""
    directed: Array = (lengths > _SHORTEST) & (lengths < _LONGEST)  # a NaN is neither
    return directed


def _names(tables: Sequence[Table]) -> str:
    return " and ".join(shown(table.name) for table in tables)


def _by_row(tables: Sequence[Table]) -> tuple[tuple[Array, ...], str]:
    sizes = {table.rows for table in tables}
    if len(sizes) > 1:
        problem = f"{_names(tables)} have {', '.join(map(str, sorted(sizes)))} rows"
        hint = "put the tokenizer.json of each model next to its weights"
        raise RefusedError(f"{problem}, and not all have a tokenizer to match the rows", hint)
    return tuple(np.arange(table.rows) for table in tables), "row number"


def _by_token(tables: Sequence[Table]) -> tuple[tuple[Array, ...], str]:
    places = [_places(table) for table in tables]
    common = [token for token in places[0] if all(token in vocabulary for vocabulary in places[1:])]
    return tuple(np.array([vocabulary[token] for token in common], np.int64) for vocabulary in places), "token string"


def _places(table: Table) -> dict[Hashable, int]:
    """Return the row of each string that only one row has."""
    tokens = list(table.tokens or ())[: table.rows]
    times = Counter(tokens)
    return {token: row for row, token in enumerate(tokens) if token is not None and times[token] == 1}


_SPACE = "\u2581"  # SentencePiece's mark of a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> dict[str, int]:
    """Map GPT-2's letters to bytes. Printable Latin-1 letters map to their code, the others from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


_LETTERS = _byte_letters()


def token_bytes(text: Mapping[int, str], rows: int) -> list[bytes | None]:
    """Return the bytes of the token of each of the first ``rows`` rows, ``None`` for a row without a token.

    ``text`` are tokens in the spelling of the vocabulary. A byte-level vocabulary (such as GPT-2) writes spaces as Ġ,
    and a SentencePiece one as ▁. Both spellings are decoded. Other strings, such as special tokens, stay unchanged.
    """
    byte_level = sum("Ġ" in token for token in text.values()) > sum(_SPACE in token for token in text.values())
    spell = _byte_level if byte_level else _sentencepiece
    return [spell(text[row]) if row in text else None for row in range(rows)]


def _byte_level(token: str) -> bytes:
    try:
        return bytes(_LETTERS[letter] for letter in token)
    except KeyError:  # a special token uses ordinary characters
        return token.encode("utf-8", "surrogatepass")


def _sentencepiece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    if byte:
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode("utf-8", "surrogatepass")
