"""Say what an encoder reads besides token ids: features of images or sound, in a shape that its config fixes."""

from __future__ import annotations

from math import prod
from typing import Any

from tieconv.checkpoint.value_type import record
from tieconv.errors import RefusedError
from tieconv.reference.library_messages import quiet
from tieconv.reference.model import load_whole_config
from tieconv.reference.packages import need
from tieconv.text import shown

_IDS = "input_ids"


@record
class EncoderInput:
    """The argument of the forward pass, and the axes of one row.

    These are channels and sides of an image, or mel bins and time steps of sound.
    """

    name: str
    shape: tuple[int, ...]


def feature_argument(cls: Any) -> str:
    """Return the main input of a class that reads images or sound; empty for token ids."""
    main = str(getattr(cls, "main_input_name", _IDS))
    return main if main != _IDS else ""


def planned_encoder_input(cls: Any, directory: str) -> EncoderInput | None:
    """Return what `encoder_input` returns, from a model without weights. ``directory`` holds its config.

    Raises `RefusedError` if the config does not fix the shape.
    """
    if not feature_argument(cls):
        return None
    transformers, torch = (need(package, "onnx", "the torch reference") for package in ("transformers", "torch"))
    config = load_whole_config(directory)
    try:
        with quiet(transformers), torch.device("meta"):
            model = cls(config)
    except Exception as error:
        # a class's constructor raises any exception
        why = f"cannot be built without weights ({shown(error, 200)})"
        raise RefusedError(f"{shown(cls.__name__)} {why}", _HINT, "export.kind") from error
    return encoder_input(model)


def encoder_input(model: Any) -> EncoderInput | None:
    """Return the features that the encoder of ``model`` reads; ``None`` for token ids.

    Images have the `num_channels` and the `image_size` of the encoder's config. Sound has its `num_mel_bins`, and so
    many time steps that the encoder's convolutions make `max_source_positions` of them. Raises `RefusedError` if the
    config has neither.
    """
    name = feature_argument(type(model))
    if not name:
        return None
    encoder = model.get_encoder()
    config = encoder.config
    channels, image = getattr(config, "num_channels", None), getattr(config, "image_size", None)
    if isinstance(channels, int) and image:
        sides = (image, image) if isinstance(image, int) else tuple(image)
        return EncoderInput(name, (channels, *sides))
    bins, positions = getattr(config, "num_mel_bins", None), getattr(config, "max_source_positions", None)
    if isinstance(bins, int) and isinstance(positions, int):
        strides = (module.stride[0] for module in encoder.children() if hasattr(module, "stride"))
        return EncoderInput(name, (bins, positions * prod(strides)))
    raise RefusedError(
        f"{shown(type(model).__name__)} reads {shown(name)}, and its config does not fix their shape, as export needs",
        _HINT,
        "export.kind",
    )


_HINT = "export it with transformers.exporters, then run tieconv dedup on the result"
