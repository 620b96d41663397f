"""The largest difference of two tables that rounding explains: the tolerance of every class that is not exact."""

from __future__ import annotations

from math import sqrt

import numpy as np

from tieconv.analysis.model.tables import Array, Table, spans

SLACK = 1.5
"""The factor by which a residual may exceed the expected rounding."""

_RELATIVE = {"BF16": 1.66e-3, "F16": 2.07e-4, "F32": 2.53e-8, "F64": 4.7e-17}
"""Root mean square of the relative error of one rounding to nearest, measured on normal numbers."""

_SUBNORMAL = {"F16": 2.0**-24 / sqrt(12), "BF16": 2.0**-133 / sqrt(12), "F32": 2.0**-149 / sqrt(12)}
"""Root mean square of the absolute error among subnormal numbers."""

FLOOR = 1e-6
"""The smallest tolerance: the error of float32 arithmetic."""


def precision(table: Table, probes: int = 16) -> str:
    """Return the type that the values were last rounded to. A float32 table may hold bfloat16 values.

    The answer follows from ``probes`` blocks spread over the table. It is right for any table that was cast as a whole.
    """
    if table.record.dtype != "F32":
        return table.record.dtype
    blocks = list(spans(table.rows, table.width, 1 << 14))
    used = 0
    for start, stop in blocks[:: max(len(blocks) // probes, 1)]:
        used |= int(np.bitwise_or.reduce(table.bits(start, stop), axis=None))
    if not used & 0xFFFF:
        return "BF16"
    return "F32" if used & 0x1FFF else "F16"


def tolerance(kinds: tuple[str, str], energies: tuple[Array, float], gains: Array, rows: int, columns: int) -> float:
    """Return the largest ‖U − Û‖ / ‖U‖ that rounding explains.

    ``kinds`` are the types of E and U. ``energies`` are the column energies of E (d,) and the whole energy of U.
    ``gains`` is the squared length of each row of the map (d,), through which the noise of E passes.
    """
    of_e, of_u = (_RELATIVE[kind] for kind in kinds)
    columns_e, whole_u = energies
    noise = of_u**2 * whole_u + of_e**2 * float(np.dot(columns_e, gains))
    noise += sum(_SUBNORMAL.get(kind, 0.0) ** 2 for kind in kinds) * rows * columns
    return max(SLACK * sqrt(noise / whole_u), FLOOR) if whole_u else FLOOR
