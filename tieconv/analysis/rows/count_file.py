"""Read how often each token occurs from a file of the user. Imports numpy."""

from __future__ import annotations

import re

import numpy as np

from tieconv.analysis.model.tables import Array
from tieconv.errors import SettingsError
from tieconv.sources.texts import read_text
from tieconv.text import shown

_LINE = re.compile(r"(\d{1,9})\s*[,\t ]\s*(\d{1,18})")
_HEADER = re.compile(r"\s*[^-+.\d\s]")


def read_counts(path: str, rows: int) -> Array:
    """Return how often the token of each row occurs, (rows,). Rows that the file leaves out occur never.

    Each line has a token id and a count, with a comma, a tab or a space between them. The first line may be a header,
    which does not start like a number. Raises `SettingsError` for another line, for an id twice, and for an id without
    a row.
    """
    counts, seen = np.zeros(rows), np.zeros(rows, bool)
    for number, line in enumerate(read_text(path).splitlines(), 1):
        match = _LINE.fullmatch(line.strip())
        if match is None:
            if not line.strip() or (number == 1 and _HEADER.match(line)):
                continue
            raise _malformed(path, f"line {number} is not a token id and a count")
        row, count = int(match[1]), int(match[2])
        if row >= rows:
            raise _malformed(path, f"line {number} has the id {row:,}, but the table has {rows:,} rows")
        if seen[row]:
            raise _malformed(path, f"line {number} repeats the id {row:,}")
        counts[row], seen[row] = count, True
    return counts


def _malformed(path: str, why: str) -> SettingsError:
    return SettingsError(
        f"{shown(path)} does not hold counts of tokens: {why}", "write lines such as: 15,2048", "analyze.counts"
    )
