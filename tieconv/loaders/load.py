"""What each measured release of a loader makes of a model: the one answer that predictions, plans and `diff` read."""

from __future__ import annotations

from tieconv.checkpoint.family import Family
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.loaded import Loaded, Parameter
from tieconv.loaders.transformers import load4, load5
from tieconv.loaders.transformers.load4 import has_class_448 as has_class_448

TRANSFORMERS_5 = "5"
TRANSFORMERS_4 = "4.57"
"""The release of transformers 4 that plans and `diff` go by: its last."""

TRANSFORMERS_448 = "4.48"

_COUNTED = (TRANSFORMERS_5, TRANSFORMERS_4)


def load(inspection: Inspection, release: str) -> Loaded:
    """Return what transformers ``release`` (``5``, ``4.57`` or ``4.48``) makes of the model. Nothing is read."""
    return load5.load(inspection) if release == TRANSFORMERS_5 else load4.load(inspection, release)


def releases(inspection: Inspection) -> tuple[str, ...]:
    """Return the releases that have the model's class: transformers 5, and 4 where that is known to have it."""
    family = inspection.family
    has_class = family.default_v4 is not None or not family.architecture
    return _COUNTED if has_class else _COUNTED[:1]


def head_bias(inspection: Inspection) -> dict[str, Parameter]:
    """Return the head bias that the logits get, by major version; the class has one."""
    name = inspection.family.output_biases[-1]
    loaded = ((release, load(inspection, release)) for release in releases(inspection))
    return {release.partition(".")[0]: found.parameters[found.names[name]] for release, found in loaded}


def bias_unset(family: Family, *only: str) -> bool:
    """Return whether one of the releases (``only`` these) gives an absent head bias no values at all."""
    listed = (release_tables.names(f"transformers-{release}", "unset bias") for release in only or _COUNTED)
    return any(family.text_class in classes for classes in listed)
