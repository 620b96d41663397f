"""Check that the precision of an export can hold every weight."""

from __future__ import annotations

import torch

from tieconv.errors import RefusedError
from tieconv.reference import Reference
from tieconv.text import shown


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
