"""Check what an export promises about weights: finite before the trace, the tied matrix stored once after it."""

from __future__ import annotations

import torch

from tieconv.checkpoint.results.exported import ExportPlan
from tieconv.checkpoint.results.parity import Identity
from tieconv.errors import RefusedError, VerificationError
from tieconv.reference import Reference
from tieconv.text import shown


def check_once(plan: ExportPlan, identity: Identity | None, files: int) -> None:
    """Check that each of the data files stores the tied embedding once, as promised. Raises `VerificationError`."""
    if plan.tied and identity is not None and identity.copies > files:
        raise VerificationError(
            f"{shown(plan.source)}: the graph stores {shown(plan.tied[0][0])} {identity.copies} times",
            "nothing was written; report this with the model's class",
            "export.copies",
        )


def check_finite(reference: Reference, source: str) -> None:
    """Check that no parameter overflows in the precision. Raises `RefusedError`."""
    for name, parameter in reference.model.named_parameters():
        if parameter.is_floating_point() and not _is_finite(parameter.data):
            raise RefusedError(
                f"{shown(source)}: {shown(name)} holds values that overflow in {reference.dtype}",
                "use a precision with a wider range: --precision fp32 or bf16"
                if reference.dtype == "float16"
                else "inspect the tensor: tieconv inspect --depth full",
                "export.range",
            )


def _is_finite(values: torch.Tensor) -> bool:
    """Return whether no value is NaN or infinite. `torch.isfinite` would need as much memory as the values again."""
    return not values.numel() or bool(torch.stack(values.aminmax()).isfinite().all())
