"""Plan a resize, after which config and tensors agree on the vocabulary size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.api.plans.planning import planned_write
from tieconv.checkpoint.inspection import Depth, Inspection
from tieconv.opened import opened, reading, with_tokenizer
from tieconv.plans.verbs.resize import Fill
from tieconv.plans.verbs.resize import plan_resize as make_plan

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.model_files import ByteReader
    from tieconv.checkpoint.weight_file import TensorRecord
    from tieconv.checkpoint.write_plan import Plan
    from tieconv.planned import PlannedWrite

_ROWS = 4096
"""Number of rows of a matrix that are summed at once."""


def plan_resize(
    path: str | Path = ".",
    *,
    to: str | int,
    fill: str = "zeros",
    embed: str | None = None,
    head: str | None = None,
    drop_other_formats: bool = False,
    fetch: bool = False,
) -> PlannedWrite:
    """Plan the same number of rows for config, embedding, head and head bias.

    ``to`` is ``"rows"`` (`vocab_size` follows the embedding), ``"config"`` (the tensors follow `vocab_size`) or a
    number for both. ``fill`` sets the new rows: ``"zeros"``, or the ``"mean"`` of the existing rows. Raises
    `RefusedError` if it would remove a row that a token uses. Without a tokenizer, it removes no row.
    """
    if not isinstance(to, int) and to not in ("rows", "config") and not to.isdecimal():
        raise ValueError(f"to={to!r} is not rows, config or a number")

    def make(evidence: Inspection) -> Plan:
        def mean_row(record: TensorRecord) -> bytes:
            with reading(evidence.checkpoint) as files:
                return _mean_row(files, record)

        with opened(evidence.checkpoint.root) as (_, files, _):
            evidence = with_tokenizer(evidence, files)
        return make_plan(evidence, str(to), Fill(fill), mean_row)

    return planned_write(make, path, Depth.CANDIDATES, embed, head, drop_other_formats, fetch)


def _mean_row(reader: ByteReader, record: TensorRecord) -> bytes:
    """Return the mean row of a matrix as bytes, summed in float64 and rounded once."""
    import numpy as np

    from tieconv.execute.arithmetic import floats, rounded

    rows, width = record.shape
    line = record.nbytes // rows
    total = np.zeros(width)
    for first in range(0, rows, _ROWS):
        block = bytearray(min(_ROWS, rows - first) * line)
        reader.read_into(record.range, first * line, memoryview(block))
        total += floats(block, record.dtype).reshape(-1, width).sum(axis=0)
    return rounded(total / rows, record.dtype)
