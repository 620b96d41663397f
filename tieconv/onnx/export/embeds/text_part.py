"""Find the language model of a class by transformers' own accessors, and the parts that are not exported."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.reference.language_part import language_modules, left_out, stored_outside
from tieconv.reference.library_messages import quiet
from tieconv.reference.model import load_whole_config
from tieconv.reference.packages import need
from tieconv.text import shown

EMBEDS = "inputs_embeds"
_PARTS = 3
"""Decoder, input embedding and head."""
_CACHED = frozenset({EMBEDS, "attention_mask", "past_key_values"})
_TEXT = _CACHED | {"cache_position", "input_ids", "kwargs", "args", "position_ids", "use_cache", "return_dict"}
"""Arguments of a decoder whose inputs are `inputs_embeds` alone. `output_attentions` and the like are ignored too."""


@record
class LeftOut:
    """The modules of a model that are not exported, and the stored tensors of these modules."""

    modules: tuple[str, ...]
    tensors: tuple[str, ...]


def reads_embeddings(cls: Any) -> bool:
    """Return whether the class is a decoder with a cache that takes `inputs_embeds` in place of token ids."""
    return frozenset(signature(cls.forward).parameters) >= _CACHED


def left_out_parts(cls: Any, directory: str, stored: Iterable[str], *, images: bool) -> LeftOut:
    """Return what is not part of the class's language model, from a model without weights.

    ``directory`` holds its config, and ``stored`` are the names of its tensors. ``images`` says whether the class takes
    images or sound. Raises `RefusedError` if transformers' accessors do not separate the language model. Raises it also
    if the language model reads more of an image than `inputs_embeds`.
    """
    transformers = need("transformers", "onnx,torch", "exporting")
    config = load_whole_config(directory)
    try:
        with quiet(transformers), torch.device("meta"):
            model = cls(config)
        modules, parts = language_modules(model), LeftOut(tuple(left_out(model)), stored_outside(model, stored))
        head = model.get_output_embeddings()
    except Exception as error:
        # a class's constructor and its accessors raise any exception
        raise refused(cls.__name__, f"cannot be built without weights ({shown(error, 200)})") from error
    if head is None:
        raise refused(cls.__name__, "has no head")
    if len(modules) < _PARTS or (images and not parts.modules):
        raise refused(cls.__name__, "does not say which of its modules is the language model")
    if images:
        _check_inputs(cls.__name__, model.get_decoder())
    return parts


def refused(name: str, why: str) -> RefusedError:
    """Return the error of a class whose language model cannot be exported alone."""
    return RefusedError(
        f"{shown(name)} {why}: export cannot write its language model as a decoder of inputs_embeds",
        "export it with transformers.exporters, then run tieconv dedup on the result",
        "export.kind",
    )


def _check_inputs(name: str, decoder: Any) -> None:
    """Check that the decoder reads nothing of an image but its rows. Raises `RefusedError`."""
    accepted = frozenset(signature(decoder.forward).parameters)
    more = sorted(entry for entry in accepted - _TEXT if not entry.startswith("output_"))
    if more:
        raise refused(name, f"passes {shown(', '.join(more), 200)} to its decoder besides inputs_embeds")
