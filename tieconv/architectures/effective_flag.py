"""Decide whether a release of transformers ties, from the flag at each level of the config."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from tieconv.architectures.class_table import config_types, exceptions, size_header, size_keys
from tieconv.checkpoint.family import Family, FlagMeaning, Knowledge, Tying
from tieconv.checkpoint.inspection import Inspection, State
from tieconv.checkpoint.quantised_matrix import quantised_twin
from tieconv.checkpoint.weight_file import FLOATS, fits
from tieconv.text import count, listed, shown

# Decide whether transformers 5 ties, from the flag at each level of the config.

_STATES: tuple[bool | None, ...] = (None, True, False)  # order of the letters in ``Family.truth``
_FIXED = {
    Tying.HEADLESS: "No output head: {} has none.",
    Tying.ALWAYS: "Tied: {} always ties.",
    Tying.NEVER: "Untied: {} never ties.",
}
_FLAG = "tie_word_embeddings"


def effective(family: Family, config_levels: Mapping[str, bool | None]) -> tuple[bool, str]:
    """Return whether the head is tied, and why in one sentence.

    ``config_levels`` maps ``""`` (the top level) and dotted nested paths to the flag. A missing path and ``None`` both
    mean that the level does not declare the flag. Only one nested level has an effect. If another level declares the
    flag, the sentence says that it is ignored.
    """
    if family.tying in _FIXED and family.knowledge is Knowledge.TABLE:
        return family.tying is Tying.ALWAYS, _FIXED[family.tying].format(family.architecture or "this class")
    if family.knowledge is not Knowledge.TABLE:
        return _guess(config_levels)
    top = config_levels.get("")
    if len(family.truth) == len(_STATES):
        tied = family.truth[_STATES.index(top)] == "T"
        return tied, _because(family, tied, top, "", _strays(config_levels, ()))
    nested = config_levels.get(family.levels[0])
    row = 3 * _STATES.index(top)
    tied = family.truth[row + _STATES.index(nested)] == "T"
    strays = _strays(config_levels, family.levels[:1])
    if len(set(family.truth[row : row + 3])) == 1:  # the nested flag has no effect here
        unread = strays if nested is None or nested == tied else (family.levels[0], *strays)
        return tied, _because(family, tied, top, "", unread)
    return tied, _because(family, tied, nested, family.levels[0], strays)


def gate(family: Family, config_levels: Mapping[str, bool | None]) -> bool:
    """Return whether the flag ties the gated groups.

    Classes without a tied head have such groups too, for example an encoder-decoder without a head. The table's truth
    is about the head. If the head never ties, only the top level decides, and an absent flag means tied.
    """
    if family.knowledge is not Knowledge.TABLE or not family.truth:
        return _guess(config_levels)[0]
    if family.tying is Tying.NEVER:
        return config_levels.get("") is not False
    return _letter(family, config_levels) == "T"


def _letter(family: Family, config_levels: Mapping[str, bool | None]) -> str:
    top = _STATES.index(config_levels.get(""))
    if len(family.truth) == len(_STATES):
        return family.truth[top]
    return family.truth[3 * top + _STATES.index(config_levels.get(family.levels[0]))]


def _strays(config_levels: Mapping[str, bool | None], read: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path, value in config_levels.items() if path and value is not None and path not in read)


def _because(family: Family, tied: bool, value: bool | None, level: str, unread: tuple[str, ...]) -> str:
    if value is None:
        owner = family.architecture or "this class"
        reason = f"{_flag(level)} is absent, and the default of {owner} is {str(tied).lower()}"
    else:
        reason = f"{_flag(level)} is {str(value).lower()}"
    ignored = f" transformers 5 ignores the flag in {listed(unread)}." if unread else ""
    return f"{_verdict(tied)}: {reason}.{ignored}"


def _verdict(tied: bool) -> str:
    return "Tied" if tied else "Untied"


def _flag(level: str) -> str:
    return f"{shown(level)}.{_FLAG}" if level else _FLAG


def _guess(config_levels: Mapping[str, bool | None]) -> tuple[bool, str]:
    """Return the flag of an unknown architecture: the outermost declared value; without one, unknown."""
    for path in sorted(config_levels, key=lambda path: (path.count(".") + bool(path), path)):
        value = config_levels[path]
        if value is not None:
            reason = f"{_flag(path)} is {str(value).lower()} (unknown architecture)"
            return value, f"{_verdict(value)}: {reason}."
    return False, "Unknown: the config has no tie flag, and tieconv does not know the class."


# Find the config level that each transformers version reads, and the tie flag at that level.

FLAG = "tie_word_embeddings"
DERIVED_KEY = "scale_decoder_outputs"
"""The key that sets the scale of the logits in transformers 5, instead of the flag."""


def nested(config: Mapping[str, object], path: str) -> Mapping[str, object] | None:
    """Return the object at a dotted ``path``; ``None`` if there is none."""
    value: object = config
    for key in path.split(".") if path else ():
        value = value.get(key) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else None


def text_config(inspection: Inspection) -> Mapping[str, object]:
    """Return the config of the language model: the whole config, or the nested one of the part with the head."""
    return nested(inspection.checkpoint.config_values, inspection.family.text_level) or {}


def scales_v5(inspection: Inspection) -> bool | None:
    """Return `scale_decoder_outputs` if transformers 5 scales the logits by it; ``None`` if it does not."""
    derives = FlagMeaning.DERIVES in (inspection.family.meaning_v5, inspection.family.meaning_v4)
    scales = text_config(inspection).get(DERIVED_KEY) if derives else None
    return scales if isinstance(scales, bool) else None


def cannot_build(inspection: Inspection) -> bool:
    """Return whether transformers 5 cannot build the class, because the text part lacks the table to tie."""
    family = inspection.family
    by_level = {entry.path.removesuffix(FLAG).rstrip("."): entry.value for entry in inspection.config.declared}
    flags = {path: None if value is None else bool(value) for path, value in by_level.items()}
    return family.knowledge is Knowledge.TABLE and bool(family.truth) and _letter(family, flags) == "E"


_TORCH_TYPES = re.compile(
    r"half|bfloat16|float|double|chalf|cfloat|cdouble|bool|int|long|short|bits?[0-9x]*|qu?int[0-9x]+"
    r"|float(16|32|64|[48]_[a-z0-9_]+)|u?int([1-8]|16|32|64)|complex(32|64|128)"
)
"""Names of types in torch 2.13, and of small floats that it may get."""
_NOT_OF_WEIGHTS = re.compile("u?int[0-9]*|bool|long|short|float8_.*|complex[0-9]+|chalf|cfloat|cdouble")
"""Types of torch that transformers 5.23 and 5.24 refuse at the top of a config. They ignore those of a part."""


def refused_config(inspection: Inspection) -> str:
    """Return why transformers 5.23 refuses the config; often empty.

    5.0 compares the layers of a few classes. It was not measured with another dtype, or with an unknown word.
    """
    refused, own = _refused_dtype(inspection), "auto_map" in inspection.checkpoint.config_values
    if refused or own or inspection.family.knowledge is not Knowledge.TABLE:
        return refused
    tests = (_unlisted_layers, _unknown_word, _wrong_type, _incomplete_rope)
    return next(filter(None, (test(inspection) for test in tests)), "")


_TYPES = {str: "text", bool: "boolean", float: "decimal", int: "number", type(None): "null"}
_NOUNS = {"boolean": "true or false", "decimal": "a decimal number", "number": "a whole number"}


def _wrong_type(inspection: Inspection) -> str:
    """Return that a value of the config has a type that transformers does not accept for its key."""
    config, family = inspection.checkpoint.config_values, inspection.family
    kinds = {"": family.model_type, family.text_level: family.text_type}
    parts = {name: part.get("model_type") for name, part in config.items() if isinstance(part, Mapping)}
    for level, kind in (parts | kinds).items():
        values = nested(config, level) or {}
        if not isinstance(kind, str) or values.get("model_type", kind) != kind:
            continue
        for key, types in config_types(kind).items():
            stated = _TYPES.get(type(values.get(key, [])))
            if stated and stated not in types and key not in SIZES:
                path, wanted = f"{level}.{key}".lstrip("."), " or ".join(_NOUNS.get(each, each) for each in types)
                return f"{shown(path)} in the config is {shown(json.dumps(values[key]))}, not {wanted}"
    return ""


_ROPE = {
    **dict.fromkeys(("linear", "dynamic", "yarn"), ("factor",)),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""The keys without which all 236 config classes of transformers 5.23 that have RoPE refuse its type."""


def _incomplete_rope(inspection: Inspection) -> str:
    """Return that the config lacks a key of its type of RoPE."""
    config, words = inspection.checkpoint.config_values, size_keys(inspection.family).get("words", {})
    for path in words.get("type of RoPE", ()):
        level = path.removesuffix(".rope_type")
        legacy = level.replace("rope_parameters", "rope_scaling")  # it replaces the newer key
        level = legacy if nested(config, legacy) else level
        values = nested(config, level) or {}
        kind = values.get("rope_type", values.get("type"))
        for key in _ROPE.get(kind, ()) if isinstance(kind, str) else ():
            # transformers 5.23 builds a Llama with a text as `long_factor`.
            if key not in values or (isinstance(values[key], str) and key != "long_factor"):
                needed = "list" if kind == "longrope" else "number"
                return f"{shown(level)} in the config has the type {kind}, but no {needed} as {key}"
    return ""


def _unknown_word(inspection: Inspection) -> str:
    """Return that the config names an activation, or a type of layers or RoPE, that transformers does not have."""
    config, family = inspection.checkpoint.config_values, inspection.family
    record, layers = size_keys(family), f"{family.text_level}.layer_types".lstrip(".")
    known = size_header()["words"]
    for kind, paths in {**record.get("words", {}), "type of layer": [layers]}.items():
        for path in paths:
            value = _value(config, record, path)
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str) and word not in known[kind]:
                    return f"{path} in the config is {shown(json.dumps(word))}, and transformers has no such {kind}"
    return ""


def _refused_dtype(inspection: Inspection) -> str:
    """Return that a config names a dtype that torch does not have, or that no model has. `from_dict` looks it up."""
    if inspection.family.knowledge is not Knowledge.TABLE or inspection.checkpoint.format not in (
        "safetensors",
        "torch",
    ):
        return ""
    for level in dict.fromkeys(("", inspection.family.text_level)):
        values = nested(inspection.checkpoint.config_values, level) or {}
        key = next((key for key in ("dtype", "torch_dtype") if values.get(key) is not None), "")
        name = values.get(key)
        if isinstance(name, str) and not _TORCH_TYPES.fullmatch(name):
            path = f"{level}.{key}".lstrip(".")
            return f"{shown(path)} in the config is {shown(json.dumps(name))}, and torch has no such type"
        quantised = any(entry.startswith("quant") for entry in values)
        if isinstance(name, str) and not (level or quantised) and _NOT_OF_WEIGHTS.fullmatch(name):
            needed = "a floating-point type of 16 bits or more"
            return f"{key} in the config is {shown(json.dumps(name))}, and a model needs {needed}"
    return ""


def _unlisted_layers(inspection: Inspection) -> str:
    """Return that `layer_types` does not list each layer. `validate_layer_type` compares the two in every config."""
    config, family = text_config(inspection), inspection.family
    layers, types = config.get("num_hidden_layers"), config.get("layer_types")
    if not isinstance(types, list) or type(layers) is not int or layers == len(types):
        return ""
    cut = layers < len(types) and family.text_type == "deepseek_v4"  # its config drops the surplus entries
    return "" if cut else f"num_hidden_layers is {layers:,}, but layer_types lists {count(len(types), 'layer')}"


def levels(inspection: Inspection) -> dict[str, bool]:
    """Return the declared flag by level, for the levels that a transformers version reads."""
    by_level = {entry.path.removesuffix(FLAG).rstrip("."): entry.value for entry in inspection.config.declared}
    read = sorted(set(levels_read(inspection.family)))
    return {level: bool(by_level[level]) for level in read if by_level.get(level) is not None}


def levels_read(family: Family) -> Iterator[str]:
    """Yield the levels (``""`` for the top) that a transformers version reads, some of them twice."""
    if family.level_v4 is not None:
        yield family.level_v4
    rows = [family.truth[start : start + 3] for start in range(0, len(family.truth), 3)]
    if len(rows) < 2 or len(set(rows)) > 1:
        yield ""
    if len(rows) > 1 and any(len(set(row)) > 1 for row in rows):
        yield family.levels[0]


def reading_v4(inspection: Inspection) -> bool | None:
    """Return the tie flag that transformers 4 reads from the config; ``None`` if it lacks the class."""
    family, declared = inspection.family, levels(inspection)
    if family.default_v4 is None or family.level_v4 is None:
        return None
    path = f"{family.level_v4}.{FLAG}".lstrip(".")
    if declared and all(entry.path != path for entry in inspection.config.declared):
        # Without an object at that level, the whole config is the flat config of the text model.
        return inspection.config.effective
    if any(entry.path == path and entry.present and entry.value is None for entry in inspection.config.declared):
        return False  # null differs from an absent key: it replaces the class's default
    return declared.get(family.level_v4, family.default_v4)


# Find a tie flag under another name, which a class prefers, or which another program's config has.

_NAME = "tie_embedding"
_TRANSFORMERS = (
    "model_type", "architectures", "transformers_version", "auto_map", "tie_word_embeddings", "text_config",
)  # fmt: skip
"""Keys of which transformers writes at least one into every config."""
_MAMBA = {"d_model", "n_layer", "ssm_cfg"}
"""Keys of `MambaConfig` in state-spaces/mamba, `mamba_ssm/models/config_mamba.py`, which no other program has."""
_MISTRAL = {"dim", "n_layers", "head_dim", "hidden_dim"}
"""Keys of Mistral's `params.json`, which vLLM reads in `transformers_utils/configs/mistral.py`. Meta's lack two."""


def own_flag(config: Mapping[str, object]) -> str | None:
    """Return the key that decides instead of ``tie_word_embeddings``, or ``None``."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not isinstance(config.get(_NAME), bool):
        return None
    return _NAME if exceptions("flag").get(kind) == _NAME else None


def is_foreign(config: Mapping[str, object]) -> bool:
    """Return whether a config is not one of transformers. Its loader may refuse keys that it does not know."""
    return bool(config) and not any(key in config for key in _TRANSFORMERS)


def foreign_flag(config: Mapping[str, object]) -> tuple[str, bool] | None:
    """Return the tie flag of another program's config, by its key and the value of an absent one; else ``None``."""
    if not is_foreign(config):
        return None
    if config.keys() >= _MAMBA:
        return "tie_embeddings", True
    return ("tied_embeddings", False) if config.keys() >= _MISTRAL else None


def loads_both(config: Mapping[str, object]) -> bool:
    """Return whether the program of this config loads strictly, and wants the name of a tied head too."""
    return is_foreign(config) and config.keys() >= _MAMBA


# Compare the vocabulary sizes of a config with the stored rows.

_MAX_DEPTH = 4
_USUAL = frozenset({"vocab_size", "padded_vocab_size", "decoder_vocab_size"})

TEXT_LEVELS = ("text_config", "llm_config", "language_config")
"""The level of the language model in most composites. Configs of NVIDIA and DeepSeek have the others."""


def vocabulary_sizes(inspection: Inspection) -> dict[str, int]:
    """Return every vocabulary size of the config by its dotted path.

    Empty if another vocabulary (audio codes, additional tokens) may have rows in the same table. Also empty for a class
    outside the architecture table.
    """
    # The config of LLaVA's vision part has a size that counts no table.
    values = {key: value for key, value in inspection.checkpoint.config_values.items() if key != "vision_config"}
    sizes = dict(_sizes(values, "", 0))
    mixed = any(path.rpartition(".")[2] not in _USUAL for path in sizes)
    return {} if mixed or inspection.family.knowledge is not Knowledge.TABLE else sizes


def word_sizes(inspection: Inspection) -> dict[str, int]:
    """Return the vocabulary sizes that count rows of the embedding or the head, by dotted path.

    Sizes of other parts, such as a Q-Former, count other tables. Empty also if the config of the text part has no size:
    a default then counts the rows.
    """
    family, config = inspection.family, inspection.checkpoint.config_values
    texts = {*TEXT_LEVELS, family.part.level if family.part else TEXT_LEVELS[0]}
    counting = {"", *texts, *exceptions("vocabulary").get(family.architecture, {}).get("levels", ())}
    sizes = {path: n for path, n in vocabulary_sizes(inspection).items() if path.rpartition(".")[0] in counting}
    return sizes if all(f"{level}.vocab_size" in sizes for level in texts if nested(config, level)) else {}


def predicted_tokens(inspection: Inspection) -> tuple[str, int] | None:
    """Return the config's key for how many rows of the head predict a token, with its value; ``None`` without one.

    Only the classes of Inkling read such a key (transformers 5.24, ``models/inkling*``).
    """
    sizes = _sizes(inspection.checkpoint.config_values, "", 0)
    cut = next((item for item in sizes if item[0].rpartition(".")[2] == "unpadded_vocab_size"), None)
    return cut if inspection.family.architecture.startswith("Inkling") else None


def _counted_rows(inspection: Inspection) -> int | None:
    """Return the rows of the embedding; ``None`` if the config does not fit it, or counts two vocabularies."""
    embedding = inspection.head.input_embedding
    unclear = len({*vocabulary_sizes(inspection).values()}) != 1 or sizes_disagree(inspection)
    return None if unclear else vocabulary_rows(inspection).get(embedding.name if embedding else "")


_GENERATES = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
OF_DECODER = ("decoder_start_token_id", "forced_bos_token_id")
_GENERATION_KEYS = (*OF_DECODER, "bos_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id")
_LEAST_ROWS = 1000
"""A smaller vocabulary is that of an example, which often keeps the ids of its class's default config."""


def generation_ids(document: Mapping[str, object]) -> tuple[tuple[str, int], ...]:
    """Return the highest id of each key that ``generate`` of transformers reads in a config, after the key."""
    stated = [(key, document.get(key)) for key in _GENERATION_KEYS]
    listed = [(key, value if isinstance(value, list) else [value]) for key, value in stated]
    numbers = [(key, [number for number in values if type(number) is int and number >= 0]) for key, values in listed]
    return tuple((key, max(values)) for key, values in numbers if values)


def generation_without_row(inspection: Inspection) -> tuple[tuple[str, str, int], ...]:
    """Return file, key and highest id of each token that generation needs, and for which the embedding has no row.

    Without generation_config.json, ``generate`` of transformers takes the tokens from config.json.
    """
    rows, checkpoint, ids = _counted_rows(inspection), inspection.checkpoint, inspection.generation_ids
    document = "generation_config.json"
    if ids is None and document not in checkpoint.companions and inspection.family.architecture.endswith(_GENERATES):
        document, ids = "config.json", generation_ids(checkpoint.config_values)
    if rows is None or checkpoint.format == "gguf":
        return ()
    reported = {number for key, number in tokens_without_row(inspection) if key.endswith("pad_token_id")}
    decodes = checkpoint.config_values.get("is_encoder_decoder") is True
    passed = (*(() if decodes else OF_DECODER), *(("bos_token_id", "eos_token_id") if rows < _LEAST_ROWS else ()))
    known = [(key, number) for key, number in ids or () if number >= rows and key not in passed]
    return tuple((document, key, number) for key, number in known if key != "pad_token_id" or number not in reported)


def tokens_without_row(inspection: Inspection) -> tuple[tuple[str, int], ...]:
    """Return the padding token and the last id of the tokenizer, if the embedding has no row for them.

    Empty if the config does not fit the embedding, or counts two vocabularies.
    """
    rows = _counted_rows(inspection)
    if rows is None:
        return ()
    level, pad = inspection.family.text_level, text_config(inspection).get("pad_token_id")
    pads = ((f"{level}.pad_token_id".lstrip("."), pad),) if type(pad) is int and pad >= rows else ()
    return (*pads, *((("tokenizer", inspection.listed_rows - 1),) if inspection.listed_rows > rows else ()))


def vocabulary_rows(inspection: Inspection) -> dict[str, int]:
    """Return the rows of the stored embedding and head by name, without a head that TIE010 reports."""
    tensors = inspection.checkpoint.tensors
    head, embedding = inspection.head.output_head, inspection.head.input_embedding
    # Classes that never tie, and their bodies, may have more rows than tokens that they predict.
    may_differ = inspection.family.misfit or inspection.family.tying is Tying.NEVER
    names = [embedding.name] if embedding and not may_differ else []
    if head and head.stored and not _is_misshapen(inspection, head.name):
        names.append(head.name)
    # Quantised codes are packed, so their shape does not give the number of rows.
    matrices = [name for name in names if len(tensors[name].shape) == 2 and tensors[name].elements]
    return {name: tensors[name].shape[0] for name in matrices if quantised_twin(name, tensors) is None}


def sizes_disagree(inspection: Inspection) -> bool:
    """Return whether a table's number of rows differs from every vocabulary size in the config."""
    sizes = set(vocabulary_sizes(inspection).values())
    return bool(sizes) and any(rows not in sizes for rows in vocabulary_rows(inspection).values())


_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embed_dim")
_NARROW_WIDTHS = ("emb", "proj_dim", "factor")
"""Words in the keys of classes whose embedding has another width than the model: ALBERT, OPT, ELECTRA."""


def hidden_size(inspection: Inspection) -> int | None:
    """Return the config's hidden size, ``None`` if it has none."""
    return next(iter(_hidden_sizes(_text_values(inspection)).values()), None)


SIZES = (
    "vocab_size", "hidden_size", "n_embd", "d_model", "intermediate_size", "head_dim", "num_hidden_layers", "n_layer",
    "num_attention_heads", "num_key_value_heads", "n_head",
)  # fmt: skip


def odd_size(inspection: Inspection) -> tuple[object, str]:
    """Return the first size of the config that is text, a boolean or a decimal number, and a sentence; often "".

    Every config class of transformers 5.23 with such a key refuses all three (measured: 575 classes).
    """
    values, level = text_config(inspection), inspection.family.text_level
    key = next((key for key in SIZES if isinstance(values.get(key), str | bool | float)), None)
    if key is None or inspection.family.knowledge is not Knowledge.TABLE or inspection.checkpoint.format == "gguf":
        return None, ""
    path = f"{level}.{key}".lstrip(".")
    return values[key], f"{shown(path)} in the config is {shown(json.dumps(values[key]))}, not a whole number"


def undeclared_width(inspection: Inspection, columns: int) -> tuple[str, int] | None:
    """Return the config's first key of a hidden size, with its value, if none gives a table's ``columns``.

    ``None`` also for a class outside the architecture table, and if encoder and decoder have two configs. A class that
    never ties may have tables of two widths: ``None`` too.
    """
    family, values = inspection.family, _text_values(inspection)
    levels = (values, inspection.checkpoint.config_values)
    parted = any(isinstance(level.get(part), Mapping) for level in levels for part in ("encoder", "decoder"))
    if family.knowledge is not Knowledge.TABLE or family.misfit or family.tying is Tying.NEVER or parted:
        return None
    sizes = _hidden_sizes(values)
    text = values.get("text_config")
    for level in (values, text if isinstance(text, Mapping) else {}):
        others = [key for key in level if any(word in key for word in _NARROW_WIDTHS) and "position" not in key]
        if columns in _hidden_sizes(level).values() or any(level[key] == columns for key in others):
            return None
    return next(iter(sizes.items()), None)


def _hidden_sizes(values: Mapping[str, object]) -> dict[str, int]:
    sizes = ((key, values.get(key)) for key in _WIDTHS)
    return {key: size for key, size in sizes if type(size) is int and size > 0}


def _text_values(inspection: Inspection) -> Mapping[str, object]:
    """Return the config of the language model; if that has no sizes, the whole config or its text part."""
    values = text_config(inspection)
    if any(key in values for key in _WIDTHS):
        return values
    text = inspection.checkpoint.config_values.get("text_config")
    return text if isinstance(text, Mapping) else values


_LEAST_BYTES = 1 << 20


def is_large(inspection: Inspection) -> bool:
    """Return whether the tensors have 1 MiB or more. A smaller file may be an example of names."""
    return sum(record.nbytes for record in inspection.checkpoint.tensors.values()) >= _LEAST_BYTES


_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
"""The number of a layer or an expert in a name."""


def unfit_tensors(inspection: Inspection) -> tuple[str, list[str]]:
    """Return the stored tensors that do not fit a size in the config, and the first of them in words.

    Both are empty for a class that was not measured. Remote code, pruned heads and quantisers change the shapes.
    """
    try:
        return inspection.unfit
    except AttributeError:
        object.__setattr__(inspection, "unfit", _unfit_tensors(inspection))
        return inspection.unfit


def _unfit_tensors(inspection: Inspection) -> tuple[str, list[str]]:
    checkpoint, family = inspection.checkpoint, inspection.family
    config, record = checkpoint.config_values, size_keys(family)
    changed = config.get("pruned_heads") or any(key.startswith(("quant", "auto_map")) for key in config)
    changed = changed or checkpoint.mlx or checkpoint.adapter is not None
    # A draft model has the name of its target's class, other layers, and no record of the flag.
    if not (record and family.truth) or changed or checkpoint.format not in ("safetensors", "torch"):
        return "", []
    if not is_large(inspection):
        record = {**record, "defaults": {}, "absent": {}}
    rows: dict[str, tuple[tuple[str, int] | None, ...]] = {}
    for start, by_row in record["rows"].items():
        for row, leaves in by_row.items():
            names = [start + leaf for leaf in leaves.split()]
            names += [name.removeprefix(f"{family.prefix}.") for name in names]
            rows |= dict.fromkeys(names, tuple(_stated(config, record, keys) for keys in row.split()))
    unfit: dict[tuple[str, int], list[str]] = {}
    fitting = set[tuple[str, tuple[int, ...]]]()
    for name, tensor in checkpoint.tensors.items():
        pattern = _NUMBER.sub("*", name)
        sizes = rows.get(pattern, ())
        fits_already = (pattern, tensor.shape) in fitting
        if len(sizes) != len(tensor.shape) or fits_already or tensor.dtype not in FLOATS or not tensor.elements:
            continue
        misfits = [size for stored, size in zip(tensor.shape, sizes, strict=True) if size and size[1] != stored]
        for size in misfits:
            unfit.setdefault(size, []).append(name)
        if not misfits:
            fitting.add((pattern, tensor.shape))
    if not unfit:
        return "", []
    (problem, _), names = max(unfit.items(), key=lambda item: len(item[1]))
    problem = f"{problem}, but {shown(names[0])} has the shape {[*checkpoint.tensors[names[0]].shape]}"
    return problem, list(dict.fromkeys([*names, *(name for misfits in unfit.values() for name in misfits)]))


def _stated(config: Mapping[str, object], record: Mapping[str, Any], keys: str) -> tuple[str, int] | None:
    """Return what the config says of a size, and its number, the product of its keys; ``None`` if unknown."""
    words, numbers, says = list[str](), list[int](), "in the config"
    for path in keys.split("*"):
        level, number = path.removesuffix("head_dim"), _value(config, record, path)
        if number is None and level.rstrip(".") in record.get("derived", ()) and level != path:
            path = f"{level}hidden_size / {level}num_attention_heads"
            hidden, heads = (_value(config, record, key) for key in path.split(" / "))
            number = hidden // heads if type(hidden) is type(heads) is int and heads > 0 else None
        if number is None and (number := _default(config, record, path)) is not None:
            says = f"by default, because the config lacks {shown(path)}"
        if type(number) is not int or number <= 0:
            return None
        words.append(path)
        numbers.append(number)
    return f"{' * '.join(map(shown, words))} is {prod(numbers):,} {says}", prod(numbers)


def _default(config: Mapping[str, object], record: Mapping[str, Any], path: str) -> int | None:
    """Return what the class takes for an absent key; ``None`` if it may be in the config under another name."""
    level, _, key = path.rpartition(".")
    values, types = nested(config, level), record.get("types", {})
    if values is not None:
        agreed = values.get("model_type", "") in (types.get(level, ""), "")
        names = {key, *record.get("aliases", {}).get(path, ())}
        number: int | None = record.get("defaults", {}).get(path)
        return number if (agreed or not level) and names.isdisjoint(values) else None
    parent, _, part = level.rpartition(".")
    if (nested(config, parent) or {}).get(part) is not None:
        return None  # not an object
    # A flat config has the keys of a part at its top. Another program has other names for its parts.
    sizes = {known.rpartition(".")[2] for known in record.get("absent", {}) if known.startswith(f"{level}.")}
    sections = [config, *(part for name, part in config.items() if isinstance(part, Mapping) and name not in types)]
    number = record.get("absent", {}).get(path)
    return number if all(sizes.isdisjoint(section) for section in sections) else None


def _value(config: Mapping[str, object], record: Mapping[str, Any], path: str) -> object:
    """Return the value of a key, also under an alias; ``None`` for a level of another model type."""
    level, _, key = path.rpartition(".")
    values = nested(config, level) or {}
    stated = [values[name] for name in (key, *record.get("aliases", {}).get(path, ())) if name in values]
    usual = record.get("types", {}).get(level, values.get("model_type"))
    agreed = values.get("model_type", usual) == usual and all(value == stated[0] for value in stated)
    return stated[0] if stated and agreed else None


def _is_misshapen(inspection: Inspection, head: str) -> bool:
    tensors = inspection.checkpoint.tensors
    for tie in inspection.ties:
        member = next((member for member in tie.members if member.name == head), None)
        if member is None:
            continue
        if member.state is State.TRANSPOSED:
            return True
        canonical = next((name.name for name in tie.members if name.state is State.CANONICAL), tie.canonical)
        reference = tensors.get(canonical)
        if not tie.declared or reference is None or not reference.elements:
            return False  # a placeholder does not give the number of rows
        return not fits(tensors[head], reference)
    return False


def _sizes(config: Mapping[str, object], prefix: str, depth: int) -> Iterator[tuple[str, int]]:
    for key, value in config.items():
        # The table of `type_vocab_size` has no rows for tokens.
        if (
            key.endswith("vocab_size")
            and key != "type_vocab_size"
            and type(value) is int
            and (value > 0 or key == "vocab_size")
        ):
            yield f"{prefix}{key}", value
        elif isinstance(value, Mapping) and depth < _MAX_DEPTH:
            yield from _sizes(value, f"{prefix}{key}.", depth + 1)
