"""Choose the state dict in a torch file, which may be a whole training checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tieconv.checkpoint.model_files import SEVERAL, TRAINING, Caution
from tieconv.checkpoint.value_type import record
from tieconv.formats.torch.pickle_values import Pairs, StoredTensor, describe, refuse
from tieconv.text import count, shown

METADATA = "_metadata"
"""The attribute in which torch stores the versions of a model's modules."""
PREFIXES = ("module.", "_orig_mod.", "model._orig_mod.", "_forward_module.")
"""Prefixes that wrappers (DataParallel, torch.compile, Lightning) add to every name."""
_NAMED = ("state_dict", "model", "module", "model_state_dict", "model_state", "net", "network")
"""Keys under which trainers store the model's tensors."""
_WITH = "generator"
"""The key beside the model under which OpenNMT-py stores the output layer of the model."""
_OF_TRAINING = re.compile(r"optim|sched|scaler|rng|random|amp|callback|loop|metric|param_groups|loss|hist|extra_state")
"""Matches keys of a training checkpoint that hold no model."""
_DEEPEST = 5
_MOST_DICTIONARIES = 10_000
_LARGEST_METADATA = 10_000_000


@record
class StateDict:
    """Tensors by name, in the order of the file. ``metadata`` is torch's `_metadata` as JSON."""

    tensors: dict[str, StoredTensor]
    metadata: dict[str, str] | None
    cautions: tuple[Caution, ...]


@record
class _Candidate:
    """A dictionary of the file: its keys from the top, its content and its number of named tensors."""

    path: tuple[str, ...]
    pairs: Pairs
    number: int


def _candidate(path: tuple[str, ...], pairs: Pairs) -> _Candidate:
    return _Candidate(
        path, pairs, sum([type(key) is str and type(value) is StoredTensor for key, value in pairs.items])
    )


def find_state(value: object) -> StateDict:
    """Return the state dict that ``value`` is or holds. Raises `PickleProblem` if there is none."""
    if not isinstance(value, Pairs):
        refuse(f"holds {describe(value)}, not a dictionary of tensors", "torch.no-state", "save model.state_dict()")
    every = list(_candidates(value))
    places = [candidate for candidate in every if candidate.number] + [*_nested(every)]
    if not places:
        if value.items:
            refuse("holds no named tensor", "torch.no-state", "save model.state_dict()")
        return StateDict({}, None, ())
    chosen = _choose(places)
    tensors, extra = _split(chosen.pairs)
    metadata = _metadata(chosen.pairs)
    joined = _output_layer(chosen, places, tensors)
    tensors |= joined
    left = _other_models(chosen, places, bool(joined))
    where = (*([".".join(chosen.path)] if chosen.path else []), *([_WITH] if joined else []))
    dotted = not any(candidate is chosen for candidate in every)
    cautions = [
        *_training(where, chosen, value, left, dotted),
        *_extra(extra, chosen.pairs, metadata),
        *_prefixed(tensors),
    ]
    return StateDict(tensors, metadata, tuple(cautions))


def _output_layer(
    chosen: _Candidate, places: list[_Candidate], tensors: dict[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the output layer that OpenNMT-py stores beside the model's other tensors, under full names."""
    if chosen.path != ("model",):
        return {}
    beside = next((candidate for candidate in places if candidate.path == (_WITH,)), None)
    layer = _split(beside.pairs)[0] if beside is not None else {}
    return {f"{_WITH}.{name}": tensor for name, tensor in layer.items() if f"{_WITH}.{name}" not in tensors}


def _other_models(chosen: _Candidate, places: list[_Candidate], joined: bool) -> tuple[str, ...]:
    """Return the keys of further named tensors that are not training state."""
    depth = len(chosen.path)
    others = [candidate.path for candidate in places if candidate.path and candidate.path[:depth] != chosen.path]
    if joined:
        others = [path for path in others if path != (_WITH,)]
    return tuple(".".join(path) for path in others if not any(_OF_TRAINING.search(key.lower()) for key in path))


def _candidates(top: Pairs) -> Iterator[_Candidate]:
    """Yield the dictionaries under text keys once each, outermost first."""
    seen = {id(top)}
    level = [_candidate((), top)]
    for _ in range(_DEEPEST):
        yield from level
        inner: list[_Candidate] = []
        for candidate in level:
            for key, value in candidate.pairs.items:
                if type(key) is str and isinstance(value, Pairs) and id(value) not in seen:
                    seen.add(id(value))
                    inner.append(_candidate((*candidate.path, key), value))
        if len(seen) > _MOST_DICTIONARIES:
            refuse(f"holds more than {_MOST_DICTIONARIES:,} dictionaries", "torch.too-deep")
        level = inner


def _nested(places: list[_Candidate]) -> Iterator[_Candidate]:
    """Yield models stored as one dictionary for each module (Megatron-LM), with dotted tensor names."""
    for outer in places:
        if outer.number or not outer.path or outer.path[-1] not in _NAMED:
            continue
        depth = len(outer.path)
        inner = [candidate for candidate in places if candidate.path[:depth] == outer.path and candidate.number]
        pairs = Pairs(
            [
                (".".join((*candidate.path[depth:], key)), value)
                for candidate in inner
                for key, value in _tensors(candidate)
            ]
        )
        if inner:
            yield _candidate(outer.path, pairs)


def _tensors(candidate: _Candidate) -> Iterator[tuple[str, StoredTensor]]:
    for key, value in candidate.pairs.items:
        if type(key) is str and type(value) is StoredTensor:
            yield key, value


def _choose(places: list[_Candidate]) -> _Candidate:
    """Return the dictionary with the most tensors.

    With equal numbers the top level comes first. Below it, dictionaries with a usual key come first. The number
    decides first, because a random state or a step count can be a tensor at the top level.
    """
    own = [candidate for candidate in places if not candidate.path]
    named = [
        candidate
        for candidate in places
        if candidate.path and candidate.path[-1] in _NAMED and "optim" not in candidate.path[0]
    ]
    return max([*own, *(named or places)], key=lambda candidate: candidate.number)


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
    """Return torch's `_metadata` as JSON text, or ``None`` if JSON cannot hold it."""
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


def _training(
    keys: tuple[str, ...], chosen: _Candidate, top: Pairs, others: tuple[str, ...], dotted: bool
) -> Iterator[Caution]:
    """Yield the caution that the file is a training checkpoint. Its code says whether the model is certain."""
    if not chosen.path:
        return
    under = " and ".join(shown(key, 80) for key in keys)
    where = f"the file is a training checkpoint; tieconv reads the tensors under {under}"
    if dotted:
        where += ", nested dictionaries whose keys are joined with dots"
    if others or chosen.path[-1] not in _NAMED:
        more = f"; other tensors are under {', '.join(shown(path, 40) for path in others[:4])}" if others else ""
        ema = [path for path in others if "ema" in path.replace("_", ".").split(".")]
        two = f". The file holds two models: {shown(ema[0], 40)} is an average of weights (EMA)" if ema else ""
        yield Caution(SEVERAL, f"{where}{more}{two}")
        return
    besides = [key for key, _ in top.items[:6] if type(key) is str and key not in (chosen.path[0], _WITH)]
    more = f"; the file also holds {', '.join(shown(key, 40) for key in besides)}" if besides else ""
    yield Caution(TRAINING, f"{where}{more}")


def _extra(extra: list[object], pairs: Pairs, metadata: dict[str, str] | None) -> Iterator[Caution]:
    attributes = [key for key, _ in pairs.state.items if key != METADATA or metadata is None] if pairs.state else []
    left = [*extra, *attributes]
    if left:
        kind = "is not a tensor" if len(left) == 1 else "are not tensors"
        ignored = f"tieconv ignores {count(len(left), 'value')} that {kind}"
        listed = ", ".join(shown(key, 40) if type(key) in (str, int) else describe(key) for key in left[:6])
        yield Caution("torch.extra", f"{ignored}: {listed}")


def _prefixed(tensors: dict[str, StoredTensor]) -> Iterator[Caution]:
    for prefix in PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            yield Caution("torch.prefix", f"every name starts with {prefix}, which a wrapper added before saving")
            return
