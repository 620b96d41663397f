"""Compare two configs value by value, and classify each difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.architectures.flag_levels import DERIVED_KEY, FLAG
from tieconv.checkpoint.results.comparison import ConfigDifference, Weight

COSMETIC = frozenset({"transformers_version", "_name_or_path", "_commit_hash", "_attn_implementation_autoset"})
"""Keys about the origin of the config, which no computation uses."""

DTYPES = frozenset({"dtype", "torch_dtype"})
"""Both names of the dtype. With equal stored types they decide only the precision of the computation."""

_ABSENT = object()


def compare_configs(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[ConfigDifference, ...]:
    """Return every value that differs, in the order of the paths."""
    values_a, values_b = dict(_flat(_one_spelling(a), "")), dict(_flat(_one_spelling(b), ""))
    return tuple(
        ConfigDifference(
            path, values_a.get(path), values_b.get(path), path in values_a, path in values_b, _weight(path)
        )
        for path in sorted(values_a.keys() | values_b.keys())
        if not _same(values_a.get(path, _ABSENT), values_b.get(path, _ABSENT))
    )


def _one_spelling(config: Mapping[str, object]) -> dict[str, object]:
    """Return the config with `torch_dtype` renamed to `dtype`, as in transformers 5."""
    return {"dtype" if key == "torch_dtype" and "dtype" not in config else key: value for key, value in config.items()}


def _flat(config: Mapping[str, object], start: str) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(_one_spelling(value), f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def _same(value_a: object, value_b: object) -> bool:
    """Return whether two values are equal as JSON: true is not 1."""
    if isinstance(value_a, list) and isinstance(value_b, list):
        return len(value_a) == len(value_b) and all(map(_same, value_a, value_b))
    return type(value_a) is type(value_b) and (value_a == value_b or (value_a != value_a and value_b != value_b))


def _weight(path: str) -> Weight:
    key = path.rpartition(".")[2]
    if key in COSMETIC or key in DTYPES:
        return Weight.COSMETIC
    return Weight.TENSORS if key in (FLAG, DERIVED_KEY) else Weight.FUNCTION
