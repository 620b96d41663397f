"""Find out whether the head is the embedding after an int8 round trip, which is not drift."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans

LARGEST = 127
"""The largest code of a symmetric 8-bit quantisation with one scale for each group: q = round(127·x / max|x|)."""

GROUPS = (0, 128, 64, 32)
"""Numbers of a row that share one scale, 0 for the whole row; 32 is Q8_0 of GGUF."""

_UNIT = {"F64": 2.0**-20, "F32": 2.0**-20, "F16": 2.0**-11, "BF16": 2.0**-8}
"""The relative error of a stored number, by type."""

SCALE = 2.0**-11
"""The relative error of a scale, which may be stored as float16."""

FEW = 16
"""Rows that determine the size of the groups."""


def code_group(embed: Table, head: Table, rows: int, kinds: tuple[str, str]) -> int | None:
    """Return how many numbers share a scale if the head is the embedding after an int8 round trip, else ``None``.

    Every number of the first ``rows`` rows is compared. It must equal one of the two codes around the embedding's
    number, within the error of the types. A merely small change does not pass. ``kinds`` are the types
    that the tables were last rounded to.
    """
    width, slack = embed.width, SCALE + sum(_UNIT[kind] for kind in kinds)
    sizes = (size or width for size in GROUPS if not size or (size < width and width % size == 0))
    group = next((size for size in sizes if _coded(embed, head, (0, min(FEW, rows)), size, slack)), None)
    if group is None or not all(_coded(embed, head, span, group, slack) for span in spans(rows, width)):
        return None
    return group


def _coded(embed: Table, head: Table, span: tuple[int, int], group: int, slack: float) -> bool:
    e, u = (table.values(*span).reshape(-1, group) for table in (embed, head))
    with np.errstate(all="ignore"):
        step: Array = np.abs(e).max(axis=1, keepdims=True) / LARGEST
        codes = np.divide(e, step, out=np.zeros_like(e), where=step > 0)
        off = np.minimum(np.abs(u - np.floor(codes) * step), np.abs(u - np.ceil(codes) * step))
        return bool((off <= slack * np.abs(u) + step * 2.0**-20).all())
