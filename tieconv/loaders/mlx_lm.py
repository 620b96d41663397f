"""Predict mlx-lm: one source file for each model type, and strict about names and shapes.

The tables ``mlx-lm-RELEASE`` list the kind of each file. A type follows the `flag` (with a default, or `required`).
While tied, it `drops` a stored head or refuses it. Other types have their `own` head, always use the `embedding`, or
are tied exactly if no head is stored (`if stored`). A type that has the head `always` loads it and may not use it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import partial

from tieconv.architectures.effective_flag import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.value_type import record
from tieconv.loaders import evidence, release_tables
from tieconv.loaders.interface import Consumer
from tieconv.loaders.loaded import Cause, Loaded, Refusal, missing, stopped, unknown
from tieconv.text import in_words, shown, with_type

_LOADER = "mlx-lm"
_PATTERN = "model*.safetensors"
_PARTS = ("scales", "biases")


def load(inspection: Inspection, *, release: str) -> Loaded:
    """Return the head and the embedding in mlx-lm's model."""
    codes = all(_is_mlx(inspection, name) for name in _quantised(inspection))
    refusal = evidence.by_pattern(
        inspection, _LOADER, (evidence.SAFETENSORS,), _PATTERN, prefers=True, joined=True, codes=codes
    )
    if refusal is not None:
        return stopped(_LOADER, refusal)
    read = evidence.with_unused_files(inspection, _PATTERN)
    text = text_model(read, release)
    if isinstance(text, Refusal):
        return stopped(_LOADER, text)
    # The class cannot be built with the config, or its names and those of the file differ.
    refusal = next(_refused(text), None) or next(_names(read, text), None)
    known = refusal or evidence.known_pair(read, f"{_LOADER} {release}", text.tables, text.name)
    if isinstance(known, Refusal):
        return stopped(_LOADER, known)
    kind, pair = known
    if kind == "if stored":
        tied: bool | None = not pair.has_head
    elif not kind.startswith("flag"):
        tied = kind == "embedding"
    elif FLAG in text.config:
        tied = bool(text.config[FLAG])
    else:
        tied = None if "required" in kind else "default true" in kind
    refusal = _head_refused(read, kind, pair, tied) or shapes_refused(read, text, pair, tied="drops" in kind and tied)
    if refusal is not None:
        return stopped(_LOADER, refusal)
    model = evidence.PairModel(_LOADER, read, pair, has_bias="bias" in kind)
    return model.tied(pair.embedding) if tied else model.untied()


def _quantised(inspection: Inspection) -> list[str]:
    """Return the file names of the tables that are stored as codes, quantised by any program."""
    family, tensors = inspection.family, inspection.checkpoint.tensors
    names = (evidence.in_file(inspection, name) for name in (family.input_embedding, family.output_head) if name)
    return [name for name in names if quantised_twin(name, tensors) is not None]


def _is_mlx(inspection: Inspection, name: str) -> bool:
    """Return whether a table has codes of MLX: 32-bit words under the matrix's own name, beside their scales."""
    tensors = inspection.checkpoint.tensors
    return name in tensors and tensors[name].dtype == "U32" and f"{name.removesuffix('weight')}scales" in tensors


def _head_refused(inspection: Inspection, kind: str, pair: evidence.Pair, tied: bool | None) -> Refusal | None:
    bias, tensors = evidence.stored_bias(inspection), inspection.checkpoint.tensors
    if not pair.has_embedding:
        return other_spelling(inspection, pair) or missing([pair.embedding])
    if (refusal := next(evidence.layers_refused(inspection, pair), None)) is not None:
        return refusal
    if bias and "bias" not in kind:
        return Refusal(Cause.NAMES, f"the model class has no parameter {in_words(bias)}", bias)
    if not bias and "bias" in kind:
        return missing([f"{pair.head.removesuffix('.weight')}.bias"])
    if tied is None:
        return Refusal(Cause.CONFIG, f"the config has no {FLAG}, and the model class requires it")
    if not pair.has_head and (not tied or "always" in kind):
        return missing([pair.head])
    parts = tuple(part for end in _PARTS if (part := f"{pair.head.removesuffix('weight')}{end}") in tensors)
    if tied and parts and "drops" in kind:
        # sanitize drops only the tensor named .weight
        return Refusal(Cause.NAMES, f"a tied model class has no parameter {in_words(parts)}", parts)
    if tied and pair.has_head and not any(word in kind for word in ("drops", "always")):
        sentence = f"the model class has no parameter {shown(pair.head)}: it uses the embedding as the head"
        return Refusal(Cause.NAMES, sentence, (pair.head,))
    return None


_READ = "mlx_lm/utils.py, load_model and mlx_lm/models/"
_RELEASES = (
    ("<0.32", "0.28", (0, 28), (0, 32), "0.28.4", f"mlx-lm 0.28.4, {_READ}"),
    ("0.32", "0.32", (0, 32), None, "0.32.2", f"mlx-lm 0.32.2, {_READ}; ml-explore/mlx-lm#1298"),
)
"""Each version, the release of its tables, its range, the release that ran, and its source."""
CONSUMERS = tuple(
    Consumer(_LOADER, version, since, cited, partial(load, release=release), before, own_rows=True, ran=(ran,))
    for version, release, since, before, ran, cited in _RELEASES
)


# Find mlx-lm's file for a model type, and say what that file refuses in the config.

_TEXT = "text_config"


@record
class TextModel:
    """The language model that mlx-lm builds: its file, its ``name`` in the tables, and its config.

    ``name`` is the file, or ``file/type`` if the type of the text config decides. ``whole`` is the model's config.
    """

    tables: str
    file: str
    name: str
    config: Mapping[str, object]
    whole: Mapping[str, object]


def text_model(inspection: Inspection, release: str) -> TextModel | Refusal:
    """Return the language model of the config, or why mlx-lm has none."""
    whole, tables = inspection.checkpoint.config_values, f"mlx-lm-{release}"
    model_type = whole.get("model_type")
    if not isinstance(model_type, str):
        return Refusal(Cause.CONFIG, "the config has no model_type, and mlx-lm requires it")
    renamed, family_type = release_tables.by_type(tables, "same file"), inspection.family.model_type
    file = renamed.get(model_type, model_type)
    names = release_tables.by_type(tables, "required keys")
    if family_type and renamed.get(family_type, family_type) != file:
        return unknown(f"the config names the class {shown(inspection.family.architecture)} of another model type")
    if file not in names:
        return Refusal(Cause.CONFIG, f"mlx-lm {release} has no model {with_type(model_type, 'of type')}")
    nested = release_tables.by_type(tables, "nested").get(file)
    if not isinstance(whole.get(_TEXT, {}), Mapping) or (nested == "required" and _TEXT not in whole):
        return Refusal(Cause.CONFIG, f"the config has no {_TEXT}, and mlx-lm requires it")
    part = whole.get(_TEXT)
    config = part if nested is not None and isinstance(part, Mapping) else whole
    name = f"{file}/{config.get('model_type')}"
    return TextModel(tables, file, name if name in names else file, config, whole)


def _refused(text: TextModel) -> Iterator[Refusal]:
    required = set(release_tables.by_type(text.tables, "required keys").get(text.name, ()))
    # A config without any size is a fragment: no loader builds a model from it.
    if not ({"vocab_size", *required} - {FLAG}) & text.config.keys():
        return
    lacks = sorted(required - text.config.keys())
    if lacks:
        yield Refusal(Cause.CONFIG, f"the config has no {in_words(lacks)}, and mlx-lm's model class requires it")
    sizes = release_tables.by_type(text.tables, "not null").get(text.name, ())
    null = [key for key in sizes if text.config.get(key) is None]
    if null:
        yield Refusal(
            Cause.CONFIG, f"the config has no value for {in_words(null)}, and mlx-lm's model class requires it"
        )
    for first, second, factor in release_tables.by_type(text.tables, "equal sizes").get(text.file, ()):
        size, width = text.config.get(first), text.config.get(second)
        if isinstance(size, int) and isinstance(width, int) and size != factor * width:
            sentence = f"mlx-lm's model class needs {first} to be {factor} times {second}, and the config differs"
            yield Refusal(Cause.CONFIG, sentence)
    layers = text.config.get("layer_types")
    if isinstance(layers, list):
        yield from _layers_refused(text, layers)


def _layers_refused(text: TextModel, layers: list[object]) -> Iterator[Refusal]:
    known = release_tables.by_type(text.tables, "layer types").get(text.file)
    unknown_type = next((layer for layer in layers if known and layer not in known), None)
    if unknown_type is not None:
        yield Refusal(Cause.CONFIG, f"mlx-lm's model class does not have the layer type {shown(str(unknown_type))}")
    interval = text.config.get(
        "full_attention_interval", release_tables.by_type(text.tables, "layer interval").get(text.file)
    )
    if text.file in release_tables.by_type(text.tables, "layer interval") and isinstance(interval, int) and interval:
        expected = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(len(layers))]
        if layers != expected:
            sentence = f"mlx-lm builds every {interval}th layer with full attention, and layer_types differs"
            yield Refusal(Cause.CONFIG, sentence)


# Say which tensors mlx-lm's strict loading refuses: by their names, or by their shapes.

_QUERY = re.compile(r"\blayers\.(\d+)\.self_attn\.q_proj\.weight$")


def _names(inspection: Inspection, text: TextModel) -> Iterator[Refusal]:
    names, pair = inspection.checkpoint.tensors, evidence.head_pair(inspection)
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


def other_spelling(inspection: Inspection, pair: evidence.Pair) -> Refusal | None:
    """Return the refusal of a claim if another stored name may be that of the embedding, or ``None``."""
    end = "." + ".".join(pair.embedding.split(".")[-2:])
    name = next((name for name in inspection.checkpoint.tensors if name.endswith(end)), None)
    return unknown(f"{shown(name)} may be the embedding under another name") if name is not None else None


def shapes_refused(
    inspection: Inspection, text: TextModel, pair: evidence.Pair, *, tied: bool | None
) -> Refusal | None:
    """Return the refusal of a table with another shape than the class has, or ``None``.

    ``tied`` says that the class drops the head before it compares shapes.
    """
    tensors = inspection.checkpoint.tensors
    tables = [name for name in (pair.embedding, *(() if tied else (pair.head,))) if name in tensors]
    rows = _vocabulary(text) or evidence.row_count(inspection, tables[0])
    misfit = next((name for name in tables if tensors[name].shape[:1] != (rows,)), None)
    if misfit is not None:
        sentence = f"{shown(misfit)} has {evidence.row_count(inspection, misfit)} rows, and mlx-lm's model has {rows}"
        return Refusal(Cause.SHAPES, sentence, (misfit,))
    if (width := evidence.undeclared_width(inspection, tables)) is not None:
        return width
    # The refusal of a query projection if the config has no head size and the class has another default.
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


def _vocabulary(text: TextModel) -> int | None:
    """Return the rows of the tables in mlx-lm's model; ``None`` if the config does not say."""
    defaults = release_tables.by_type(text.tables, "default vocabulary")
    # A composite with a default overwrites the size in the text config.
    outer = text.config is not text.whole and text.file in defaults
    rows = text.whole.get("vocab_size", defaults[text.file]) if outer else text.config.get("vocab_size")
    inner = text.config.get("text_config")
    rows = inner.get("vocab_size") if rows is None and isinstance(inner, Mapping) else rows
    return rows if isinstance(rows, int) else None
