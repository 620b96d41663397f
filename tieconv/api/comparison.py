"""What differs between two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tieconv.api.graphs import refuse_graphs
from tieconv.checkpoint.inspection import Depth
from tieconv.errors import UnreadableError
from tieconv.opened import inspected, opened, refuse_far_graphs

if TYPE_CHECKING:
    from pathlib import Path

    from tieconv.checkpoint.results.comparison import Comparison


def diff(a: str | Path, b: str | Path, *, embed: str | None = None, head: str | None = None) -> Comparison:
    """What differs between two models, ties, names and layout seen through.

    ``same_function`` is proved over all bytes. Raises `UnreadableError` where one of them cannot be read.
    """
    from tieconv.comparison import compare

    refuse_graphs(a, b)
    with opened(str(a)) as model_a, opened(str(b)) as model_b:
        evidence_a, evidence_b = (inspected(model, Depth.CANDIDATES, embed, head) for model in (model_a, model_b))
        for evidence in (evidence_a, evidence_b):
            refuse_far_graphs(evidence.checkpoint)
            if evidence.checkpoint.headers_only:
                raise UnreadableError(
                    f"{evidence.checkpoint.source}: tensor bytes of this format are not read, so nothing can be "
                    "compared",
                    "convert it to safetensors first",
                    "diff.headers-only",
                )
        return compare(evidence_a, evidence_b, model_a[1], model_b[1])
