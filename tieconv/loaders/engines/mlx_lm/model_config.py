"""Find mlx-lm's file for a model type, and say what that file refuses in the config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.architectures.effective_flag import FLAG
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.value_type import record
from tieconv.loaders import release_tables
from tieconv.loaders.evidence.head_pair import listed
from tieconv.loaders.loaded import Cause, Refusal, unknown
from tieconv.text import shown

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
        return Refusal(Cause.CONFIG, f"mlx-lm {release} does not have the model type {shown(model_type)}")
    nested = release_tables.by_type(tables, "nested").get(file)
    if not isinstance(whole.get(_TEXT, {}), Mapping) or (nested == "required" and _TEXT not in whole):
        return Refusal(Cause.CONFIG, f"the config has no {_TEXT}, and mlx-lm requires it")
    config = _text_config(whole, nested)
    name = f"{file}/{config.get('model_type')}"
    return TextModel(tables, file, name if name in names else file, config, whole)


def _text_config(whole: Mapping[str, object], nested: str | None) -> Mapping[str, object]:
    """Return the config of the language model; an `optional` text config is the whole config if it is absent."""
    config = whole.get(_TEXT)
    return config if nested is not None and isinstance(config, Mapping) else whole


def config_refused(text: TextModel) -> Refusal | None:
    """Return the refusal of a config with which mlx-lm's class cannot be built, or ``None``."""
    return next(_refused(text), None)


def _refused(text: TextModel) -> Iterator[Refusal]:
    required = set(release_tables.by_type(text.tables, "required keys").get(text.name, ()))
    # A config without any size is a fragment: no loader builds a model from it.
    if not ({"vocab_size", *required} - {FLAG}) & text.config.keys():
        return
    lacks = sorted(required - text.config.keys())
    if lacks:
        yield Refusal(Cause.CONFIG, f"the config has no {listed(lacks)}, and mlx-lm's model class requires it")
    sizes = release_tables.by_type(text.tables, "not null").get(text.name, ())
    null = [key for key in sizes if text.config.get(key) is None]
    if null:
        yield Refusal(Cause.CONFIG, f"the config has no value for {listed(null)}, and mlx-lm's model class requires it")
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
