"""How each release of a loader loads a model: predictions, plans and `diff` all use this answer."""

from __future__ import annotations

from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables, transformers4, transformers5
from tieconv.loaders.loaded import Loaded, Parameter
from tieconv.loaders.transformers4 import has_class_448 as has_class_448

TRANSFORMERS = "transformers"
TRANSFORMERS_5 = "5.x"
TRANSFORMERS_50 = "5.0"
TRANSFORMERS_4 = "4.57"
"""The release of transformers 4 that plans and `diff` use: the last one."""

TRANSFORMERS_448 = "4.48"

MLX_LM = ("0.32", "mlx-lm")
"""The release of mlx-lm that plans and `diff` use for files of MLX."""

_COUNTED = (TRANSFORMERS_5, TRANSFORMERS_4)


def load(inspection: Inspection, release: str, loader: str = TRANSFORMERS) -> Loaded:
    """Return the model as a loader loads it; ``release`` is the version in the registry. Read no file."""
    if (loader, release) == (TRANSFORMERS, TRANSFORMERS_5):
        return transformers5.load(inspection)
    if (loader, release) == (TRANSFORMERS, TRANSFORMERS_50):
        return transformers5.load_50(inspection)
    if loader == TRANSFORMERS:
        return transformers4.load(inspection, release)
    from tieconv.loaders.registry import consumer  # most plans ask about transformers only

    return consumer(loader, release).load(inspection)


def releases(inspection: Inspection) -> tuple[str, ...]:
    """Return the releases that have the model's class: transformers 5, and 4 if the table says so."""
    family = inspection.family
    has_class = family.default_v4 is not None or not family.architecture
    return _COUNTED if has_class else _COUNTED[:1]


def head_bias(inspection: Inspection) -> dict[str, Parameter]:
    """Return the head bias that the logits get, by major version. The class must have a head bias."""
    name = inspection.family.output_biases[-1]
    models = ((release, load(inspection, release)) for release in releases(inspection))
    return {release.partition(".")[0]: model.parameters[model.names[name]] for release, model in models}


def bias_unset(family: Family, *only: str) -> bool:
    """Return whether a release leaves an absent head bias without values; ``only`` limits the releases."""
    tables = (f"transformers-{release.removesuffix('.x')}" for release in only or _COUNTED)
    return any(family.text_class in release_tables.names(table, "unset bias") for table in tables)
