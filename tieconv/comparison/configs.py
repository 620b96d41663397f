"""Two configs, value by value, and what each difference means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tieconv.architectures.flag_levels import FLAG
from tieconv.checkpoint.results.comparison import ConfigDifference, Weight
from tieconv.loaders.views import DERIVED_KEY

COSMETIC = frozenset({"transformers_version", "_name_or_path", "_commit_hash", "_attn_implementation_autoset"})
"""Keys that say who wrote the config, from where: nothing is computed from them."""

DTYPES = frozenset({"dtype", "torch_dtype"})
"""Both spellings of the type to load as; with equal stored types they decide the precision of computing alone."""

_ABSENT = object()


def compare_configs(a: Mapping[str, object], b: Mapping[str, object]) -> tuple[ConfigDifference, ...]:
    """Every value that differs, in the order of its path."""
    one, two = dict(_flat(_one_spelling(a), "")), dict(_flat(_one_spelling(b), ""))
    return tuple(
        ConfigDifference(path, one.get(path), two.get(path), path in one, path in two, _weight(path))
        for path in sorted(one.keys() | two.keys())
        if not _same(one.get(path, _ABSENT), two.get(path, _ABSENT))
    )


def _one_spelling(config: Mapping[str, object]) -> dict[str, object]:
    """`torch_dtype` under the name that transformers 5 gives it."""
    return {"dtype" if key == "torch_dtype" and "dtype" not in config else key: value for key, value in config.items()}


def _flat(config: Mapping[str, object], start: str) -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(_one_spelling(value), f"{start}{key}.")
        else:
            yield f"{start}{key}", value


def _same(one: object, two: object) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_same, one, two))
    return type(one) is type(two) and (one == two or (one != one and two != two))


def _weight(path: str) -> Weight:
    key = path.rpartition(".")[2]
    if key in COSMETIC or key in DTYPES:
        return Weight.COSMETIC
    return Weight.TENSORS if key in (FLAG, DERIVED_KEY) else Weight.FUNCTION
