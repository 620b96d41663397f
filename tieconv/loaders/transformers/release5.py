"""transformers 5: ties by what the file holds, keeps a head that differs, and warns."""

from __future__ import annotations

from tieconv.loaders.interface import Consumer
from tieconv.loaders.transformers import ties5 as symmetric

CONSUMERS = (
    Consumer(
        "transformers",
        "5.x",
        since=(5, 0),
        before=None,
        measured=True,
        cited="transformers 5.23.0, src/transformers/modeling_utils.py, PreTrainedModel.tie_weights",
        judge=symmetric.judge,
    ),
)
