"""Is the head the embedding in 8-bit codes and back? Numbers that were quantised and dequantised are no drift."""

from __future__ import annotations

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans

LARGEST = 127
"""The largest code of a symmetric 8-bit quantisation by the largest number of a group: q = round(127·x / max|x|)."""

GROUPS = (0, 128, 64, 32)
"""Numbers of a row that share one scale, 0 for the whole row; 32 is Q8_0 of GGUF."""

_UNIT = {"F64": 2.0**-20, "F32": 2.0**-20, "F16": 2.0**-11, "BF16": 2.0**-8}
"""What a stored number may be off by, relatively."""

SCALE = 2.0**-11
"""The same for a scale, which may be stored as float16."""

FEW = 16
"""Rows on which the size of the groups is found."""


def code_group(embed: Table, head: Table, rows: int, kinds: tuple[str, str]) -> int | None:
    """How many numbers share a scale where the head is the embedding in 8-bit codes and back; ``None`` where it is not.

    Every number of the first ``rows`` rows is compared: it must lie where one of the two codes beside the embedding's
    number puts it, as exactly as the types allow; a change that is merely small does not. ``kinds`` are the types that
    the two were last rounded to.
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
