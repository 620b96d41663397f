"""A record behaves as the frozen, slotted dataclass that it stands for."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from tieconv.checkpoint.value_type import record


@record
class Made:
    """A record."""

    name: str
    size: int = 3
    notes: tuple[str, ...] = dataclasses.field(default_factory=tuple)


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """The dataclass that it must be like."""

    name: str
    size: int = 3
    notes: tuple[str, ...] = dataclasses.field(default_factory=tuple)


CALLS = [(("a",), {}), (("a", 4), {"notes": ("x",)}), ((), {"size": 1, "name": "b"})]


@pytest.mark.parametrize(("args", "kwargs"), CALLS)
def test_values_as_in_a_dataclass(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Positions, keywords, defaults and factories give the values that a dataclass has."""
    made, model = Made(*args, **kwargs), Model(*args, **kwargs)  # type: ignore[arg-type]
    assert dataclasses.asdict(made) == dataclasses.asdict(model)
    assert repr(made) == repr(model).replace("Model", "Made")
    assert Made.__match_args__ == Model.__match_args__
    assert made == Made(*args, **kwargs) and hash(made) == hash(Made(*args, **kwargs))  # type: ignore[arg-type]
    assert made != model


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), (("a", 1, (), 5), {}), (("a",), {"name": "b"}), (("a",), {"colour": 1})]
)
def test_wrong_calls_fail_as_in_a_dataclass(args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Missing, surplus, repeated and unknown values are type errors."""
    for kind in (Made, Model):
        with pytest.raises(TypeError):
            kind(*args, **kwargs)  # type: ignore[arg-type]


def test_frozen_slotted_replaceable() -> None:
    """No assignment, no deletion, no new attribute; `replace`, `copy` and `pickle` work; patterns match."""
    made = Made("a")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.name = "b"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del made.name
    assert not hasattr(made, "__dict__")
    assert dataclasses.replace(made, size=9) == Made("a", 9)
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    match made:
        case Made(name, size):
            assert (name, size) == ("a", 3)
        case _:
            pytest.fail("a record does not match its own pattern")
