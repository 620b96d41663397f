"""The releases of transformers.

transformers 4 ties by the flag alone, under the embedding's name. transformers 5 also looks at the stored tensors: it
keeps a head that differs, and warns. Releases 5.0 to 5.3 never tie two stored tensors, also equal ones. They accept a
flag that is null.
"""

from __future__ import annotations

from functools import partial

from tieconv.loaders import transformers4, transformers5
from tieconv.loaders.interface import Consumer

CONSUMERS = (
    Consumer(
        "transformers",
        "4.48",
        since=(4, 45),
        before=(4, 49),
        cited="transformers 4.48.3, src/transformers/modeling_utils.py, tie_weights and _load_pretrained_model",
        load=partial(transformers4.load, version="4.48"),
        ran=("4.48.3",),
    ),
    Consumer(
        "transformers",
        "4.57",
        since=(4, 49),
        before=(5, 0),
        cited="transformers 4.57.6, src/transformers/modeling_utils.py, tie_weights and _load_pretrained_model",
        load=partial(transformers4.load, version="4.57"),
        ran=("4.57.6",),
    ),
    Consumer(
        "transformers",
        "5.0",
        since=(5, 0),
        before=(5, 4),
        cited="transformers 5.0.0, src/transformers/modeling_utils.py, PreTrainedModel.tie_weights",
        load=transformers5.load_50,
        ran=("5.0.0",),
    ),
    Consumer(
        "transformers",
        "5.x",
        since=(5, 4),
        before=None,
        cited="transformers 5.23.0, src/transformers/modeling_utils.py, PreTrainedModel.tie_weights",
        load=transformers5.load,
        ran=("5.23.0",),
    ),
)
