"""What loaders take from the order in which a model's tensors are stored, which a conversion changes."""

from __future__ import annotations

from collections.abc import Iterator

from tieconv.checkpoint.files.dtypes import FLOATS
from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders.load import TRANSFORMERS_4, load
from tieconv.text import shown


def order_notes(inspection: Inspection) -> Iterator[str]:
    """Where another order may be another model."""
    yield from _types(inspection)
    names = ", ".join(map(shown, load(inspection, TRANSFORMERS_4).in_order))
    if names:
        yield (
            f"not function-preserving in transformers 4, which makes one table of {names} and keeps the one that it "
            "reads last: they differ, and their order may be another one now"
        )


def _types(inspection: Inspection) -> Iterator[str]:
    """`dtype="auto"`, the default of transformers 5, is that of the first tensor where the config names none."""
    config = inspection.checkpoint.config_values
    found = sorted({record.dtype for record in inspection.checkpoint.tensors.values()} & set(FLOATS))
    if len(found) > 1 and config and not (config.get("dtype") or config.get("torch_dtype")):
        yield (
            f"the config names no dtype and the tensors are of {', '.join(found)}: transformers 5 loads all of them in "
            "the type of the first one that it reads, which may be another one now: write dtype into config.json"
        )
