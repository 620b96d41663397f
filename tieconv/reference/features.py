"""Define the features of images or sound that an encoder reads in place of token ids."""

from __future__ import annotations

from typing import Any

from tieconv.checkpoint.value_type import record


@record
class Features:
    """Features ``values`` (rows × the axes of one row, float32) for the argument ``name`` of the forward pass.

    A batch may have more rows than these. Its row i then reads the features i modulo their number.
    """

    __eq__ = object.__eq__  # compare by identity: arrays have no useful equality
    __hash__ = object.__hash__

    name: str
    values: Any

    def for_rows(self, states: Any, rows: int) -> Any:
        """Return the encoder's ``states`` of these features, one for each of the ``rows`` of a batch."""
        import torch

        return states[torch.arange(rows) % len(self.values)]
