"""A record behaves as the frozen, slotted dataclass that it stands for."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import ClassVar

import pytest

from tieconv.checkpoint.value_type import Printed, record


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


@record
class Checked:
    """A record that refuses some values."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


def test_values_are_checked_as_in_a_dataclass() -> None:
    """`__post_init__` runs after the values are set."""
    assert Checked(1, high=2) == Checked(1, 2)
    with pytest.raises(ValueError, match="low is above high"):
        Checked(2, 1)


@record
class Sized(Checked):
    """A record with a class variable, which is no value of it."""

    unit: ClassVar[str] = "bytes"
    name: str = ""


def test_class_variables_are_not_values() -> None:
    """They take no place among the arguments, the values compared, and those printed."""
    assert Sized(1, 2, "a") == Sized(1, 2, "a") and Sized(1, 2).unit == "bytes"
    assert repr(Sized(1, 2)) == "Sized(low=1, high=2, name='')"
    assert [field.name for field in dataclasses.fields(Sized)] == ["low", "high", "name"]


@record
class Answer(Printed):
    """What a command prints."""

    name: str

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name}


def test_json_is_ascii() -> None:
    """A terminal of any encoding shows it, and two spaces a level make it readable."""
    assert str(Answer("\u00e9")) == Answer("\u00e9").to_json() == '{\n  "name": "\\u00e9"\n}'
