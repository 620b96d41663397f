"""Tables measured with releases of transformers: defaults of config keys, last norms, tokens of tokenizer classes.

`fixtures/certificates.py` writes each ``data/transformers-*.json`` and documents its parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from tieconv.package_data import data_text

RELEASES = ("4.48", "4.57", "5.23")
"""The releases that certificates cover."""


@cache
def table(release: str) -> Mapping[str, Any]:
    """Return everything that was measured with one release."""
    releases: Mapping[str, Any] = json.loads(data_text(__name__, f"transformers-{release}.json"))
    return releases


def versions() -> tuple[str, ...]:
    """Return the full versions that the tables were measured with."""
    return tuple(str(table(release)["transformers"]) for release in RELEASES)


def default_ids(model_type: str) -> set[int]:
    """Return the token ids that a class reads in some release if its config has no keys for them."""
    return {number for release in RELEASES for number in table(release)["ids"].get(model_type, ())}


def tokenizer_classes(model_type: str) -> set[str]:
    """Return the tokenizer classes that some release uses for a model type."""
    return {name for release in RELEASES for name in table(release)["tokenizer_of"].get(model_type, ())}


def passes_over_named_class(model_type: str) -> bool:
    """Return whether some release uses its default tokenizer class for a model type and ignores the named class."""
    return any(model_type in table(release)["overridden"] for release in RELEASES)


def tokens_of_class(name: str) -> set[str] | None:
    """Return the tokens that a tokenizer class adds by itself, or ``None`` if some release was not measured."""
    names = (name.removesuffix("Fast"), f"{name.removesuffix('Fast')}Fast")
    tokens: set[str] = set()
    known = False
    for release in RELEASES:
        measured = table(release)["tokenizers"]
        here = [measured[class_name] for class_name in names if class_name in measured]
        if here and not any(class_name is not None for class_name in here):
            return None
        known = known or bool(here)
        tokens.update(*(class_name for class_name in here if class_name is not None))
    return tokens if known else None


def norms(model_type: str) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, str]]]:
    """Yield (release, record of the last norm, aliases of its keys) for each release with the model type."""
    for release in RELEASES:
        measured = table(release)
        if model_type in measured["ids"]:
            yield release, measured["norms"].get(model_type, {}), measured["aliases"].get(model_type, {})
