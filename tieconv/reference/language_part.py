"""Tell the language model of a loaded class from its other parts, by transformers' own accessors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


def language_modules(model: Any) -> dict[str, Any]:
    """Return decoder, input embedding and head by their paths in the model; one that it does not have is absent."""
    names = {id(module): name for name, module in model.named_modules()}
    parts = (model.get_decoder(), model.get_input_embeddings(), model.get_output_embeddings())
    return {names[id(part)]: part for part in parts if id(part) in names}


def left_out(model: Any, path: str = "", parts: Iterable[str] | None = None) -> Iterator[str]:
    """Yield the outermost modules and parameters that are in no part of the language model and hold none."""
    parts = tuple(language_modules(model)) if parts is None else tuple(parts)
    if path in parts:
        return
    module = model.get_submodule(path)
    for name, _ in module.named_parameters(recurse=False):
        yield f"{path}.{name}".lstrip(".")
    for name, child in module.named_children():
        inner = f"{path}.{name}".lstrip(".")
        if any(part == inner or part.startswith(f"{inner}.") for part in parts):
            yield from left_out(model, inner, parts)
        elif any(True for _ in child.parameters()):
            yield inner


def stored_outside(model: Any, stored: Iterable[str]) -> tuple[str, ...]:
    """Return the stored names that transformers loads into parts other than the language model.

    A name that tieconv cannot follow is not returned, so that its tensor still has to be in the graph.
    """
    parts = tuple(left_out(model))
    if not parts:
        return ()
    loads = loaded_names(model, tuple(stored))
    return tuple(name for name, loaded in loads.items() if any(f"{loaded}.".startswith(f"{part}.") for part in parts))


def loaded_names(model: Any, stored: tuple[str, ...]) -> dict[str, str]:
    """Return for each stored name the parameter that it is loaded into, or the first of several."""
    parameters = model.state_dict()
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, rename_source_key

        mapping = get_model_conversion_mapping(model)
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        renamings = [entry for entry in mapping if not isinstance(entry, WeightConverter)]
        prefix = model.base_model_prefix
        loads = {name: rename_source_key(name, renamings, converters, prefix, parameters)[0] for name in sorted(stored)}
    except (ImportError, TypeError):
        return {name: name for name in stored}  # a release with another interface
    return {name: name if loaded not in parameters and name in parameters else loaded for name, loaded in loads.items()}
