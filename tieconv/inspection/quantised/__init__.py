"""Read a quantised embedding and head as logical matrices, and compare their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain, product

from tieconv.architectures.effective_flag import undeclared_width, vocabulary_sizes
from tieconv.checkpoint.family import Family, Knowledge
from tieconv.checkpoint.inspection import Inspection
from tieconv.checkpoint.quantised_matrix import (
    EMBEDDING,
    FP8_DEFAULT,
    HEAD,
    ConfigChoice,
    DeclaredQuantisation,
    FaultKind,
    MatrixFault,
    QuantisedMatrix,
    Verdict,
)
from tieconv.checkpoint.value_type import record
from tieconv.checkpoint.weight_file import FLOATS
from tieconv.text import shown

# Read which quantisation a config declares, and whether it includes the embedding and the head.
#
# Sources: compressed-tensors 0.20, GPTQModel 7.7, transformers 5.23 (`quantizers/`), mlx-lm 0.32.

_KEYS = ("quantization_config", "compression_config", "quantization")
_MOST_ENTRIES = 4096
_MOST_BITS = 16
_CLASSES = {
    HEAD: frozenset({"Linear", "ParallelLMHead", "LMHead"}),
    EMBEDDING: frozenset({"Embedding", "VocabParallelEmbedding"}),
}
"""Names of the classes of both modules, as targets of compressed-tensors name them."""

Values = Mapping[str, object]


@record
class QuantisationSettings:
    """The object of the config that describes the quantisation, its path, and the method that it names."""

    method: str
    path: str
    values: Values

    def choice(self, module: str, role: str) -> ConfigChoice:
        """Return what the config says about a module in ``role``."""
        reader = _READERS.get(self.method)
        return ConfigChoice(Verdict.UNDECIDED) if reader is None else reader(self.values, module, role)


def quantisation_settings(config: Values) -> QuantisationSettings:
    """Return the quantisation that the config declares, at the top or at one level below; empty if there is none."""
    declared = declared_settings(config)
    # MLX writes its settings a second time as quantization_config, without a method.
    named = (settings for settings in declared if settings.method)
    return next(named, declared[0] if declared else QuantisationSettings("", "", {}))


def declared_quantisation(config: Values, family: Family) -> DeclaredQuantisation | None:
    """Return what the config says about quantisation and the head, ``None`` if it names no method.

    A config may list the head by its name in the file, or by that in the class.
    """
    settings = quantisation_settings(config)
    if not settings.method:
        return None
    stored = family.output_head or "lm_head"
    names = [name.removesuffix(".weight") for name in (stored, dict(family.renames).get(stored, stored))]
    choices = [settings.choice(name, HEAD) for name in names]
    head = next((choice for choice in choices if choice.verdict is Verdict.LEFT_OUT), choices[0])
    return DeclaredQuantisation(settings.method, settings.path, head)


def declared_settings(config: Values) -> list[QuantisationSettings]:
    """Return every description of the quantisation in the config, at the top and at one level below."""
    nested = ((f"{key}.", value) for key, value in config.items() if key not in _KEYS and isinstance(value, Mapping))
    return [
        QuantisationSettings(_method(key, values), start + key, values)
        for start, level in (("", config), *nested)
        for key in _KEYS
        if isinstance(values := level.get(key), Mapping) and values
    ]


_FOR_FLOATS = ("awq", "bitsandbytes", "compressed-tensors", "gptq")
"""The methods that were measured in transformers 5.24 with floats alone: it builds quantised layers all the same."""
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized")
_SKIPPING = ("modules_to_not_convert", "llm_int8_skip_modules", "ignore")


def floats_alone(inspection: Inspection) -> str:
    """Return a matrix of a layer that the config quantises, if the files store floats alone; often empty.

    Empty too if the config leaves out more than heads, since the names of modules differ between releases.
    """
    checkpoint = inspection.checkpoint
    settings, tensors = quantisation_settings(checkpoint.quantisation_values), checkpoint.tensors
    values = settings.values
    if settings.method not in _FOR_FLOATS or checkpoint.adapter or checkpoint.format not in ("safetensors", "torch"):
        return ""
    choice = settings.choice("model.layers.0.mlp.up_proj", HEAD)  # any module of a layer
    packed = choice.verdict is Verdict.QUANTISED and choice.layout in _FORMATS
    partial = values.get("dynamic") or values.get("modules_in_block_to_quantize")
    partial = partial or any("head" not in name for key in _SKIPPING for name in texts(values.get(key)))
    if partial or (settings.method == "compressed-tensors" and not packed):
        return ""
    if any(tensor.dtype not in FLOATS or "scale" in name.rpartition(".")[2] for name, tensor in tensors.items()):
        return ""
    linear = (name for name in tensors if name.endswith("_proj.weight") and "expert" not in name)
    return next((name for name in linear if len(tensors[name].shape) == 2), "")


_SPELLINGS = {"compressed_tensors": "compressed-tensors", "gptq_v2": "gptq", "modelopt_fp4": "modelopt"}


def _method(key: str, values: Values) -> str:
    named = values.get("quant_method")
    if isinstance(named, str):
        return _SPELLINGS.get(named, named)
    if "quant_algo" in values:
        return "modelopt"
    return "mlx" if key == "quantization" and "bits" in values else ""


def _compressed_tensors(values: Values, module: str, role: str) -> ConfigChoice:
    left_out = matched_entry(texts(values.get("ignore")), module, role)
    groups = values.get("config_groups")
    pairs = list(groups.items())[:_MOST_ENTRIES] if isinstance(groups, Mapping) else []
    verdict, entry, settings = Verdict.LEFT_OUT, "config_groups", {}
    for name, group in pairs:
        targets = texts(group.get("targets")) if isinstance(group, Mapping) else ()
        target = matched_entry(targets, module, role)
        if target is not None:
            weights = group.get("weights")
            layout = group.get("format") or values.get("format")
            settings = {**(weights if isinstance(weights, Mapping) else {}), "layout": layout}
            verdict, entry = Verdict.QUANTISED, f"config_groups.{name}.targets: {target[0]}"
            verdict = verdict if target[1] else Verdict.UNDECIDED
            break
    if left_out is not None:
        verdict, entry = (Verdict.LEFT_OUT if left_out[1] else Verdict.UNDECIDED), f"ignore: {left_out[0]}"
    bits, group = _bits(settings.get("num_bits")), _natural(settings.get("group_size"))
    layout, block = text_of(settings.get("layout")), _block(settings.get("block_structure"))
    return ConfigChoice(verdict, entry, bits, group, _truth(settings.get("symmetric")), layout, block)


def _gptq(values: Values, module: str, role: str) -> ConfigChoice:
    listed = values.get("lm_head") is True
    verdict = Verdict.QUANTISED if listed else Verdict.LEFT_OUT
    if role == EMBEDDING or (values.get("dynamic") and not _dynamic_names(values.get("dynamic"), module)):
        verdict = Verdict.UNDECIDED
    layout = values.get("checkpoint_format")
    if layout is None and values.get("quant_method") == "gptq_v2":
        layout = "gptq_v2"
    merged = {**values, **_dynamic_settings(values.get("dynamic"), module)}
    return _in_groups(merged, verdict, "lm_head" if listed else "", _truth(merged.get("sym")), text_of(layout))


def _dynamic_settings(dynamic: object, module: str) -> Values:
    """Return what GPTQ's `dynamic` sets for the module: the first entry that matches, nothing if that is undecided."""
    for entry, settings in list(dynamic.items())[:_MOST_ENTRIES] if isinstance(dynamic, Mapping) else ():
        match = False if entry.startswith("-:") else matches_pattern(entry.removeprefix("+:"), module)
        if match and isinstance(settings, Mapping):
            return settings
        if match is None:
            return {"bits": None, "group_size": None, "sym": None}
    return {}


def _dynamic_names(dynamic: object, module: str) -> bool:
    """Return whether an entry of GPTQ's `dynamic` certainly includes the module, as AutoRound writes it."""
    entries = list(dynamic)[:_MOST_ENTRIES] if isinstance(dynamic, Mapping) else []
    matches = [matches_pattern(str(entry).removeprefix("+:"), module) for entry in entries if entry[:2] != "-:"]
    return any(match is True for match in matches) and not any(str(entry).startswith("-:") for entry in entries)


def _auto_round(values: Values, module: str, role: str) -> ConfigChoice:
    extra = values.get("extra_config")
    own = extra.get(module) if isinstance(extra, Mapping) else None
    layout = text_of(values.get("packing_format"))
    if not isinstance(own, Mapping):  # it quantises the blocks
        verdict = Verdict.UNDECIDED if isinstance(extra, Mapping) and extra else Verdict.LEFT_OUT
        return _in_groups(values, verdict, "", _truth(values.get("sym")), layout)
    merged = {**values, **own}
    bits = _bits(merged.get("bits"))
    verdict = Verdict.QUANTISED if bits is not None and bits < _MOST_BITS else Verdict.LEFT_OUT
    return _in_groups(merged, verdict, f"extra_config: {module}", _truth(merged.get("sym")), layout)


def _awq(values: Values, module: str, role: str) -> ConfigChoice:
    skipped = next((key for key in texts(values.get("modules_to_not_convert")) if key in module), None)
    zero_points = _truth(values.get("zero_point"))
    symmetric = None if zero_points is None else not zero_points
    if skipped is not None:
        return _in_groups(values, Verdict.LEFT_OUT, f"modules_to_not_convert: {skipped}", symmetric)
    listed = values.get("lm_head") is True and role == HEAD
    return _in_groups(
        values, Verdict.QUANTISED if listed else Verdict.UNDECIDED, "lm_head" if listed else "", symmetric
    )


def _bitsandbytes(values: Values, module: str, role: str) -> ConfigChoice:
    bits = 4 if values.get("load_in_4bit") is True else 8 if values.get("load_in_8bit") is True else None
    if role == EMBEDDING:
        return ConfigChoice(Verdict.LEFT_OUT, "load_in_4bit" if bits == 4 else "load_in_8bit", bits)
    skipped = values.get("llm_int8_skip_modules")
    if not isinstance(skipped, list):
        return ConfigChoice(Verdict.LEFT_OUT, "llm_int8_skip_modules: absent", bits)
    key = _skipping(texts(skipped), module)
    verdict = Verdict.QUANTISED if key is None else Verdict.LEFT_OUT
    return ConfigChoice(verdict, f"llm_int8_skip_modules: {key or ', '.join(texts(skipped)[:4]) or 'empty'}", bits)


def _fp8(values: Values, module: str, role: str) -> ConfigChoice:
    block = _block(values.get("weight_block_size"))
    listed = values.get("modules_to_not_convert") or values.get("ignored_layers")
    if role == HEAD and not isinstance(listed, list):  # transformers then skips the head
        return ConfigChoice(Verdict.LEFT_OUT, FP8_DEFAULT, 8, symmetric=True, block=block)
    key = _skipping(texts(listed), module)
    if key is not None:
        return ConfigChoice(Verdict.LEFT_OUT, f"modules_to_not_convert: {key}", 8, symmetric=True, block=block)
    verdict = Verdict.UNDECIDED if role == EMBEDDING else Verdict.QUANTISED
    return ConfigChoice(verdict, "quant_method: fp8", 8, symmetric=True, block=block)


def _torchao(values: Values, module: str, role: str) -> ConfigChoice:
    key = _skipping(texts(values.get("modules_to_not_convert")), module)
    if key is not None:
        return ConfigChoice(Verdict.LEFT_OUT, f"modules_to_not_convert: {key}")
    both = values.get("include_input_output_embeddings") is True
    return ConfigChoice(Verdict.QUANTISED if both else Verdict.UNDECIDED, "include_input_output_embeddings" * both)


def _skip_lists(values: Values, module: str, role: str) -> ConfigChoice:
    names = (*texts(values.get("modules_to_not_convert")), *texts(values.get("skip_modules")))
    key = _skipping(names, module)
    if key is not None:
        return ConfigChoice(Verdict.LEFT_OUT, f"modules to skip: {key}")
    return ConfigChoice(Verdict.UNDECIDED if role == EMBEDDING else Verdict.QUANTISED, "")


def _mlx(values: Values, module: str, role: str) -> ConfigChoice:
    own = values.get(module)
    if own is False:
        return ConfigChoice(Verdict.LEFT_OUT, module)
    settings = own if isinstance(own, Mapping) else values
    layout = text_of(settings.get("mode")) or "affine"
    # MLX passes an entry alone to `to_quantized`, which has these defaults. The other modes have one size each.
    defaults = {"bits": 4, "group_size": 64} if layout == "affine" else {}
    return _in_groups({**defaults, **settings}, Verdict.UNDECIDED, module if own else "", None, layout)


def _in_groups(values: Values, verdict: Verdict, entry: str, symmetric: bool | None, layout: str = "") -> ConfigChoice:
    bits = _bits(values.get("bits", values.get("w_bit")))
    group = _natural(values.get("group_size", values.get("q_group_size")))
    return ConfigChoice(verdict, entry, bits, group, symmetric, layout)


def matched_entry(patterns: tuple[str, ...], module: str, role: str) -> tuple[str, bool] | None:
    """Return the first entry that names the module, and whether that is certain."""
    for pattern in patterns:
        if pattern.startswith("re:"):
            match = matches_pattern(pattern[3:], module)
            if match is not False:
                return pattern, match is True
        elif pattern == module or pattern in _CLASSES[role]:
            return pattern, True
    return None


def _skipping(names: tuple[str, ...], module: str) -> str | None:
    """Return the entry that skips the module: its name, the end of it, or a module around it."""
    return next((key for key in names if key and (module.endswith(key) or f"{module}.".startswith(f"{key}."))), None)


def texts(value: object) -> tuple[str, ...]:
    """Return the strings of a list; empty for any other value."""
    return tuple(entry for entry in value[:_MOST_ENTRIES] if isinstance(entry, str)) if isinstance(value, list) else ()


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _natural(value: object) -> int | None:
    return value if type(value) is int and 0 < value < 1 << 31 else None


def _bits(value: object) -> int | None:
    number = _natural(value)
    return number if number is not None and number <= _MOST_BITS else None


def _block(value: object) -> tuple[int, int] | None:
    sides = [_natural(entry) for entry in value] if isinstance(value, list) and len(value) == 2 else []
    return (sides[0], sides[1]) if len(sides) == 2 and sides[0] and sides[1] else None


# Read which modules a config of ModelOpt leaves out: `ignore` in config.json, `exclude_modules` in its own file.

_LISTS = ("ignore", "exclude_modules")
_BITS = {"NVFP4": (4, 16), "FP8": (8, None)}


def modelopt_choice(values: Mapping[str, object], module: str, role: str) -> ConfigChoice:
    """Return what the config says about a module. A `*` in an entry matches any text."""
    layout = text_of(values.get("quant_algo"))
    bits, group = _BITS.get(layout, (None, None))
    for key in _LISTS:
        entries = values.get(key)
        for entry in entries[:_MOST_ENTRIES] if isinstance(entries, list) else ():
            match = _matches(entry, module) if isinstance(entry, str) else False
            if match is not False:
                verdict = Verdict.LEFT_OUT if match else Verdict.UNDECIDED
                return ConfigChoice(verdict, f"{key}: {entry}", bits, group, True, layout)
    verdict = Verdict.UNDECIDED if role == EMBEDDING or not layout else Verdict.QUANTISED
    return ConfigChoice(verdict, f"quant_algo: {layout}" if layout else "", bits, group, True, layout)


def text_of(value: object) -> str:
    """Return a string of a config; empty for any other value."""
    return value if isinstance(value, str) else ""


def _matches(entry: str, module: str) -> bool | None:
    escaped = entry.replace(".", "\\.").replace("*", ".*")
    return matches_pattern(f"{escaped}$", module)


# Match a module's name with the patterns of a quantisation config, without running a regular expression of the file.
#
# A pattern of the file could take exponential time. The patterns of published configs use `.*`, `.`, `^`, `$`,
# escaped characters and lists of alternatives. Any further syntax is undecided.

_MARKS = re.compile(r"\.\*|\\\W|\([^()]*\)|[\w.\-/]")
_ALTERNATIVES = 64
_LONGEST = 512
_ANY, _ANY_RUN = "any", "any run"


def matches_pattern(pattern: str, name: str) -> bool | None:
    """Return whether ``re.match(pattern, name)`` finds a match, or ``None`` if tieconv does not decide it."""
    spellings = _expanded(pattern)
    if spellings is None:
        return None
    return any(_pattern_matches(marks, name, whole=whole) for marks, whole in spellings)


def _expanded(pattern: str) -> list[tuple[list[str], bool]] | None:
    """Return the mark lists of each alternative, and whether the name has to end there; ``None`` if undecided."""
    if len(pattern) > _LONGEST:
        return None
    body = pattern.removeprefix("^")
    whole = body.endswith("$") and not body.endswith("\\$")
    body = body.removesuffix("$") if whole else body
    marks = _MARKS.findall(body)
    if "".join(marks) != body:
        return None
    choices = [_choices(mark) for mark in marks]
    size = 1
    for choice in choices:
        if choice is None:
            return None
        size *= len(choice)
    if size > _ALTERNATIVES:
        return None
    return [(list(chain(*combination)), whole) for combination in product(*(choice or [] for choice in choices))]


def _choices(mark: str) -> list[list[str]] | None:
    if mark.startswith("("):
        inner = mark[1:-1].removeprefix("?:").split("|")
        split = [_MARKS.findall(text) for text in inner]
        plain = all("".join(marks) == text for marks, text in zip(split, inner, strict=True))
        return [[_unit(entry) for entry in marks] for marks in split] if plain else None
    return [[_unit(mark)]]


def _unit(mark: str) -> str:
    if mark == ".*":
        return _ANY_RUN
    return _ANY if mark == "." else mark[-1]


def _pattern_matches(marks: list[str], name: str, *, whole: bool) -> bool:
    """Return whether the marks match a prefix of the name, or with ``whole`` all of it."""
    ends = {0}
    for mark in marks:
        if mark == _ANY_RUN:
            ends = set(range(min(ends), len(name) + 1)) if ends else set()
        else:
            ends = {end + 1 for end in ends if end < len(name) and mark in (_ANY, name[end])}
    return len(name) in ends if whole else bool(ends)


# Compare the shape of a quantised matrix with the sizes in the config.


def with_config_sizes(inspection: Inspection, matrix: QuantisedMatrix) -> QuantisedMatrix:
    """Return the matrix, with a fault if its shape is not the config's vocabulary × hidden size."""
    if matrix.shape is None or matrix.faults or inspection.family.knowledge is not Knowledge.TABLE:
        return matrix
    rows, columns = matrix.shape
    sizes = vocabulary_sizes(inspection)
    if sizes and rows not in sizes.values():
        listed = ", ".join(f"{shown(path)} {size:,}" for path, size in list(sizes.items())[:4])
        reason = f"the config says {listed}"
    else:
        width = undeclared_width(inspection, columns)
        reason = f"the config says {shown(width[0])} {width[1]:,}" if width is not None else ""
    if not reason:
        return matrix
    names = tuple(part.name for part in matrix.parts if part.role == "codes")
    side = f"{shown(names[0] if names else matrix.name)} is {matrix.shape[0]}×{matrix.shape[1]} unpacked"
    return replace(matrix, faults=(MatrixFault(FaultKind.SHAPE, f"{side}, but {reason}", names),))


_READERS: Mapping[str, Callable[[Values, str, str], ConfigChoice]] = {
    "compressed-tensors": _compressed_tensors, "gptq": _gptq, "awq": _awq, "bitsandbytes": _bitsandbytes, "fp8": _fp8,
    "torchao": _torchao, "quanto": _skip_lists, "hqq": _skip_lists, "mlx": _mlx, "modelopt": modelopt_choice,
    "auto-round": _auto_round,
}  # fmt: skip
