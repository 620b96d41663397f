"""The state dict among everything that a torch file may hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from tieconv.checkpoint.records import Caution
from tieconv.formats.pickle_values import Pairs, StoredTensor, describe, refuse
from tieconv.text import count, shown

METADATA = "_metadata"
"""The attribute in which torch keeps the versions of a model's modules."""
PREFIXES = ("module.", "_orig_mod.", "model._orig_mod.", "_forward_module.")
"""What wrappers (DataParallel, torch.compile, Lightning) put before every name."""
_NAMED = ("state_dict", "model", "module", "model_state_dict", "model_state", "net", "network")
_DEEPEST = 4
_MOST_DICTIONARIES = 10_000
_LARGEST_METADATA = 10_000_000


@dataclass(frozen=True, slots=True)
class StateDict:
    """Tensors by name in the order of the file; ``metadata`` is that of torch, as JSON."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str] | None
    cautions: tuple[Caution, ...]


@dataclass(frozen=True, slots=True)
class _Place:
    """A dictionary of the file, the keys that lead to it, and how many tensors it holds by name."""

    path: tuple[str, ...]
    pairs: Pairs
    number: int


def _place(path: tuple[str, ...], pairs: Pairs) -> _Place:
    return _Place(path, pairs, sum([type(key) is str and type(value) is StoredTensor for key, value in pairs.items]))


def find_state(value: object) -> StateDict:
    """The state dict that ``value`` is or holds. Raises `PickleProblem` where there is none."""
    if not isinstance(value, Pairs):
        refuse(f"holds {describe(value)}, no dictionary of tensors", "torch.no-state", "save model.state_dict()")
    places = [place for place in _places(value) if place.number]
    if not places:
        if value.items:
            refuse("holds no tensor by name", "torch.no-state", "save model.state_dict()")
        return StateDict({}, None, ())
    chosen = _choose(places)
    tensors, extra = _split(chosen.pairs)
    metadata = _metadata(chosen.pairs)
    cautions = [*_training(chosen, value), *_extra(extra, chosen.pairs, metadata), *_prefixed(tensors)]
    return StateDict(tensors, metadata, tuple(cautions))


def _places(top: Pairs) -> Iterator[_Place]:
    """Dictionaries under text keys, outermost first; each of them once, however often it is referred to."""
    seen = {id(top)}
    level = [_place((), top)]
    for _ in range(_DEEPEST):
        yield from level
        inner: list[_Place] = []
        for place in level:
            for key, value in place.pairs.items:
                if type(key) is str and isinstance(value, Pairs) and id(value) not in seen:
                    seen.add(id(value))
                    inner.append(_place((*place.path, key), value))
        if len(seen) > _MOST_DICTIONARIES:
            refuse(f"holds more than {_MOST_DICTIONARIES:,} dictionaries", "torch.too-deep")
        level = inner


def _choose(places: list[_Place]) -> _Place:
    """The dictionary with most tensors; one with a usual name before others, the file's own before both.

    A random state or a step count beside a model is a tensor too, so that the file's own has to hold more.
    """
    own = [place for place in places if not place.path]
    named = [place for place in places if place.path and place.path[-1] in _NAMED and "optim" not in place.path[0]]
    return max([*own, *(named or places)], key=lambda place: place.number)


def _split(pairs: Pairs) -> tuple[dict[str, StoredTensor], list[object]]:
    tensors: dict[str, StoredTensor] = {}
    extra: list[object] = []
    for key, value in pairs.items:
        if type(key) is not str or not isinstance(value, StoredTensor):
            extra.append(key)
        elif key in tensors:
            refuse(f"holds tensor {shown(key)} twice", "torch.repeated-name")
        else:
            tensors[key] = value
    return tensors, extra


def _metadata(pairs: Pairs) -> dict[str, str] | None:
    """torch's own attribute as JSON text, where JSON can hold it."""
    versions = pairs.state.get(METADATA) if pairs.state else None
    if not isinstance(versions, Pairs):
        return None
    plain: dict[str, dict[str, object]] = {}
    for module, entry in versions.items:
        if type(module) is not str or not isinstance(entry, Pairs) or not all(map(_plain, entry.items)):
            return None
        plain[module] = {str(key): value for key, value in entry.items}
    text = json.dumps(plain, separators=(",", ":"))
    return {METADATA: text} if len(text) < _LARGEST_METADATA else None


def _plain(pair: tuple[object, object]) -> bool:
    key, value = pair
    return type(key) is str and (value is None or type(value) in (int, bool, str))


def _training(chosen: _Place, top: Pairs) -> Iterator[Caution]:
    if not chosen.path:
        return
    where = shown(".".join(chosen.path), 80)
    others = ", ".join(shown(key, 40) for key, _ in top.items[:6] if type(key) is str and key != chosen.path[0])
    beside = f"; beside it stand {others}" if others else ""
    yield Caution("torch.training", f"the tensors are those under {where} of a training checkpoint{beside}")


def _extra(extra: list[object], pairs: Pairs, metadata: dict[str, str] | None) -> Iterator[Caution]:
    attributes = [key for key, _ in pairs.state.items if key != METADATA or metadata is None] if pairs.state else []
    left = [*extra, *attributes]
    if left:
        listed = ", ".join(shown(key, 40) if type(key) in (str, int) else describe(key) for key in left[:6])
        yield Caution("torch.extra", f"{count(len(left), 'value')} beside the tensors left out: {listed}")


def _prefixed(tensors: dict[str, StoredTensor]) -> Iterator[Caution]:
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            yield Caution("torch.prefix", f"every name starts with {prefix}, which a wrapper added before saving")
            return
