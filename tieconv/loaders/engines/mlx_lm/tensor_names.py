"""Say which tensors mlx-lm's strict loading refuses: by their names, or by their shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

from tieconv.checkpoint.inspection import Inspection
from tieconv.loaders import release_tables
from tieconv.loaders.engines.mlx_lm.model_config import TextModel
from tieconv.loaders.evidence.head_pair import Pair, head_pair
from tieconv.loaders.evidence.table_rows import row_count
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.text import shown

_QUERY = re.compile(r"\blayers\.(\d+)\.self_attn\.q_proj\.weight$")


def names_refused(inspection: Inspection, text: TextModel) -> Refusal | None:
    """Return the refusal of a name that the class does not have, or of an absent one that it needs."""
    return next(_names(inspection, text), None)


def _names(inspection: Inspection, text: TextModel) -> Iterator[Refusal]:
    names, pair = inspection.checkpoint.tensors, head_pair(inspection)
    if (
        pair is not None
        and pair.has_embedding
        and text.file not in release_tables.by_type(text.tables, "other prefixes")
    ):
        canonical = inspection.family.input_embedding
        if pair.embedding != canonical:
            sentence = f"mlx-lm's model class has no parameter {shown(pair.embedding)}, it has {shown(canonical)}"
            yield Refusal(Cause.NAMES, sentence, (pair.embedding,))
    beside = next((name for name in names if name.startswith("lm_head.")), None)
    if pair is not None and pair.embedding.startswith("language_model.") and beside is not None:
        # Some files move it below language_model., others do not know it there.
        yield unknown(f"{shown(beside)} is outside language_model., and tieconv has no measurement of that")
    for pattern in release_tables.by_type(text.tables, "unknown names").get(text.file, ()):
        for name in names:
            if fnmatchcase(name, pattern):
                yield Refusal(Cause.NAMES, f"mlx-lm's model class has no parameter {shown(name)}", (name,))
    for pattern in release_tables.by_type(text.tables, "needed names").get(text.file, ()):
        if not any(fnmatchcase(name, pattern) for name in names):
            yield Refusal(Cause.NAMES, f"the file does not contain {shown(pattern)}, which mlx-lm's model class needs")


def other_spelling(inspection: Inspection, pair: Pair) -> Refusal | None:
    """Return the refusal of a claim if another stored name may be that of the embedding, or ``None``."""
    end = "." + ".".join(pair.embedding.split(".")[-2:])
    name = next((name for name in inspection.checkpoint.tensors if name.endswith(end)), None)
    return unknown(f"{shown(name)} may be the embedding under another name") if name is not None else None


def shapes_refused(inspection: Inspection, text: TextModel, pair: Pair, *, tied: bool | None) -> Refusal | None:
    """Return the refusal of a table with another shape than the class has, or ``None``.

    ``tied`` says that the class drops the head before it compares shapes.
    """
    tensors = inspection.checkpoint.tensors
    tables = [name for name in (pair.embedding, *(() if tied else (pair.head,))) if name in tensors]
    rows = _vocabulary(text) or row_count(inspection, tables[0])
    misfit = next((name for name in tables if tensors[name].shape[:1] != (rows,)), None)
    if misfit is not None:
        sentence = f"{shown(misfit)} has {row_count(inspection, misfit)} rows, and mlx-lm's model has {rows}"
        return Refusal(Cause.SHAPES, sentence, (misfit,))
    return _heads_refused(inspection, text)


def _vocabulary(text: TextModel) -> int | None:
    """Return the rows of the tables in mlx-lm's model; ``None`` if the config does not say."""
    defaults = release_tables.by_type(text.tables, "default vocabulary")
    # A composite with a default overwrites the size in the text config.
    outer = text.config is not text.whole and text.file in defaults
    rows = text.whole.get("vocab_size", defaults[text.file]) if outer else text.config.get("vocab_size")
    inner = text.config.get("text_config")
    rows = inner.get("vocab_size") if rows is None and isinstance(inner, Mapping) else rows
    return rows if isinstance(rows, int) else None


def _heads_refused(inspection: Inspection, text: TextModel) -> Refusal | None:
    """Return the refusal of a query projection if the config has no head size and the class has another default."""
    defaults = release_tables.by_type(text.tables, "default head size").get(text.name, {})
    heads, layers = text.config.get("num_attention_heads"), text.config.get("layer_types")
    if not isinstance(heads, int):
        return None
    for name, tensor in inspection.checkpoint.tensors.items():
        layer = _QUERY.search(name)
        if layer is None:
            continue
        full = isinstance(layers, list) and layers[int(layer[1]) :][:1] == ["full_attention"]
        key = "global_head_dim" if full and "global_head_dim" in defaults else "head_dim"
        if key in defaults and key not in text.config and tensor.shape[:1] != (heads * defaults[key],):
            sentence = f"the config has no {key}, and {shown(name)} does not fit mlx-lm's default of {defaults[key]}"
            return Refusal(Cause.SHAPES, sentence, (name,))
    return None
