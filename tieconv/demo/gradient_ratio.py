"""Factors of the two gradients of a tied table, as in Tables 2, 6 and 7 of Lopardo et al. 2026 (arXiv 2603.26663)."""

from __future__ import annotations

import re

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.text import shown

_FORM = re.compile(r"(\d{1,6}(?:\.\d{1,6})?):(\d{1,6}(?:\.\d{1,6})?)", re.ASCII)


@record
class GradientRatio:
    """The factors of a tied table's gradient as input embedding and as output head."""

    embedding: float
    head: float

    def __str__(self) -> str:
        return f"{self.embedding:.12g}:{self.head:.12g}"

    @property
    def directory(self) -> str:
        """The name of the directory of the tied toy that is trained with these factors."""
        return f"tied-{str(self).replace(':', '-')}"


def parse_ratio(text: str) -> GradientRatio:
    """Return the ratio that ``text`` writes as ``EMBEDDING:HEAD``. Raises `RefusedError` if it is not one."""
    match = _FORM.fullmatch(text)
    ratio = GradientRatio(*map(float, match.groups())) if match else GradientRatio(0.0, 0.0)
    if ratio == GradientRatio(1.0, 1.0):
        raise RefusedError("the gradient ratio 1:1 scales nothing", "give another ratio, such as 5:1")
    if not (ratio.embedding or ratio.head):
        raise RefusedError(
            f"the gradient ratio {shown(text)} is not two numbers from 0 to 999,999 of which one is above 0",
            "write the factor of the input embedding, a colon, and the factor of the head, such as 5:1",
        )
    return ratio
